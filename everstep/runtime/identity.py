"""Who a worker is, and the proof that one is dead.

A worker's id names host, boot, process and a random part, so an id never comes back. A lease is taken over early only
on proof: the same host and process namespace, and a process that no longer exists (or the host was booted since).
Anything else waits for the lease.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text()
    return ""


def _namespace() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _machine() -> str:
    """The host and its process namespace, in eight hexadecimal digits."""
    return hashlib.sha256(f"{socket.gethostname()}|{_namespace()}".encode()).hexdigest()[:8]


def _boot() -> str:
    return hashlib.sha256(_read("/proc/sys/kernel/random/boot_id").encode()).hexdigest()[:8]


def _started(pid: int) -> str:
    """When a process started, in the kernel's ticks; `ended` if it waits to be reaped, empty if nobody can tell."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) <= 19:
        return ""
    return "ended" if fields[0] in ("Z", "X") else fields[19]


def worker_id() -> str:
    """A fresh id for a worker in this process: `host:machine:boot:pid:started:random`."""
    host = socket.gethostname().replace(":", "-")
    pid = os.getpid()
    return f"{host}:{_machine()}:{_boot()}:{pid}:{_started(pid)}:{secrets.token_hex(4)}"


def is_surely_dead(worker: str) -> bool:
    """Whether the worker's process provably no longer exists. False when there is no proof."""
    parts = worker.rsplit(":", 5)
    if len(parts) != 6 or parts[1] != _machine() or not parts[3].isdecimal():
        return False
    _, _, boot, pid, started, _ = parts
    if boot != _boot():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    now_started = _started(int(pid))
    return bool(started and now_started and started != now_started)
