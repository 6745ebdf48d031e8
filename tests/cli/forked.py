"""`everstep` in a process of its own that has its imports already: it is forked, where starting Python takes a second.

Arguments, folder, environment, input, output, exit code and signals are those of a process that was started. Only what
Python reads before it runs anything is not, and a new record is a copy of one: tests of these start a process.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, cast

import everstep
from everstep import crash
from tests.support import migrated
from tests.support.record import CONTEXT
from tests.support.waiting import PATIENCE

for _module in pkgutil.walk_packages(everstep.__path__, "everstep."):
    if not _module.name.endswith("__main__"):
        importlib.import_module(_module.name)

_starting = threading.Lock()  # starting a process asks after all others, and two must not ask after one


def run(
    arguments: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    given: bytes,
    timeout: float,
    unprivileged: bool = False,
) -> tuple[int, bytes, bytes]:
    """Run `everstep` to its end; where it is unprivileged, file permissions hold for it even if root runs the tests.

    Returns:
        Its exit code (negative: the signal that ended it), and what it wrote to stdout and stderr.

    Raises:
        subprocess.TimeoutExpired: It took longer; it was killed.
    """
    with tempfile.TemporaryDirectory(prefix="everstep-command-") as place:
        streams = [Path(place) / name for name in ("stdin", "stdout", "stderr")]
        streams[0].write_bytes(given)
        told = ([*arguments], folder, dict(environment), streams, unprivileged and os.geteuid() == 0)
        process = CONTEXT.Process(target=_command, args=told)
        with _starting:
            process.start()
        ended = wait([process.sentinel], timeout)
        with _starting:
            if not ended:
                process.kill()
            process.join()
        if not ended or process.exitcode is None:
            raise subprocess.TimeoutExpired(["everstep", *arguments], timeout)
        return process.exitcode, *(stream.read_bytes() for stream in streams[1:])


class Running:
    """A command that runs, with what `subprocess.Popen` has to wait for it and to end it.

    Args:
        arguments: Of the command.
        folder: Where it works.
        environment: All of its environment.
        streams: File descriptors that become its input, its output and its error output; they stay open here.
    """

    def __init__(
        self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], streams: Sequence[int]
    ) -> None:
        passed = [_Passed(number) for number in streams]
        told = ([*arguments], folder, dict(environment), passed)
        self._process = CONTEXT.Process(target=become, args=told, daemon=True)
        with _starting:
            self._process.start()
        self.pid = cast(int, self._process.pid)

    @property
    def returncode(self) -> int | None:
        """Its exit code once it has ended; negative: the signal that ended it."""
        with _starting:
            return self._process.exitcode

    def poll(self) -> int | None:
        """As `returncode`."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, when it has ended."""
        if not wait([self._process.sentinel], timeout):
            raise subprocess.TimeoutExpired("everstep", timeout or 0.0)
        code = self.returncode
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it has not ended."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class Started(Running):
    """A command that runs, with what `subprocess.Popen` has for one whose output is text in pipes, and no input.

    Args:
        arguments: Of the command.
        folder: Where it works.
        environment: All of its environment.
        with_errors: Whether its error output is kept apart, for `stderr`; otherwise it goes where the tests' goes.
    """

    def __init__(
        self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], with_errors: bool = False
    ) -> None:
        pipes = [os.pipe() for _ in range(1 + with_errors)]
        nothing = os.open(os.devnull, os.O_RDONLY)
        outputs = ([writer for _, writer in pipes] + [2])[:2]
        super().__init__(arguments, folder=folder, environment=environment, streams=[nothing, *outputs])
        for number in (nothing, *(writer for _, writer in pipes)):
            os.close(number)
        texts = [os.fdopen(reader, encoding="utf-8") for reader, _ in pipes]
        self.stdout, self.stderr = texts[0], texts[1] if with_errors else None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The rest of its outputs, and its end; it is killed if that takes longer."""
        deadline = threading.Timer(timeout or PATIENCE, self.kill)
        deadline.start()
        with ThreadPoolExecutor(1) as thread:
            errors = thread.submit(self.stderr.read) if self.stderr else None
            told = self.stdout.read()
            said = errors.result() if errors else ""
        self.wait()
        deadline.cancel()
        return told, said

    def close(self) -> None:
        """Close the pipes."""
        for text in (self.stdout, self.stderr):
            if text:
                text.close()


@dataclass(frozen=True)
class _Passed:
    """A file descriptor that goes to the process along with what it is told; there it is a number again."""

    number: int

    def __reduce__(self) -> Any:
        return _received, (DupFd(self.number),)


def _received(passed: Any) -> int:
    return passed.detach()


def _command(
    arguments: list[str], folder: Path, environment: dict[str, str], streams: list[Path], unprivileged: bool
) -> None:
    flags = (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2)
    opened = [os.open(*each, 0o600) for each in zip(streams, flags, strict=True)]
    if unprivileged:
        _drop_privileges()
    become(arguments, folder, environment, opened)


def _drop_privileges() -> None:
    """Take from root, and from what it starts, the right to read and write what a file's mode forbids."""
    libc = ctypes.CDLL(None, use_errno=True)
    rights = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    for right in rights:
        if libc.prctl(24, right, 0, 0, 0):  # PR_CAPBSET_DROP
            raise OSError(ctypes.get_errno(), "cannot drop a capability")
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    for each in range(3):  # those it has, may have and hands on
        sets[each] &= ~sum(1 << right for right in rights)
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "cannot drop a capability")


def become(arguments: Sequence[str], folder: Path, environment: Mapping[str, str], streams: Sequence[int]) -> None:
    """Go on as `everstep`; ends with `SystemExit`.

    Args:
        arguments: Of the command.
        folder: Where it works.
        environment: All of its environment.
        streams: File descriptors that become its input, its output and its error output; they are closed.
    """
    for number, given in enumerate(streams):
        os.dup2(given, number)
        os.close(given)
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    crash.arm(os.environ.get(crash.VARIABLE))
    migrated.share()
    sys.argv = ["everstep", *arguments]
    sys.path[0] = str(folder)
    importlib.import_module("everstep.cli.main").main()
