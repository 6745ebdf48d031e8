"""Providers of `everstep.toml`, used by the real command, also where each job has a process of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from everstep.checkpoints.store import Store
from examples.provider_simulator.plans import Plan
from examples.provider_simulator.server import simulating
from tests.cli.folder import Folder
from tests.support.simulated import FOLDER, task

AGENT = """
from typing import TypedDict

from langgraph.graph import START, StateGraph

from everstep.nodes.provider import submit_task


class State(TypedDict, total=False):
    prompt: str
    film: dict


async def ask(state: State) -> State:
    return {"film": await submit_task("films", {"prompt": state["prompt"]}, key=state["prompt"])}


graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile()
"""
SECRET = "a-key-that-nobody-may-see-4711"


def prepared(path: Path, url: str) -> Folder:
    """A user's folder whose graph asks a provider that wants a key."""
    shutil.copy(FOLDER / "provider.toml", path)
    section = {"use": "http", "file": "provider.toml", "base_url": url, "api_key_env": "FILMS_KEY"}
    lines = ["[providers.films]", *(f'{name} = "{value}"' for name, value in section.items())]
    (path / "everstep.toml").write_text("\n".join(lines))
    return Folder(path).write(agent=AGENT).configure(film="./agent.py:graph")


@pytest.mark.parametrize("isolate", ["--isolate", "--no-isolate"])
def test_a_worker_submits_and_tells_no_key(tmp_path: Path, isolate: str) -> None:
    """The job's own process has the providers, too; the key is in no line of output and nowhere in the record."""
    with simulating(api_key=SECRET) as simulator:
        simulator.book.default = Plan(end="never")
        folder = prepared(tmp_path, simulator.url)
        folder.submit("film", given='{"prompt": "a balloon"}')
        ran = folder.run("worker", "--until-idle", isolate, FILMS_KEY=SECRET)
        assert ran.code == 0, ran.err
        with Store.open(folder.url) as store:
            (job,) = store.jobs()
            assert (job.status, task(store).state) == ("done", "pending")
        assert sum(simulator.book.made.values()) == 1
    kept = b"".join(path.read_bytes() for path in tmp_path.glob("everstep.db*"))
    assert SECRET.encode() not in kept
    assert SECRET not in ran.out + ran.err


def test_a_mistake_in_a_description_is_told_when_the_worker_starts(tmp_path: Path) -> None:
    """Before any job runs, with the file and the place in it."""
    folder = prepared(tmp_path, "http://127.0.0.1:9")
    text = (tmp_path / "provider.toml").read_text()
    (tmp_path / "provider.toml").write_text(text.replace('result = "/output"', 'results = "/output"'))
    ran = folder.run("worker", "--until-idle")
    assert ran.code == 78, ran.err
    assert "provider.toml: task.result" in ran.err
