"""A user's folder: the graphs in it, its record, and the real `everstep` command run there as a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.checkpoints.store import Store
from tests.cli import forked
from tests.support.ending import AT_END
from tests.support.waiting import PATIENCE

PATIENCE_S = PATIENCE
COMMAND = (sys.executable, "-m", "everstep")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")

_BYTECODE = tempfile.mkdtemp(prefix="everstep-bytecode-")  # what is compiled once serves all processes of a test run
AT_END.callback(shutil.rmtree, _BYTECODE, True)


def environment(**variables: str) -> dict[str, str]:
    """A user's environment: nothing of Everstep's or of a trace backend's set, compiled code kept for the next one."""
    foreign = ("EVERSTEP_", "OTEL_", "LANGFUSE_", "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "PYTHONPYCACHEPREFIX": _BYTECODE, **variables}


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def value(self) -> Any:
        """What it wrote to stdout, which must be JSON and nothing else."""
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        """The error it wrote to stderr as JSON, in the last line."""
        return json.loads(self.err.splitlines()[-1])["error"]


class Folder:
    """A folder to work in.

    Args:
        path: Where; it exists.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def url(self) -> str:
        """The URL of the record in it."""
        return f"sqlite:///{self.path / 'everstep.db'}"

    def write(self, **files: str) -> Folder:
        """Make Python files, named by the keywords."""
        for name, text in files.items():
            (self.path / f"{name}.py").write_text(text, encoding="utf-8")
        return self

    def configure(self, **graphs: Any) -> Folder:
        """Make a `langgraph.json` that names these graphs."""
        (self.path / "langgraph.json").write_text(json.dumps({"graphs": graphs}), encoding="utf-8")
        return self

    def copy(self, to: Path) -> Folder:
        """The same folder at another place, with a record of its own."""
        shutil.copytree(self.path, to)
        return Folder(to)

    def run(
        self,
        *arguments: str,
        given: str | bytes = b"",
        unprivileged: bool = False,
        stdout: int | None = None,
        **variables: str,
    ) -> Ran:
        """Run `everstep` with these arguments and wait for it.

        Args:
            *arguments: Of the command.
            given: Its standard input.
            unprivileged: Hold it to file permissions, even when the tests run as root.
            stdout: A file descriptor to write to; captured when omitted.
            **variables: Environment variables.
        """
        entered = given.encode() if isinstance(given, str) else given
        if stdout is None and not any(name.startswith("PYTHON") for name in variables):
            code, out, err = forked.run(
                arguments,
                folder=self.path,
                environment=environment(**variables),
                given=entered,
                timeout=PATIENCE_S,
                unprivileged=unprivileged,
            )
            return Ran(code, out.decode(), err.decode())
        assert not unprivileged
        ran = subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.path,
            env=environment(**variables),
            input=entered,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
            check=False,
        )
        encoding = variables.get("PYTHONIOENCODING", "utf-8").partition(":")[0]
        return Ran(ran.returncode, (ran.stdout or b"").decode(encoding), ran.stderr.decode(encoding))

    def all(self, *commands: Sequence[str], unprivileged: bool = False) -> list[Ran]:
        """Run several commands at once; the results are in the order of the commands."""
        with ThreadPoolExecutor(max_workers=4) as threads:
            return list(threads.map(lambda arguments: self.run(*arguments, unprivileged=unprivileged), commands))

    def json(self, *arguments: str) -> Any:
        """What a command that must exit 0 says with `--json`."""
        ran = self.run(*arguments, "--json")
        assert ran.code == 0, ran
        return ran.value

    def all_json(self, *commands: Sequence[str]) -> list[Any]:
        """What several commands, run at once, say with `--json`; each must exit 0."""
        ran = self.all(*((*arguments, "--json") for arguments in commands))
        assert [one.code for one in ran] == [0] * len(ran), ran
        return [one.value for one in ran]

    def submit(self, graph: str, *options: str, given: str = "{}") -> str:
        """Submit a job; returns its id."""
        ran = self.run("submit", graph, "--input", given, *options)
        assert ran.code == 0, ran
        return ran.out.strip()

    def enqueue(self, *graphs: str) -> dict[str, str]:
        """Put a job of each graph into the record, without the command; returns the ids by graph."""
        with Store.open(self.url) as store:
            return {graph: store.enqueue(graph, {}).job.public_id for graph in graphs}

    @contextmanager
    def worker(self, *options: str, **variables: str) -> Generator[Worker]:
        """A worker process for the time of a block; whatever is left of it is killed after it."""
        arguments = ["worker", "--json", *options]
        process = forked.Started(arguments, folder=self.path, environment=environment(**variables), with_errors=True)
        deadline = threading.Timer(PATIENCE_S, process.kill)
        deadline.start()
        try:
            yield Worker(process)
        finally:
            deadline.cancel()
            process.kill()
            process.wait()
            process.close()


class Worker:
    """A worker process and what it tells: a line of JSON for each job it claims or settles."""

    def __init__(self, process: forked.Started) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []

    def until(self, enough: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Read what it tells until that is enough; fails when the worker ends before."""
        while not enough(self.events):
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(f"the worker ended: {self.process.stderr and self.process.stderr.read()}")
            self.events.append(json.loads(line))
        return self.events

    def until_settled(self, *jobs: str) -> dict[str, str]:
        """Read until each of these jobs was settled; returns what as, by id."""
        self.until(lambda events: set(jobs) <= {event["id"] for event in events if event["event"] != "claimed"})
        return {event["id"]: event["event"] for event in self.events if event["event"] != "claimed"}

    def until_claimed(self, *jobs: str) -> None:
        """Read until each of these jobs was claimed."""
        self.until(lambda events: set(jobs) <= {event["id"] for event in events if event["event"] == "claimed"})


def times(value: Any) -> Iterator[Any]:
    """Everything in a JSON value whose name says that it is a time."""
    if isinstance(value, dict):
        for name, member in value.items():
            if name in ("at", "lease_until") or name.endswith("_at"):
                yield member
            else:
                yield from times(member)
    elif isinstance(value, list):
        for member in value:
            yield from times(member)


def is_refused(ran: Ran, code: int, error: str) -> None:
    """Assert that a command was refused as it should be: the exit code, the error's code, a next step, no traceback."""
    assert "Traceback" not in ran.out + ran.err, ran
    assert ran.code == code, ran
    assert ran.out == "", ran
    assert f"[{error}]" in ran.err, ran
    assert re.search(r"^next: +\S", ran.err, re.MULTILINE), ran
