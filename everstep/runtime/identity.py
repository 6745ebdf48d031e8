"""Who a worker is, and the proof that one is dead.

A worker's id names host, boot, process and a random part, so an id never comes back. The process it starts for one job
has its worker's id, a slash, and a part of its own. A lease is taken over early only on proof: the same host and
process namespace, and a process that no longer exists (or the host was booted since). Anything else waits for the
lease.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from everstep.checkpoints import deaths


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text()
    return ""


def _namespace() -> str:
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _machine_id() -> str:
    """What tells machines of one name apart (machine-id(5)); empty where there is none, as in many containers."""
    return _read("/etc/machine-id").strip()


def _machine() -> str:
    """The host and its process namespace, in eight hexadecimal digits."""
    named = f"{socket.gethostname()}|{_namespace()}|{_machine_id()}"
    return hashlib.sha256(named.encode()).hexdigest()[:8]


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
    host = socket.gethostname().replace(":", "-").replace("/", "-")
    return f"{host}:{_machine()}:{_boot()}:{_this_process()}"


def part_of(worker: str) -> str:
    """A fresh id for this process, which the worker started for one job: `worker/pid:started:random`."""
    return f"{worker}/{_this_process()}"


def _this_process() -> str:
    pid = os.getpid()
    return f"{pid}:{_started(pid)}:{secrets.token_hex(4)}"


def surely_dead(workers: Collection[str]) -> list[str]:
    """Those that provably no longer exist; of a worker and the processes it started, either all or none.

    A worker that lives looks after its processes itself. When it is gone they end as well, and only then does it show
    what it held.
    """
    dead = {worker for worker in workers if is_surely_dead(worker)}
    living = {deaths.process_of(worker) for worker in workers if worker not in dead}
    return [worker for worker in workers if worker in dead and deaths.process_of(worker) not in living]


def is_surely_dead(worker: str) -> bool:
    """Whether the worker's process provably no longer exists. False when there is no proof."""
    process, _, part = worker.partition("/")
    if was_booted_since(process):
        return True
    fields = _here(process)
    if not fields or fields[2] != _boot():
        return False
    return _is_gone(fields[3], fields[4]) and (not part or _is_gone(*part.split(":")[:2]))


def was_booted_since(worker: str) -> bool:
    """Whether the worker's machine was started anew since: that explains the death of all that ran there.

    Without an id of the machine that is no proof: every host's first process namespace looks the same, and another host
    may have this one's name.
    """
    fields = _here(worker.partition("/")[0])
    return bool(fields) and fields[2] != _boot() and bool(_machine_id())


def _here(worker: str) -> list[str]:
    """The parts of the id of a worker on this host, in this process namespace; empty for any other."""
    fields = worker.rsplit(":", 5)
    return fields if len(fields) == 6 and fields[1] == _machine() and fields[3].isdecimal() else []


def _is_gone(pid: str, started: str = "") -> bool:
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    now_started = _started(int(pid))
    return bool(started and now_started and started != now_started)
