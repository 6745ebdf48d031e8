"""`everstep demo`: the product's story on real input, with real kills, and the evidence read back from outside."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everstep.cli import demo_evidence
from everstep.counts import counted
from everstep.errors import EverstepError

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store
    from everstep.cli.demo_screen import Screen
    from everstep.graphs.demo_repositories import DemoRepository

MARK = ".everstep-demo"
KILL_AT_STEP = 40
PATIENCE_S = 300.0

AGENT = '''"""The shipped agent with a journal beside it: each start of a node is a line that no checkpoint undoes."""

from everstep.cli.demo_journal import journalled
from everstep.graphs.repository_agent import build_graph

graph = journalled(build_graph(), "{journal}").compile(name="repository-agent")
'''


class DemoFailed(EverstepError):
    """The demo could not be carried through, or its evidence does not hold."""

    code = "demo_failed"


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("everstep-demo"),
    show_default=True,
    help="Where repositories, record and outbox go; an earlier demo there is replaced.",
)
@click.option("--package", "packages", multiple=True, help="An installed package to work on; repeatable.")
@click.option("--max-files", type=click.IntRange(20, 2000), default=24, show_default=True, help="Files a job edits.")
@click.option("--model", help="A chat model, provider:name; without one the offline rule policy decides.")
def demo(folder: Path, packages: tuple[str, ...], max_files: int, model: str | None) -> int:
    """Run agents on real repositories, kill their workers at the worst moments, and prove that nothing was done twice.

    Each job makes one change to the source of an installed package, one file a step, and pushes one commit to a bare
    repository beside it. Workers are killed with SIGKILL at step 40, between a push and its confirmation, and between a
    message and its confirmation. What is told at the end is read from git, the outbox, and with LangGraph's own saver.
    """
    folder = folder.absolute()
    _clear(folder)
    from everstep.checkpoints.canonical import repository_key
    from everstep.checkpoints.store import Store
    from everstep.cli.demo_screen import Screen
    from everstep.graphs.demo_repositories import DEMO_PACKAGES, make_repositories

    screen = Screen()
    screen.title("Real repositories, made of the source of installed packages")
    repositories: list[DemoRepository] = []
    for package in packages or DEMO_PACKAGES:
        repositories += make_repositories(folder, [package], max_files=max_files)
        made = repositories[-1]
        operation = made.payload["operation"]
        screen.say(f"  {made.package} {made.version}: {operation} on {counted(len(made.files), 'file')}, one step each")
    (folder / "agent.py").write_text(AGENT.format(journal=folder / "journal"), encoding="utf-8")
    config = {"graphs": {"repository": "./agent.py:graph"}, "dependencies": ["."]}
    (folder / "langgraph.json").write_text(json.dumps(config), encoding="utf-8")
    url = f"sqlite:///{folder / 'everstep.db'}"
    before = {repository.package: demo_evidence.commits(repository.remote) for repository in repositories}
    with Store.open(url) as store:
        names: dict[str, str] = {}
        for repository in repositories:
            payload: dict[str, Any] = {
                **repository.payload,
                "announce": str(folder / "outbox"),
                "workspace": str(folder / "work" / repository.package),
                "model": model,
            }
            key = repository_key(payload["repository"], "main", payload["operation"], {}, "1")
            job, _ = store.enqueue("repository", payload, key=key)
            names[job.public_id] = repository.package
        committed = _story(store, url, folder, repositories, names, screen)
        return _evidence(store, url, folder, repositories, before, committed, screen)


def _clear(folder: Path) -> None:
    try:
        _make_empty(folder)
    except OSError as error:
        raise DemoFailed(f"{folder} cannot be used: {error.strerror}", next_step="give another --folder") from error


def _make_empty(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()) and not (folder / MARK).exists():
        raise DemoFailed(
            f"{folder} is not empty and no earlier demo", next_step="give another --folder", path=str(folder)
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARK).write_text("made by everstep demo; it may be deleted\n", encoding="utf-8")


def _story(
    store: Store,
    url: str,
    folder: Path,
    repositories: list[DemoRepository],
    names: dict[str, str],
    screen: Screen,
) -> list[demo_evidence.Committed]:
    """Kill workers, start others, answer what is asked. Returns what was committed at each kill."""
    committed: list[demo_evidence.Committed] = []

    def killed() -> None:
        committed.append(demo_evidence.committed_steps(folder / "everstep.db"))

    worker = _Worker(folder, url, len(repositories))

    def forty() -> bool:
        return any(job.step >= KILL_AT_STEP and job.status == "running" for job in store.jobs())

    screen.title(f"A worker starts; at step {KILL_AT_STEP} of a job it is killed with SIGKILL")
    worker.run(lambda: screen.progress(store, names), until=forty)
    killed()
    victim = max(store.jobs(), key=lambda job: job.step)
    screen.kill(f"kill -9 {worker.pid}: {names[victim.public_id]} was at step {victim.step}")

    for effect, what in (("git.push", "a push"), ("announce.send", "a message")):
        screen.title(f"Another worker goes on; it dies between {what} and its confirmation")
        died = worker.run(lambda: screen.progress(store, names), crash_at=f"effect.called:{effect}")
        if not died:
            raise DemoFailed(f"no job came to {effect}", next_step=f"look at {folder}")
        killed()
        screen.kill(f"killed {worker.pid} right after {effect} had been called")

    screen.title("Another worker goes on; what nobody can know waits for a person")
    while True:
        worker.run(lambda: screen.progress(store, names))
        reviews = store.reviews()
        if not reviews:
            return committed
        for review in reviews:
            package = names[store.job_by_row(review.job_id).public_id]
            decision, value, why = demo_evidence.decide(review, folder / "outbox")
            screen.review(review, package, why)
            command = [sys.executable, "-m", "everstep", "review", decision, review.public_id, "--store", url]
            given = [] if value is None else ["--value", json.dumps(value)]
            subprocess.run([*command, *given, "--reason", why], check=True, stdout=subprocess.DEVNULL)
            screen.say(f"    everstep review {decision} {review.public_id} {' '.join(given)}")


class _Worker:
    """Worker processes, one after another."""

    def __init__(self, folder: Path, url: str, concurrency: int) -> None:
        self._command = [sys.executable, "-m", "everstep", "worker", "--until-idle", "--no-isolate", "--store", url]
        self._command += ["--config", str(folder / "langgraph.json"), "--concurrency", str(concurrency)]
        self._log = folder / "worker.log"
        self.pid = 0

    def run(
        self, tick: Callable[[], None], *, until: Callable[[], bool] | None = None, crash_at: str | None = None
    ) -> bool:
        """Run one until it is idle or dies; kill it when `until` says so. Returns whether it was killed."""
        environment = {name: value for name, value in os.environ.items() if name != "EVERSTEP_CRASH_AT"}
        if crash_at is not None:
            environment["EVERSTEP_CRASH_AT"] = crash_at
        deadline = time.monotonic() + PATIENCE_S
        with self._log.open("ab") as log:
            process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)
            self.pid = process.pid
            try:
                while process.poll() is None:
                    if until is not None and until():
                        process.send_signal(signal.SIGKILL)
                        process.wait()
                        break
                    if time.monotonic() > deadline:
                        raise DemoFailed(f"the worker was not done in {PATIENCE_S:.0f} s", next_step=f"see {self._log}")
                    tick()
                    time.sleep(0.005)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        tick()
        if process.returncode not in (0, -signal.SIGKILL):
            raise DemoFailed(f"the worker exited with {process.returncode}", next_step=f"see {self._log}")
        if until is not None and process.returncode == 0:
            raise DemoFailed("the jobs ended before the kill", next_step="give a larger --max-files")
        return process.returncode == -signal.SIGKILL


def _evidence(
    store: Store,
    url: str,
    folder: Path,
    repositories: list[DemoRepository],
    before: dict[str, list[str]],
    committed: list[demo_evidence.Committed],
    screen: Screen,
) -> int:
    screen.title("The evidence, read from git, the outbox, the journal, and LangGraph's table of checkpoints")
    jobs = {job.payload["repository"]: job for job in store.jobs()}
    rows = [
        demo_evidence.of_job(store, jobs[str(repository.remote)], repository, before[repository.package])
        for repository in repositories
    ]
    screen.table(rows)
    again = demo_evidence.ran_again(folder / "journal", committed)
    outbox = demo_evidence.outbox_lines(folder / "outbox")
    checks = {
        f"{sum(row.steps for row in rows)} steps; {len(again)} completed nodes ran twice": not again,
        f"every job took more than {KILL_AT_STEP} steps": all(row.steps > KILL_AT_STEP for row in rows),
        "exactly one new commit on each bare remote": all(row.new_commits == 1 for row in rows),
        f"{len(outbox)} messages for {len(rows)} jobs, each once": len(outbox) == len(rows) == len(set(outbox)),
        "every effect confirmed, none unknown": all(row.effects_confirmed for row in rows),
        "an unknown push settled by its probe": any("git.push by probe" in row.effects for row in rows),
        "an unknown message settled by a person": any("announce.send by person" in row.effects for row in rows),
        "all jobs done": all(row.status == "done" for row in rows),
    }
    for what, holds in checks.items():
        screen.check(what, holds)
    example = max(rows, key=lambda row: row.attempts)
    screen.say("\nLook closer:")
    screen.say(f"  export EVERSTEP_STORE={url}")
    screen.say(f"  everstep show {example.job}")
    screen.say(f"  everstep history {example.job}")
    screen.say(f"  git -C {repositories[0].remote} log --stat")
    return 0 if all(checks.values()) else 1
