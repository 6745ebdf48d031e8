"""A job that runs in a process of its own, as its worker sees it: starts it, passes a drain on, and knows how it ended.

The process keeps the lease itself, so one that stands still loses it, as a worker would. What it cannot say any more
when it ends, the worker writes: that it died, and how.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from sqlalchemy import Connection

from everstep.checkpoints import deaths, jobs
from everstep.checkpoints.deaths import Death
from everstep.checkpoints.jobs import Job, LostClaim
from everstep.checkpoints.payload import without_secrets
from everstep.checkpoints.sqlite import Sqlite
from everstep.checkpoints.store import Store
from everstep.errors import StoreUnavailable
from everstep.observability import metric_names
from everstep.runtime.errand import DRAIN, Lines, Order, Voice, Word
from everstep.runtime.leg_spans import DeadLegs
from everstep.runtime.run import SETTLE_RETRY_S, Surroundings, about

logger = logging.getLogger("everstep.worker")

START_S = 120.0
"""How long a process may take to begin; a loaded machine is slow to start Python."""
CANCEL_S = 60.0
"""How long a cancelled job may take to end, before its process is killed."""
EXIT_S = 10.0
"""How long a process may take to exit after it settled its job; threads of a node may hold it."""
TRY_AGAIN_MS = 15_000
"""When a job whose process could not begin is tried again."""
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True)
class _End:
    """How a process ended: its exit code (negative: a signal; None: nobody knows), and the most memory it had."""

    code: int | None
    peak_memory_bytes: int | None


class IsolatedRun:
    """One claimed job under way in a process of its own; the counterpart of `Run`.

    Attributes:
        job: The job as claimed.
        lost: Whether its claim was lost.
        settled: The job as it was settled, once it was.
        began: Whether its process began to run the job.
        failed_start: Why it did not, where it could not.

    Args:
        around: What it shares with other runs of this worker.
        job: The job as claimed.
        lease_ms: Length of the lease, milliseconds.
        policies: What `everstep.toml` said, as JSON.
    """

    def __init__(self, around: Surroundings, job: Job, *, lease_ms: int, policies: str) -> None:
        configuration = around.graphs.configuration
        if configuration is None:
            raise ValueError("a process of its own can only load graphs that a configuration file names")
        self.job = job
        self.lost = False
        self.settled: Job | None = None
        self._around = around
        self._order = Order(
            _url(around.store),
            str(Path(configuration.path).absolute()),
            job.id,
            job.claim_no,
            around.worker,
            os.getpid(),
            lease_ms,
            policies,
            sys.path,
            around.measures.is_on,
        )
        self._legs = DeadLegs(around.tracing)
        self._task: asyncio.Task[None] | None = None
        self._voice: Voice | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._draining = False
        self.began = False
        self.failed_start = ""
        self._said: dict[str, Any] = {}
        self._killed = ""
        self._deadline = time.monotonic() + START_S
        self._deadline_why = f"did not begin within {START_S:.0f} s"

    def start(self, over: Callable[[IsolatedRun], None]) -> None:
        """Begin, on the running loop; `over` is called when the process has ended."""

        async def run() -> None:
            try:
                with about(self.job, worker=self._around.worker):
                    await self._run()
            except asyncio.CancelledError:
                raise
            except Exception:
                logger.exception("job %s: its process ended, which could not be noted", self.job.public_id)
            finally:
                over(self)

        self._task = asyncio.create_task(run(), name=f"job {self.job.public_id}")

    async def wait(self) -> None:
        """Until it is over; raises nothing but the caller's own cancellation."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def drain(self) -> None:
        """Let the process give the job back at its next step."""
        self._draining = True
        if self._voice is not None:
            with contextlib.suppress(OSError):  # it has just ended
                self._voice.send(DRAIN)

    def end(self) -> None:
        """The worker is being stopped: end now."""
        if self._task is not None:
            self._task.cancel()

    def beat(self, claim_no: int | None, cancel_requested: bool) -> None:
        """The worker's heartbeat says nothing here: the process has its own."""

    # ---- the process

    async def _run(self) -> None:
        try:
            ended, reports = self._begin()
        except OSError as error:
            self.failed_start = f"could not be started ({error})"
            await self._give_back(f"no process could be started for it: {error}")
            return
        loop = asyncio.get_running_loop()
        lines = Lines()

        def hear() -> None:
            with contextlib.suppress(BlockingIOError):
                while chunk := os.read(reports, 65536):
                    for message in lines.take(chunk):
                        self._hear(Word(**message))
                loop.remove_reader(reports)

        loop.add_reader(reports, hear)
        try:
            while not ended.done():
                await asyncio.wait([ended], timeout=_LOOK_EVERY_S)
                if not ended.done() and time.monotonic() > self._deadline:
                    self._kill(self._deadline_why)
            hear()
        except asyncio.CancelledError:
            self._kill("was ended with its worker")
            await asyncio.shield(ended)
            hear()
            if self.settled is None and not self.lost:
                await asyncio.shield(self._give_back("its worker was stopped", now=True))
            raise
        finally:
            loop.remove_reader(reports)
            os.close(reports)
            if self._voice is not None:
                self._voice.close()
                self._voice = None
        await self._settle(ended.result())

    def _begin(self) -> tuple[asyncio.Future[_End], int]:
        """Start the process and send it its order; what it says can be read from the descriptor."""
        orders, to_it = os.pipe()
        reports, from_it = os.pipe()
        try:
            safe = [] if {"", os.getcwd()} & set(sys.path) else ["-P"]  # what lies in the folder hides no module
            command = [sys.executable, *safe, "-m", "everstep.runtime.isolated", str(orders), str(from_it)]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=_descriptor(sys.stdout, 1),
                stderr=_descriptor(sys.stderr, 2),
                pass_fds=(orders, from_it),
                start_new_session=True,  # Ctrl-C goes to the worker alone; and what it starts can be ended with it
            )
        except BaseException:
            os.close(to_it)
            os.close(reports)
            raise
        finally:
            os.close(orders)
            os.close(from_it)
        os.set_blocking(reports, False)
        self._voice = Voice(to_it)
        with contextlib.suppress(OSError):
            self._voice.send(self._order)
        if self._draining:
            self.drain()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[_End] = loop.create_future()

        def tell(end: _End) -> None:
            if not ended.done():
                ended.set_result(end)

        def reap(process: subprocess.Popen[bytes]) -> None:
            end = _reaped(process)
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it who would like to know
                loop.call_soon_threadsafe(tell, end)

        threading.Thread(target=reap, args=(self._process,), name="everstep-reap", daemon=True).start()
        return ended, reports

    def _hear(self, word: Word) -> None:
        now = time.monotonic()
        if word.kind in ("began", "alive") and self._said.get("cancelling") is None and self.settled is None:
            self.began = self.began or word.kind == "began"
            if self.began:
                lease_s = max(self._order.lease_ms / 1000, 2.0)
                self._deadline, self._deadline_why = now + lease_s, f"gave no sign of life for {lease_s:.0f} s"
        elif word.kind == "cancelling":
            self._deadline, self._deadline_why = now + CANCEL_S, f"did not end within {CANCEL_S:.0f} s of the request"
        elif word.kind == "draining":
            logger.info("job %s is given back at its next step", self.job.public_id)
        elif word.kind == "measured":
            name, value, *labels = word.detail
            self._around.measures.add(metric_names.BY_NAME[name], value, *labels)
        elif word.kind == "lost":
            self.lost = True
        elif word.kind == "settled":
            self._deadline, self._deadline_why = now + EXIT_S, "did not exit after its job was settled"
            self.settled = Job(**word.detail)
            self._around.tell(self.settled.status, self.settled)
        self._said[word.kind] = word.detail or True

    def _kill(self, why: str) -> None:
        """Kill the process, and what it started; its end is noticed as any other."""
        if self._process is None or self._process.returncode is not None or self._killed:
            return
        logger.warning("job %s: its process %d %s; it is killed", self.job.public_id, self._process.pid, why)
        self._killed = why
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGKILL)  # Popen's own way would take its exit code from `_reaped`

    # ---- what is written when the process did not

    async def _settle(self, end: _End) -> None:
        self._around.tracing.news()  # whatever it wrote
        if self.settled is not None or self.lost:
            if self.lost:
                logger.warning("job %s was taken over; its process has ended", self.job.public_id)
            return
        unsettled = self._said.get("unsettled")
        if not self.began:
            self.failed_start = self._killed or _in_words(end.code)
            await self._give_back(f"its process {self.failed_start} before it began")
        elif unsettled is not None and unsettled["unavailable"]:
            await self._give_back("its process could not reach the record")
        else:
            await self._died(self._death(end, self._killed or self._said_how() or _in_words(end.code)))

    def _said_how(self) -> str:
        """How the process ended, as far as it could say so itself."""
        if unsettled := self._said.get("unsettled"):
            return f"could not settle it ({without_secrets(unsettled['error'])})"
        raised = self._said.get("raised")
        return f"{deaths.ENDED_BY} {without_secrets(raised)}" if raised else ""

    def _death(self, end: _End, how: str) -> Death:
        signalled = end.code is not None and end.code < 0
        return Death(
            worker=self._around.worker,
            how=how,
            signal=_signal_name(-end.code) if end.code is not None and signalled else None,
            exit_code=None if signalled else end.code,
            peak_memory_bytes=end.peak_memory_bytes,
        )

    async def _died(self, death: Death) -> None:
        now = self._around.store.clock.now_ms()

        def operation(connection: Connection) -> Job:
            held = jobs.get(connection, self.job.id)
            after = deaths.record(connection, self.job, death, now=now, actor=self._around.worker)
            self._legs.died(connection, held, f"its process {death.how}", after.status == "pending", now=now)
            return after

        def log(settled: Job) -> None:
            if settled.status != "failed":  # that is told with its error
                logger.error("job %s: its process %s; it goes on", self.job.public_id, death.how)

        await self._write(operation, log)

    async def _give_back(self, reason: str, *, now: bool = False) -> None:
        logger.warning("job %s is given back: %s", self.job.public_id, reason)
        at = self._around.store.clock.now_ms()
        due, actor = at + (0 if now else TRY_AGAIN_MS), self._around.worker

        def operation(connection: Connection) -> Job:
            held = jobs.get(connection, self.job.id)
            after = deaths.give_back(connection, self.job, now=at, due=due, actor=actor, reason=reason)
            self._legs.gave_back(connection, held, reason, now=at)
            return after

        await self._write(operation)

    async def _write(
        self, operation: Callable[[Connection], Job], written: Callable[[Job], None] | None = None
    ) -> None:
        """Write it; while the record cannot be written, try again. `written` is called before the job is told of."""
        what = f"the end of the process of {self.job.public_id}"
        try:
            while True:
                try:
                    self.settled = await self._around.store.awrite(operation)
                    break
                except StoreUnavailable as error:
                    if self._draining:
                        raise
                    self._around.outage.met(what, error)
                    await asyncio.sleep(SETTLE_RETRY_S)
        except LostClaim as lost:
            self.lost = True
            logger.warning("job %s was taken over (%s)", self.job.public_id, lost)
            return
        finally:
            self._around.outage.passed(what)
        if written is not None:
            written(self.settled)
        self._around.tell(self.settled.status, self.settled)


def _url(store: Store) -> str:
    """The record's URL, wherever the process that opens it stands."""
    return f"sqlite:///{store.path.absolute()}" if isinstance(store.database, Sqlite) else store.url


def _descriptor(stream: TextIO | None, otherwise: int) -> int:
    """Where a stream goes, which may have been redirected."""
    try:
        return stream.fileno() if stream is not None else otherwise
    except (OSError, ValueError):
        return otherwise


def _reaped(process: subprocess.Popen[bytes]) -> _End:
    """Wait for the end of a process; what it started and left behind ends with it."""
    try:
        if hasattr(os, "waitid"):  # not on macOS before Python 3.13
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # until it is reaped no other group can have its number
        _, status, usage = os.wait4(process.pid, 0)
    except ChildProcessError:  # somebody else in this program waits for every child
        process.returncode = 0
        return _End(None, None)
    process.returncode = os.waitstatus_to_exitcode(status)
    unit = 1 if sys.platform == "darwin" else 1024
    return _End(process.returncode, usage.ru_maxrss * unit)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _in_words(code: int | None) -> str:
    if code is None:
        return "is gone"
    return deaths.killed_by(_signal_name(-code)) if code < 0 else f"exited with code {code}"
