"""`everstep` in a process of its own that has its imports already: it is forked, where starting Python takes a second.

Arguments, folder, environment, input, output, exit code and signals are those of a process that was started. Only what
Python reads before it runs anything is not, and a new record is a copy of one: tests of these start a process.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path

import everstep
from everstep import crash
from tests.support import migrated
from tests.support.record import CONTEXT

for _module in pkgutil.walk_packages(everstep.__path__, "everstep."):
    if not _module.name.endswith("__main__"):
        importlib.import_module(_module.name)

_starting = threading.Lock()  # starting a process asks after all others, and two must not ask after one


def run(
    arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], given: bytes, timeout: float
) -> tuple[int, bytes, bytes]:
    """Run `everstep` to its end.

    Returns:
        Its exit code (negative: the signal that ended it), and what it wrote to stdout and stderr.

    Raises:
        subprocess.TimeoutExpired: It took longer; it was killed.
    """
    with tempfile.TemporaryDirectory(prefix="everstep-command-") as place:
        streams = [Path(place) / name for name in ("stdin", "stdout", "stderr")]
        streams[0].write_bytes(given)
        process = CONTEXT.Process(target=_command, args=([*arguments], folder, dict(environment), streams))
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


def _command(arguments: list[str], folder: Path, environment: dict[str, str], streams: list[Path]) -> None:
    flags = (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2)
    become(arguments, folder, environment, [os.open(*each, 0o600) for each in zip(streams, flags, strict=True)])


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
