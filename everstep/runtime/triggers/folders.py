"""Files in a watched folder: which there are, which of them are complete, and the event of one.

A file is complete when its size and time of change have stayed the same for as long as the trigger says. Hidden files
and names that say that somebody is still writing (`*.part`, `*.tmp`, …) never are, so a writer that renames its file
into place is understood as well. Links are not followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from everstep.clock import rfc3339
from everstep.runtime.triggers.incoming import Incoming, shortened


@dataclass(frozen=True)
class Version:
    """What tells that a file was changed: its size in bytes, and its time of change in nanoseconds."""

    size: int
    modified_ns: int


def present(
    folder: Path, patterns: Sequence[str], ignore: Sequence[str] = (), *, recursive: bool = False
) -> dict[str, Version]:
    """The files that are wanted, by their path within the folder.

    Args:
        folder: The folder.
        patterns: Names that are wanted.
        ignore: Names that are not.
        recursive: Whether folders within it count.

    Raises:
        OSError: The folder cannot be read.
    """
    return dict(_walk(folder, "", patterns, ignore, recursive))


def _walk(
    folder: Path, below: str, patterns: Sequence[str], ignore: Sequence[str], recursive: bool
) -> Iterator[tuple[str, Version]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            place = below + entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    if recursive:
                        yield from _walk(folder / entry.name, f"{place}/", patterns, ignore, recursive)
                elif entry.is_file(follow_symlinks=False) and _is_wanted(entry.name, patterns, ignore):
                    found = entry.stat(follow_symlinks=False)
                    yield place, Version(found.st_size, found.st_mtime_ns)
            except FileNotFoundError:  # it went while we looked
                continue


def _is_wanted(name: str, patterns: Sequence[str], ignore: Sequence[str]) -> bool:
    return any(fnmatchcase(name, one) for one in patterns) and not any(fnmatchcase(name, one) for one in ignore)


class Settling:
    """Tells which files have come to rest.

    Args:
        settle_s: Seconds for which they must not have changed.
    """

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._since: dict[str, tuple[Version, float]] = {}
        self._taken: dict[str, Version] = {}

    def look(self, found: Mapping[str, Version], now: float) -> dict[str, Version]:
        """The files that are complete and were not taken as they are.

        Args:
            found: The files that are there.
            now: Seconds of a clock that only goes forward.
        """
        self._taken = {place: version for place, version in self._taken.items() if found.get(place) == version}
        since: dict[str, tuple[Version, float]] = {}
        for place, version in found.items():
            if place not in self._taken:
                seen, at = self._since.get(place, (version, now))
                since[place] = (version, at if seen == version else now)
        self._since = since
        return {place: version for place, (version, at) in since.items() if now - at >= self._settle_s}

    def take(self, place: str, version: Version) -> None:
        """A file was taken as it is; it is told of again when it changes."""
        self._taken[place] = version
        self._since.pop(place, None)

    def rests_in(self, now: float) -> float | None:
        """In how many seconds the next file may be complete; None if none is on its way."""
        moments = [at + self._settle_s - now for _, at in self._since.values()]
        return max(min(moments), 0.0) if moments else None


def event_of(folder: Path, place: str, version: Version) -> Incoming:
    """The event that a file is there, or was changed. Its content stays where it is."""
    modified = version.modified_ns // 1_000_000
    body = {
        "path": str(folder / place),
        "name": place.rpartition("/")[2],
        "relative_path": place,
        "size": version.size,
        "modified_at": rfc3339(modified),
    }
    return Incoming(shortened(f"{place}:{version.modified_ns}:{version.size}"), {}, body, modified)
