"""Folders of PostgreSQL servers, each owned by a process of the tests as long as it lives.

A run that is killed ends nothing: its server runs on, in memory that nobody gives back. So an owner holds a lock on a
file beside its folder, which the operating system takes from it when it dies, and the next run clears what it can lock.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_PREFIX, _LOCK = "everstep-pg-", ".lock"
_PATIENCE_S = 10.0
"""How long a server may take to end in good order."""
_held: dict[Path, int] = {}


def new_folder() -> Path:
    """A folder for the files of a server, which this process owns until it calls `give_up`, or dies."""
    while True:
        lock, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_LOCK)
        if _is_ours(lock, Path(name)):
            folder = Path(name.removesuffix(_LOCK))
            folder.mkdir(mode=0o700)
            _held[folder] = lock
            return folder
        os.close(lock)  # another process took it for a dead one's, as it was not locked yet


def give_up(folder: Path) -> None:
    """Delete a folder of this process, whose server has ended."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_name(folder.name + _LOCK).unlink(missing_ok=True)
    os.close(_held.pop(folder))


def clear() -> None:
    """End the servers of processes that have died, and delete their folders; what anybody owns is left alone."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*{_LOCK}"):
        try:
            lock = os.open(path, os.O_RDWR)
        except OSError:  # it is gone, or another user's
            continue
        try:
            if _is_ours(lock, path):
                folder = path.with_name(path.name.removesuffix(_LOCK))
                _end(folder)
                shutil.rmtree(folder, ignore_errors=True)
                path.unlink(missing_ok=True)
        finally:
            os.close(lock)


def _is_ours(lock: int, path: Path) -> bool:
    """Whether nobody else holds the lock, and its file is still there; then this process holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(lock), path.stat())
    except OSError:
        return False


def server_of(folder: Path) -> int | None:
    """The process of the server of a folder, if it runs: the one that the folder names, and that works there."""
    try:
        process = int((folder / "postmaster.pid").read_text().partition("\n")[0])
        return process if Path(f"/proc/{process}/cwd").samefile(folder) else None
    except (OSError, ValueError):
        return None


def _end(folder: Path) -> None:
    if (process := server_of(folder)) is None:
        return
    for number in (signal.SIGINT, signal.SIGKILL):  # a fast shutdown takes the server's shared memory along
        with suppress(ProcessLookupError):
            os.kill(process, number)
        end = time.monotonic() + _PATIENCE_S
        while server_of(folder) == process and time.monotonic() < end:
            time.sleep(0.01)
