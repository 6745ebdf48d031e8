"""What a worker and the process it starts for one job say to each other: one JSON object a line, over two pipes.

The worker sends the order first, then `DRAIN` if it drains; the end of that pipe means that the worker is gone. The
process answers with `Word`s. This module loads nothing heavy, so that the process shows that it lives while it loads
the rest.
"""

from __future__ import annotations

import json
import os
import select
from dataclasses import asdict, dataclass
from threading import Lock
from typing import Any, Literal

DRAIN = {"drain": True}

Kind = Literal["alive", "began", "measured", "cancelling", "draining", "settled", "lost", "raised", "unsettled"]


@dataclass(frozen=True)
class Order:
    """What the process of one job has to do.

    Attributes:
        store: URL of the record, which may hold a password: it goes through the pipe, not through the command line.
        config: The `langgraph.json`.
        job_id: Row id of the job.
        claim_no: The claim under which it runs.
        worker: Id of the worker that claimed it.
        worker_pid: Its process.
        lease_ms: Length of the lease, milliseconds.
        policies: What `everstep.toml` said, as JSON.
        path: Where the worker imports from.
        measured: Whether the worker wants to know what the process measures.
    """

    store: str
    config: str
    job_id: int
    claim_no: int
    worker: str
    worker_pid: int
    lease_ms: int
    policies: str
    path: list[str]
    measured: bool = False


@dataclass(frozen=True)
class Word:
    """What the process says.

    Attributes:
        kind: `alive`, every second; `began`, when the claim is its own; `measured`, at each observation, if the worker
            wants it and the pipe has room (the metric, the value, the labels); `cancelling`, when it saw that the job
            is to be cancelled; and at its end `settled` (with the job), `lost` (the claim), `raised` (what a node ends
            the process with, and where) or `unsettled` (with the reason).
        detail: What goes with it.
    """

    kind: Kind
    detail: Any = None


class Voice:
    """Sends lines through a pipe, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = Lock()

    def send(self, message: Order | Word | dict[str, Any]) -> None:
        """Send one line.

        Raises:
            OSError: Nobody reads any more.
        """
        fields = message if isinstance(message, dict) else asdict(message)
        line = memoryview(json.dumps(fields).encode() + b"\n")
        with self._lock:
            while line:
                line = line[os.write(self._descriptor, line) :]

    def mention(self, message: Word) -> None:
        """Send one short line if the pipe has room; what the other end does not read in time is not worth waiting for.

        Raises:
            OSError: Nobody reads any more.
        """
        line = json.dumps(asdict(message)).encode() + b"\n"
        with self._lock:  # a pipe with room takes at least PIPE_BUF bytes at once
            if len(line) <= select.PIPE_BUF and self._has_room():
                os.write(self._descriptor, line)

    def _has_room(self) -> bool:
        asking = select.poll()  # unlike `select` it takes a descriptor of any number
        asking.register(self._descriptor, select.POLLOUT)
        return any(event & select.POLLOUT for _, event in asking.poll(0))

    def close(self) -> None:
        """Say nothing more; the other end sees that."""
        with self._lock:
            os.close(self._descriptor)


class Lines:
    """Puts the lines that come through a pipe together again."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, chunk: bytes) -> list[dict[str, Any]]:
        """The messages that are complete now."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [json.loads(line) for line in lines if line]
