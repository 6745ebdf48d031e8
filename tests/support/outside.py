"""The outside world of the test graphs: a file each job appends to, which no checkpoint can undo; and its failures."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from everstep import effect


class Once:
    """Raises its error the first time, or the first few times, it is called."""

    def __init__(self, error: BaseException, times: int = 1) -> None:
        self.error, self.left = error, times

    def __call__(self) -> None:
        if self.left:
            self.left -= 1
            raise self.error


def happened(world: str) -> list[str]:
    """What was done to the world so far, in order."""
    path = Path(world)
    return path.read_text().splitlines() if path.exists() else []


def note(world: str, line: str) -> None:
    """Append a line, durably and whole."""
    with open(world, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def _has(world: str, line: str) -> str | None:
    return line if line in happened(world) else None


@effect("world.act", probe=_has)
def act(world: str, line: str) -> str:
    """An effect with a probe."""
    note(world, line)
    return line


async def _has_async(world: str, line: str) -> str | None:
    return _has(world, line)


@effect("world.act_async", probe=_has_async)
async def act_async(world: str, line: str) -> str:
    """An async effect with an async probe."""
    note(world, line)
    return line


@effect("world.act_blindly")
def act_blindly(world: str, line: str) -> str:
    """An effect that nobody can look at."""
    note(world, line)
    return line


@effect("world.act_approved", probe=_has, approval=True)
def act_approved(world: str, line: str) -> str:
    """An effect with a probe that a person must approve."""
    note(world, line)
    return line


@effect("world.act_approved_blindly", approval=True)
def act_approved_blindly(world: str, line: str) -> str:
    """An effect that a person must approve and nobody can look at."""
    note(world, line)
    return line
