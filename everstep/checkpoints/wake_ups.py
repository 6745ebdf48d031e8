"""Wake-ups between processes that share a record in SQLite: after a commit that made work ready, a datagram to each.

Every worker binds a datagram socket in one folder of its user under the system's folder for temporary files. It is
named by the record's file itself (device and inode), so who opens the same file finds the same sockets, by whatever
path, link or mount. A wake-up may come twice or for nothing; where none can come (no such sockets, another user's
process, another folder for temporary files) workers look by themselves.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

WORK = "everstep"
POSSIBLE = hasattr(socket, "AF_UNIX") and hasattr(os, "O_DIRECTORY")
LEFTOVER_S = 10.0
"""From which age a socket with nobody behind it is a leftover, and not one that is being bound."""
MOMENT_S = 0.001
"""Wake-ups so close to each other are one."""
SETTLED_NS = 50_000_000
"""How old a folder's last change must be for its time to tell of the next one: clocks of file systems tick slowly."""
LONGEST_WAIT_S = 10.0
"""When a thread that listens sees at the latest that it should stop, should the system not tell it."""


def folder() -> Path:
    """Where the sockets of this user are.

    Raises:
        OSError: The system has no folder for temporary files, or no such sockets.
    """
    if not POSSIBLE:
        raise OSError("no such sockets on this system")
    return Path(_folder())


def _folder() -> str:
    return f"{tempfile.gettempdir()}/everstep-{os.geteuid()}"  # to join it takes longer than the look


class WakeUps:
    """The wake-ups of one record.

    Args:
        record: The record's file; it need not be there yet.
    """

    def __init__(self, record: Path) -> None:
        self._record = record
        self._name: str | None = None
        self._sender: socket.socket | None = None
        self._looked_at: tuple[int, int] | None = None
        self._listening: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """What the names of this record's sockets begin with.

        Raises:
            OSError: The record is not there.
        """
        if self._name is None:
            file = self._record.stat()
            self._name = hashlib.sha256(f"{file.st_dev}:{file.st_ino}".encode()).hexdigest()[:12]
        return self._name

    def ring(self, topic: str = WORK) -> None:
        """Wake all that listen for a topic; for the one thread that commits. Never waits, never fails."""
        try:
            if POSSIBLE and not self._nobody(topic):
                self._ring(topic)
        except OSError:
            pass

    def _nobody(self, topic: str) -> bool:
        """Whether nobody listens, by the last look at the folder; most commits tell of what nobody waits for."""
        found = os.stat(_folder(), follow_symlinks=False)
        return self._looked_at == (found.st_ino, found.st_mtime_ns) and topic not in self._listening

    def _ring(self, topic: str) -> None:
        with _opened() as (place, descriptor):
            found = os.fstat(descriptor)
            has_settled = time.time_ns() - found.st_mtime_ns > SETTLED_NS
            self._looked_at = (found.st_ino, found.st_mtime_ns) if has_settled else None
            names = os.listdir(descriptor)
            mine = (name.removeprefix(f"{self.name}-") for name in names if name.startswith(f"{self.name}-"))
            self._listening = frozenset(name.partition("-")[0] for name in mine)
            for name in names:
                if name.startswith(f"{self.name}-{topic}-"):
                    if self._sender is None:
                        self._sender = _socket()
                        self._sender.setblocking(False)
                    try:
                        self._sender.sendto(b"\0", str(place / name))
                    except ConnectionRefusedError:
                        _forget(descriptor, name)
                    except OSError:  # full: it has wake-ups enough; or just gone
                        pass

    @contextmanager
    def listen(self, wake: Callable[[], None], topic: str = WORK) -> Generator[bool]:
        """While entered, call `wake` on a thread of its own when somebody rings for the topic.

        Yields:
            Whether that is possible here.
        """
        try:
            receiver, path = self._bind(topic)
        except OSError:
            yield False
            return
        stop = threading.Event()

        def hear() -> None:
            with receiver:
                while not stop.is_set():
                    try:
                        _receive(receiver)
                    except TimeoutError:
                        continue
                    except OSError:
                        return
                    if not stop.is_set():
                        wake()
                    stop.wait(MOMENT_S)

        threading.Thread(target=hear, name="everstep-listen", daemon=True).start()
        try:
            yield True
        finally:
            stop.set()
            with suppress(OSError), _socket() as bell:  # wakes the thread; a shutdown would keep it looking in a circle
                bell.setblocking(False)
                bell.sendto(b"\0", str(path))
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close what rings."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def _bind(self, topic: str) -> tuple[socket.socket, Path]:
        with suppress(FileExistsError):
            folder().mkdir(mode=0o700)
        with _opened() as (place, descriptor):
            _sweep(place, descriptor)
            path = place / f"{self.name}-{topic}-{os.getpid()}-{secrets.token_hex(4)}"
            receiver = _socket()
            try:
                receiver.bind(str(path))
            except BaseException:
                receiver.close()
                raise
        return receiver, path


@contextmanager
def _opened() -> Generator[tuple[Path, int]]:
    """The folder and its descriptor.

    Raises:
        OSError: There is none, or it is not this user's alone: others could put the sockets of other programs there.
    """
    place = folder()
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(f"{place} is not this user's alone")
        yield place, descriptor
    finally:
        os.close(descriptor)


def _sweep(place: Path, descriptor: int) -> None:
    """Remove what killed processes left, whatever their record: nobody may ever ring for that again."""
    with _socket() as probe:
        for name in os.listdir(descriptor):
            try:
                probe.connect(str(place / name))
            except ConnectionRefusedError:
                _forget(descriptor, name)
            except OSError:
                pass


def _forget(descriptor: int, name: str) -> None:
    with suppress(OSError):
        if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mtime < time.time() - LEFTOVER_S:
            os.unlink(name, dir_fd=descriptor)


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


def _receive(receiver: socket.socket) -> None:
    """Wait for a wake-up, and take those that came with it.

    Raises:
        TimeoutError: None came for long.
    """
    receiver.settimeout(LONGEST_WAIT_S)
    receiver.recv(1)
    receiver.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            receiver.recv(1)
