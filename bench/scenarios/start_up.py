"""Start-up: what a person waits for, from the command to its end."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from bench.filling import fill
from bench.processes import OWN, ROOT, ChildFailed
from bench.run import Run, raw
from bench.tables import Section, Table, Target
from everstep.checkpoints.store import Store

PYTHON, IMPORT, HELP, SHOW = "python -c pass", "python -c 'import everstep'", "everstep --help", "everstep show JOB"
WANTED_MS = {IMPORT: 250, HELP: 300, SHOW: 600}


def run(run: Run) -> Section:
    """Measure it."""
    section = Section("start_up", "Start-up")
    with run.place() as place:
        path = Path(place) / "everstep.db"
        run.progress(f"start-up: filling a record with {run.scale.listed:,} jobs")
        fill(path, run.scale.listed, ready=run.scale.listed // 10, checkpoints=False)
        with Store.open(f"sqlite:///{path}") as store:
            (job,) = store.jobs(limit=1)
        commands = {
            PYTHON: [OWN, "-c", "pass"],
            IMPORT: [OWN, "-c", "import everstep"],
            HELP: [OWN, "-m", "everstep", "--help"],
            SHOW: [OWN, "-m", "everstep", "show", job.public_id, "--store", f"sqlite:///{path}"],
        }

        def once(name: str) -> dict[str, float]:
            took = []
            for _ in range(run.scale.starts):
                begin = time.perf_counter()
                ran = subprocess.run(commands[name], cwd=ROOT, capture_output=True, text=True, check=False)
                took.append((time.perf_counter() - begin) * 1000)
                if ran.returncode not in (0, 1):
                    raise ChildFailed(f"exit {ran.returncode}: {ran.stderr[-500:]}")
            return {"ms": sorted(took)[len(took) // 2]}

        found = run.measure("start-up", list(commands), once, section.failures)
    section.raw = raw(found)
    rows = [[f"`{name}`", figures["ms"].text(), f"{WANTED_MS.get(name, '')}"] for name, figures in found.items()]
    section.tables = [Table("from the command to its end", ["command", "ms", "wanted below, ms"], rows)]
    section.notes = [f"`everstep show` looks at a record with {run.scale.listed:,} jobs."]
    section.targets = [
        Target(f"`{name}`", f"< {wanted} ms", f"{found[name]['ms'].median:.0f} ms", found[name]["ms"].median < wanted)
        for name, wanted in WANTED_MS.items()
        if name in found
    ]
    return section
