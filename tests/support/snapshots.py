"""A record and the outside world's files as they were at a moment, to go on from there as often as wanted.

A life that is to differ from another only in its later part need not live the earlier one again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from everstep.checkpoints.store import Store


@dataclass(frozen=True)
class Snapshot:
    """What was kept.

    Attributes:
        origin: The copy of the record: a file, or the URL of a database.
        world: The outside world's file, whose name the record knows.
        files: What was in it, and in those beside it whose names begin so.
    """

    origin: str
    world: str
    files: dict[Path, bytes]

    @contextmanager
    def restored(self, folder: Path) -> Iterator[Store]:
        """A record that is as it was then, and the world likewise, at its old place.

        Args:
            folder: Where a record that is a file goes.
        """
        for file in _files(self.world):
            file.unlink()
        for file, content in self.files.items():
            file.write_bytes(content)
        if self.origin.startswith("postgresql"):
            from tests.support.postgres import copy_of

            with copy_of(self.origin) as url, Store.open(url) as store:
                yield store
            return
        path = folder / "record.db"
        path.write_bytes(Path(self.origin).read_bytes())
        with Store.open(f"sqlite:///{path}") as store:
            yield store


def snapshot(url: str, folder: Path, world: str) -> Snapshot:
    """Keep a record that nobody has open, and the world.

    Args:
        url: The record.
        folder: Where a copy that is a file goes.
        world: The outside world's file.
    """
    files = {file: file.read_bytes() for file in _files(world)}
    if url.startswith("postgresql"):
        from tests.support.postgres import kept_copy

        return Snapshot(kept_copy(url), world, files)
    number = len(list(folder.glob("kept-*.db")))
    origin = folder / f"kept-{number}.db"
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as source, closing(sqlite3.connect(origin)) as copy:
        source.backup(copy)
    return Snapshot(str(origin), world, files)


def _files(world: str) -> list[Path]:
    place = Path(world)
    return [file for file in place.parent.glob(f"{place.name}*") if file.is_file()]
