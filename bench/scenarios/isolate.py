"""Isolation: what a process a job costs, `everstep worker --isolate` against the same worker without it."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

from bench.figures import ratio
from bench.processes import OWN, ChildFailed
from bench.run import Run, raw
from bench.tables import Section, Table
from everstep.checkpoints.store import Store

GRAPH = '''"""A graph with one node that does nothing."""
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph


class State(TypedDict):
    number: int


async def node(state: State) -> dict[str, Any]:
    return {}


made = StateGraph(State)
made.add_node("node", node)
made.add_edge(START, "node")
made.add_edge("node", END)
graph = made.compile()
'''
MODES = {"everstep worker": [], "everstep worker --isolate": ["--isolate"]}


def run(run: Run) -> Section:
    """Measure it."""
    section = Section("isolate", "A process a job (`--isolate`)")
    if not _is_there():
        section.failures.append("everstep worker has no --isolate in this version")
        return section

    def once(name: str) -> dict[str, float]:
        few, many = _seconds(run, MODES[name], 1), _seconds(run, MODES[name], 1 + run.scale.isolated)
        return {"ms_per_job": max(0.0, many - few) * 1000 / run.scale.isolated}

    found = run.measure("isolation", list(MODES), once, section.failures)
    section.raw = raw(found)
    plain = found.get("everstep worker")
    rows = [
        [
            name,
            each["ms_per_job"].text(1),
            ratio(each["ms_per_job"].median, plain["ms_per_job"].median) if plain else "",
        ]
        for name, each in found.items()
    ]
    section.tables = [Table("an empty one-node job", ["worker", "ms a job", "of the worker without"], rows)]
    section.notes = [
        f"`everstep worker --until-idle` on {run.scale.isolated + 1} empty jobs, 4 at once, less what it takes on one:"
        " the start of the command, the import of the graph and the end are not part of it."
    ]
    return section


def _is_there() -> bool:
    told = subprocess.run([OWN, "-m", "everstep", "worker", "--help"], capture_output=True, text=True, check=True)
    return "--isolate" in told.stdout


def _seconds(run: Run, mode: list[str], jobs: int) -> float:
    with run.place() as place:
        folder = Path(place)
        (folder / "graphs.py").write_text(GRAPH)
        (folder / "langgraph.json").write_text(
            json.dumps({"dependencies": ["."], "graphs": {"empty": "./graphs.py:graph"}})
        )
        url = f"sqlite:///{folder / 'everstep.db'}"
        with Store.open(url) as store:
            for number in range(jobs):
                store.enqueue("empty", {"number": number})
        begin = time.monotonic()
        ran = subprocess.run(
            [OWN, "-m", "everstep", "worker", "--until-idle", *mode, "--store", url],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        took = time.monotonic() - begin
        with Store.open(url) as store:
            done = len(store.jobs(status="done", limit=jobs + 1))
    if ran.returncode or done != jobs:
        raise ChildFailed(f"{done} of {jobs} jobs are done, exit {ran.returncode}: {ran.stderr[-500:]}")
    return took
