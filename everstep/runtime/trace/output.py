"""A file that is whole or not there: written beside its place, then renamed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from everstep.errors import FileNotWritten


def write(target: str, parts: Iterable[bytes]) -> None:
    """Write parts to a file, or to stdout for `-`.

    Raises:
        FileNotWritten: The file cannot be written; one that was there is as it was.
    """
    if target == "-":
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    path = Path(target)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            file.writelines(parts)
        beside.replace(path)
    except OSError as error:
        raise FileNotWritten(
            f"{target} cannot be written: {error.strerror}",
            next_step="name a file in a folder that exists, is writable and has room",
            path=target,
        ) from error
    finally:
        beside.unlink(missing_ok=True)
