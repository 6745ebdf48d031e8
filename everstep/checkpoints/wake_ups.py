"""Wake-ups between processes that share a record in SQLite: after a commit that made work ready, a datagram to each.

Every worker binds a datagram socket in a folder beside the record, where SQLite's own `-wal` and `-shm` stand as well:
who opens the same file, by whatever path, link or mount, finds the same sockets, whatever its environment says of
folders for such things. The folder is its owner's alone; processes of other users neither ring nor hear. A wake-up may
come twice or for nothing, and where none can come (no such sockets, no right to the folder) workers look by themselves.
"""

from __future__ import annotations

import os
import secrets
import socket
import stat
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

POSSIBLE = hasattr(socket, "AF_UNIX") and hasattr(os, "O_DIRECTORY")
ADDRESS_BYTES = 103
"""The longest address every system takes; Linux takes a few more."""
LEFTOVER_S = 10.0
"""From which age a socket with nobody behind it is a leftover, and not one that is being bound."""
MOMENT_S = 0.001
"""Wake-ups so close to each other are one."""
BINDINGS = 10
"""How often a socket is bound anew because the folder was tidied away in that moment."""
LONGEST_WAIT_S = 10.0
"""When a thread that listens sees at the latest that it should stop, should the system not tell it."""


class WakeUps:
    """The wake-ups of one record.

    Args:
        record: The record's file.
    """

    def __init__(self, record: Path) -> None:
        real = Path(os.path.realpath(record))  # as SQLite does for what it keeps beside it
        self._folder = real.with_name(f"{real.name}-wake")
        self._sender: socket.socket | None = None

    def ring(self) -> None:
        """Wake all that listen; for the one thread that commits. Never waits, never fails."""
        with suppress(OSError), self._opened() as folder:
            for name in os.listdir(folder):
                self._ring(folder, name)

    @contextmanager
    def listen(self, wake: Callable[[], None]) -> Generator[bool]:
        """While entered, call `wake` on a thread of its own when somebody rings.

        Yields:
            Whether that is possible here.
        """
        try:
            receiver, name = self._bind()
        except OSError:  # no sockets on this file system, no room, the folder is another user's …
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
            with suppress(OSError):
                receiver.shutdown(socket.SHUT_RDWR)  # which wakes the thread
            with suppress(OSError), self._opened() as folder:
                os.unlink(name, dir_fd=folder)
            self._tidy()

    def close(self) -> None:
        """Close what rings."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    @contextmanager
    def _opened(self) -> Generator[int]:
        """The folder's descriptor.

        Raises:
            OSError: There is none, or it is not this user's alone.
        """
        if not POSSIBLE:
            raise OSError("no such sockets on this system")
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found = os.fstat(folder)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise PermissionError(f"{self._folder} is not this user's alone")
            yield folder
        finally:
            os.close(folder)

    def _address(self, folder: int, name: str) -> str:
        direct = os.path.join(self._folder, name)
        return direct if len(os.fsencode(direct)) <= ADDRESS_BYTES else f"/proc/self/fd/{folder}/{name}"

    def _ring(self, folder: int, name: str) -> None:
        if self._sender is None:
            self._sender = _socket()
            self._sender.setblocking(False)
        try:
            self._sender.sendto(b"\0", self._address(folder, name))
        except ConnectionRefusedError:  # it was killed
            with suppress(OSError):
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime < time.time() - LEFTOVER_S:
                    os.unlink(name, dir_fd=folder)
                    self._tidy()
        except OSError:  # full: it has wake-ups enough; or just gone
            pass

    def _bind(self) -> tuple[socket.socket, str]:
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        receiver = _socket()
        try:
            for again in range(BINDINGS):
                with suppress(FileExistsError):
                    self._folder.mkdir(mode=0o700)
                try:
                    with self._opened() as folder:
                        receiver.bind(self._address(folder, name))
                        break
                except FileNotFoundError:  # another one was the last to listen, and took the folder away
                    if again == BINDINGS - 1:
                        raise
        except BaseException:
            receiver.close()
            raise
        return receiver, name

    def _tidy(self) -> None:
        with suppress(OSError):  # others listen
            self._folder.rmdir()


def _socket() -> socket.socket:
    if not POSSIBLE:
        raise OSError("no such sockets on this system")
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
        while receiver.recv(1):  # nothing is received for ever once it is shut down
            pass
