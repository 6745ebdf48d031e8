"""The side of a fork server that gives the orders: thread-safe, with a time limit for each worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from everstep import crash
from everstep.errors import WorkerEnded
from everstep.runtime.crash_test.order import Order

_PROGRAM = "import sys; sys.path[:] = {path!r}; from everstep.runtime.crash_test.fork_server import serve; serve()"
GRACE_S = 10.0
TICK_S = 0.5
QUIET = {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false", "LANGFUSE_TRACING_ENABLED": "false"}
"""Hundreds of runs that are killed on purpose belong in no trace backend."""


@dataclass(frozen=True)
class Ended:
    """How a worker ended: its exit code (negative: the signal), and whether it was killed because its time was up."""

    code: int
    timed_out: bool

    @property
    def killed(self) -> bool:
        """Whether it died by SIGKILL at its crash point."""
        return self.code == -signal.SIGKILL and not self.timed_out


class ForkServer:
    """A fork server process.

    Args:
        hash_seed: Python's hash seed in its workers; it decides the order of sets, as every real restart does anew.
    """

    def __init__(self, hash_seed: int) -> None:
        environment = {name: value for name, value in os.environ.items() if name != crash.VARIABLE}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM.format(path=sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, **QUIET, "PYTHONHASHSEED": str(hash_seed)},
            start_new_session=True,  # Ctrl-C is for the command, which then ends the workers
        )
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[int]] = {}
        self._next = 0
        self._reader = threading.Thread(target=self._read, name="crash-test-answers", daemon=True)
        self._reader.start()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, order: Order, seconds: float, meanwhile: Callable[[], None]) -> Ended:
        """Run a worker to its end.

        Args:
            order: What it does.
            seconds: How long it may take; then it is killed with everything it started.
            meanwhile: Called now and then while it runs.

        Raises:
            WorkerEnded: The fork server is gone.
        """
        end: Future[int] = Future()
        with self._lock:
            self._next += 1
            identifier = self._next
            self._waiting[identifier] = end
        self._send({"id": identifier, "work": order.as_dict()})
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                return Ended(end.result(min(left, TICK_S)), timed_out=False)
            except TimeoutError:
                meanwhile()
        self._send({"id": identifier, "kill": True})
        return Ended(end.result(GRACE_S), timed_out=True)

    def close(self) -> None:
        """End it and every worker that still runs. Safe to call twice, and while other threads wait in `run`."""
        with suppress(OSError, ValueError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(GRACE_S)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            with self._lock:
                if self._process.stdin is None:
                    raise BrokenPipeError
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
                self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise self._gone() from error

    def _read(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                answer = json.loads(line)
                with self._lock:
                    end = self._waiting.pop(answer["id"])
                end.set_result(answer["code"])
        with self._lock:
            waiting = [*self._waiting.values()]
            self._waiting.clear()
        for end in waiting:
            end.set_exception(self._gone())

    def _gone(self) -> WorkerEnded:
        said = b""
        if self._process.poll() is not None and self._process.stderr is not None:
            said = self._process.stderr.read()
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        return WorkerEnded(f"the process that starts the workers is gone{': ' + last if last else ''}")
