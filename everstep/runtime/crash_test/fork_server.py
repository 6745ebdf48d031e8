"""A process that forks workers: it has Everstep and LangGraph imported, and nothing of the user's.

Every worker imports the user's code afresh, as after a real restart; what a fork saves is the second that LangGraph
takes to load. It has a single thread, so forking is sound. Orders come as lines of JSON on stdin, answers go as lines
to stdout; when stdin ends, whatever still runs is killed with everything it started.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from types import FrameType
from typing import Any

from everstep.runtime.crash_test.order import Order
from everstep.runtime.crash_test.watched_worker import work


def serve() -> None:
    """Fork a worker for each order until stdin ends.

    Orders: `{"id": n, "work": {…}}` starts one, `{"id": n, "kill": true}` kills it. Answers: `{"id": n, "code": c}`,
    when it ended; negative codes are signals.
    """
    answers = os.dup(1)
    os.set_inheritable(answers, False)
    os.dup2(2, 1)
    wakes, waker = socket.socketpair()
    for end in (wakes, waker):
        end.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, int] = {}
    waiting = b""
    gc.collect()
    gc.freeze()
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(wakes, selectors.EVENT_READ)
        while True:
            for ready, _ in selector.select():
                if ready.fileobj is wakes:
                    wakes.recv(4096)
                    continue
                chunk = os.read(0, 65536)
                if not chunk:
                    _kill_all(running)
                    return
                *lines, waiting = (waiting + chunk).split(b"\n")
                for line in lines:
                    _obey(json.loads(line), running)
            for pid, code in _ended(running):
                os.write(answers, json.dumps({"id": running.pop(pid), "code": code}).encode() + b"\n")


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """SIGCHLD: the wake-up descriptor tells."""


def _obey(message: dict[str, Any], running: dict[int, int]) -> None:
    if message.get("kill"):
        for pid, identifier in running.items():
            if identifier == message["id"]:
                _kill_group(pid)
        return
    pid = os.fork()
    if pid == 0:
        _become_worker(Order(**message["work"]))
    running[pid] = message["id"]


def _become_worker(order: Order) -> None:
    """Leave the server behind and work; never returns."""
    code = 70
    try:
        os.setsid()  # a group of its own, so that what it starts can be ended with it
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.default_int_handler)
        os.closerange(3, 64)
        _redirect(os.devnull, os.O_RDONLY, 0)
        _redirect(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 1)
        os.dup2(1, 2)
        code = work(order)
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code & 0xFF)


def _redirect(path: str, flags: int, to: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, to)
    os.close(opened)


def _ended(running: dict[int, int]) -> list[tuple[int, int]]:
    """The workers that ended, with their exit codes; what they had started is killed."""
    ended: list[tuple[int, int]] = []
    for pid in running:
        if hasattr(os, "waitid"):  # not on macOS before Python 3.13
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill_group(pid)  # before it is reaped: until then no other group can have its number
        reaped, status = os.waitpid(pid, os.WNOHANG)
        if reaped:
            ended.append((pid, os.waitstatus_to_exitcode(status)))
    return ended


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):  # it may not have made its group yet
        os.kill(pid, signal.SIGKILL)


def _kill_all(running: dict[int, int]) -> None:
    for pid in running:
        _kill_group(pid)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    serve()
