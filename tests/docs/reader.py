"""`everstep` for a reader's shell: a program in a folder of the path that asks for a process with all imports done.

The pages of the documentation run two hundred commands. Each is a process of its own with the shell's files, folder
and environment, that gets the shell's signals and dies with the program that stands for it.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from tests.cli.forked import become
from tests.support.record import CONTEXT

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PROGRAM = """#!{python} -IS
import json, os, signal, socket, sys

with socket.socket(socket.AF_UNIX) as line:
    line.connect({place!r})
    wanted = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(line, [len(wanted).to_bytes(8, "big")], [0, 1, 2])
    line.sendall(wanted)
    for number in {signals}:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: line.sendall(bytes([number])))
    ended = os.waitstatus_to_exitcode(int.from_bytes(line.recv(8), "big"))
if ended < 0:
    signal.signal(-ended, signal.SIG_DFL) if -ended in {signals} else None
    os.kill(os.getpid(), -ended)
sys.exit(ended)
"""


@contextmanager
def program(folder: Path) -> Generator[Path]:
    """A folder for the path, with `everstep` in it.

    Args:
        folder: Where it goes; a short path, as sockets need.
    """
    place = folder / "line"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
        listening.listen(64)
        server = CONTEXT.Process(target=_serve, args=(listening,), daemon=True)
        server.start()
    path = folder / "everstep"
    path.write_text(_PROGRAM.format(python=sys.executable, place=str(place), signals=[int(each) for each in SIGNALS]))
    path.chmod(0o755)
    try:
        yield folder
    finally:
        server.kill()
        server.join()


def _serve(listening: socket.socket) -> None:
    """Fork a keeper for each program that asks."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how keepers end
    while True:
        line, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _keep(line)
        line.close()


def _keep(line: socket.socket) -> NoReturn:
    """Fork the command; pass on signals, its end to the program, and the program's end to it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(line, 8, 3)
    wanted = b""
    while len(wanted) < int.from_bytes(size, "big"):
        wanted += line.recv(1 << 20)
    arguments, folder, environment = json.loads(wanted)
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    command = os.fork()
    if command == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (line, woken, wakes):
            each.close()
        _command(arguments, Path(folder), environment, streams)
    for stream in streams:
        os.close(stream)
    with selectors.DefaultSelector() as selector:
        selector.register(line, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(64)
                elif numbers := line.recv(64):
                    for number in numbers:
                        os.kill(command, number)
                else:
                    os.kill(command, signal.SIGKILL)
                    os._exit(0)
            ended, status = os.waitpid(command, os.WNOHANG)
            if ended:
                line.sendall(status.to_bytes(8, "big"))
                os._exit(0)


def _command(arguments: list[str], folder: Path, environment: dict[str, str], streams: list[int]) -> NoReturn:
    code: Any = 1
    try:
        become(arguments, folder, environment, streams)
    except SystemExit as end:
        code = 0 if end.code is None else end.code
    except BaseException:
        traceback.print_exc()
    if not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
