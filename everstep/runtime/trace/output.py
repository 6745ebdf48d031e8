"""A file that is whole or not there: written beside its place, then renamed."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from everstep.errors import FileNotWritten


def write(target: str, parts: Iterable[bytes]) -> None:
    """Write parts to a file, or to stdout for `-`.

    What a link leads to is written, with the mode it had; what is there and no regular file (a pipe, a device) is
    written where it is.

    Raises:
        FileNotWritten: The file cannot be written; one that was there is as it was.
    """
    if target == "-":
        if sys.stdout is None:
            raise FileNotWritten("stdout cannot be written: it is closed", next_step="name a file, or open stdout")
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    try:
        mode = _mode(target)
        if mode is not None and not stat.S_ISREG(mode):
            with open(target, "wb") as there:
                there.writelines(parts)
        else:
            _replace(Path(os.path.realpath(target)), mode, parts)
    except OSError as error:
        raise FileNotWritten(
            f"{target} cannot be written: {error.strerror}",
            next_step="name a file in a folder that exists, is writable and has room",
            path=target,
        ) from error


def _mode(target: str) -> int | None:
    """The mode of what the name leads to; None if nothing is there."""
    try:
        return os.stat(target).st_mode
    except FileNotFoundError:
        return None


def _replace(path: Path, mode: int | None, parts: Iterable[bytes]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.writelines(parts)
        if mode is not None:
            beside.chmod(stat.S_IMODE(mode))
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
