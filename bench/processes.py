"""Child processes as the harness sees them: start, wait until ready, let go, take the answer; never wait for ever."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).parents[1]
OWN = sys.executable
PEERS = str(ROOT / ".venv-bench" / "bin" / "python")
PATIENCE_S = 300.0


class ChildFailed(Exception):
    """A child ended without an answer, took too long, or counted wrong.

    Args:
        reason: Why, in a line.
        said: The end of what it said on stderr.
    """

    def __init__(self, reason: str, said: str = "") -> None:
        super().__init__(reason)
        self.said = said


class Child:
    """One process that runs `module:function`; see `bench.child`.

    Args:
        python: The interpreter of the environment it needs.
        target: What it runs.
        arguments: Keyword arguments, JSON data.
        before: A command it is run under, such as `strace …`.
    """

    def __init__(self, python: str, target: str, before: Sequence[str] = (), **arguments: Any) -> None:
        self._target = target
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 — closed by `__exit__`
        hidden = ("EVERSTEP_", "OTEL_", "LANGFUSE_", "DBOS_", "PROCRASTINATE_", "PGQUEUER_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        self._process = subprocess.Popen(
            [*before, python, "-m", "bench.child", target, json.dumps(arguments)],
            cwd=ROOT,
            env={**environment, "PYTHONDONTWRITEBYTECODE": "", "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._timer = threading.Timer(PATIENCE_S, self._process.kill)
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if error is None:  # it has answered; strace has its report still to write
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(30)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def wait_until_ready(self) -> None:
        """Wait until it is set up.

        Raises:
            ChildFailed: It ended before.
        """
        while self._line() != "ready":
            pass

    def go(self) -> None:
        """Let it go on."""
        self._say("go")

    def cpu(self) -> tuple[float, float]:
        """Processor seconds it has used, and the moment that was so, in monotonic seconds."""
        self._say("cpu")
        answer = json.loads(self._line())
        return float(answer["cpu"]), float(answer["at"])

    def stop(self) -> Any:
        """Ask it to end; what it returns."""
        self._say("stop")
        return self.result()

    def result(self) -> Any:
        """What the function returned.

        Raises:
            ChildFailed: It ended without.
        """
        while True:
            line = self._line()
            if line.startswith('{"result"'):
                return json.loads(line)["result"]

    def _say(self, word: str) -> None:
        if self._process.stdin is not None:
            try:
                self._process.stdin.write(word + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise self._failure() from None

    def _line(self) -> str:
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise self._failure()
        return line.strip()

    def _failure(self) -> ChildFailed:
        self._process.wait()
        self._errors.seek(0)
        last = [line for line in self._errors.read().splitlines() if line.strip()][-12:]
        reason = last[-1] if last else "it said nothing"
        return ChildFailed(f"{self._target} ended with {self._process.returncode}: {reason}", "\n".join(last))


def run(python: str, target: str, before: Sequence[str] = (), **arguments: Any) -> Any:
    """Run a function in a process of its own, at once; what it returned."""
    with Child(python, target, before, **arguments) as child:
        child.go()
        return child.result()
