"""Where tests put their files: in memory, if the machine has it, since none of them has to outlive a power cut.

A record waits for the disk at each commit, and tests commit a hundred thousand times. `synchronous` and all else is as
shipped; only what the disk itself would take is left out. Tests of a full or a read-only disk bring their own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
ENOUGH = 4 * 1024**3
"""Bytes that all processes of the tests together stay well below."""


def use() -> None:
    """Make files of this process, and of those it starts, in memory, unless `TMPDIR` says where or there is little."""
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK) or shutil.disk_usage(MEMORY).free < ENOUGH:
        return
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None
