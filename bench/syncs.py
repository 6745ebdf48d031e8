"""How often a process tree asks the disk to sync, counted by strace where there is one; counts do not wander."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from bench.processes import OWN, run

_LINE = re.compile(r"^\s*\S+\s+\S+\s+\S+\s+(\d+)\s+(?:\d+\s+)?(?:fsync|fdatasync|sync_file_range)$", re.MULTILINE)

_STRACE = ["strace", "-f", "--seccomp-bpf"]
"""It stops for the calls that are counted alone. Without the filter (strace 5.3) each call of the process stops it, and
what is slowed down so shares its commits otherwise."""


@cache
def can_count() -> bool:
    """Whether strace is there and may trace."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run([*_STRACE, "-c", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0


def count(target: str, report: Path, **arguments: object) -> int:
    """How many syncs a function in a process of Everstep's environment makes, from its start to its end."""
    before = [*_STRACE, "-c", "-e", "trace=fsync,fdatasync,sync_file_range", "-o", str(report)]
    run(OWN, target, before, **arguments)
    return sum(int(found) for found in _LINE.findall(report.read_text()))
