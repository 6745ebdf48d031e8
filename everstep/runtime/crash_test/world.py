"""The outside world of a crash test: files and folders that are put back before each run and compared after it."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from everstep.counts import counted
from everstep.errors import PayloadInvalid

TEXT_BYTES = 1_000_000
SHOWN = 80


@dataclass(frozen=True)
class Content:
    """What a file holds: its digest, and its lines if it is a text of moderate size."""

    digest: str
    lines: tuple[str, ...] | None


Manifest = dict[str, Content]
"""Files by the name they are shown under."""


def manifest(places: Iterable[tuple[str, Path]], *, run: Path) -> Manifest:
    """What is there now.

    Args:
        places: Files and folders, each with the name it is shown under.
        run: The run's part of the world; its name is the same in every manifest.
    """
    found: Manifest = {}
    for name, place in places:
        for file in _files(place):
            inside = "" if file == place else f"/{file.relative_to(place)}"
            found[name + inside] = _content(file, str(run))
    return found


def _files(place: Path) -> Iterator[Path]:
    if place.is_symlink() or not place.is_dir():
        if place.is_symlink() or place.exists():
            yield place
        return
    for folder, folders, files in os.walk(place):
        for name in sorted([*files, *(one for one in folders if (Path(folder) / one).is_symlink())]):
            yield Path(folder) / name


def _content(file: Path, run: str) -> Content:
    if file.is_symlink():
        return Content(f"a link to {os.readlink(file)}".replace(run, "{run}"), None)
    if not file.is_file():
        return Content("no regular file", None)
    data = file.read_bytes()
    lines: tuple[str, ...] | None = None
    if len(data) <= TEXT_BYTES and b"\0" not in data:
        with suppress(UnicodeDecodeError):
            text = data.decode().replace(run, "{run}")
            data, lines = text.encode(), tuple(text.splitlines())
    return Content(hashlib.sha256(data).hexdigest(), lines)


@dataclass(frozen=True)
class WorldDifferences:
    """What differs from the uninterrupted runs: `wrong`, and `other_order`: files with the same lines, not in order."""

    wrong: list[str]
    other_order: list[str]


def compare(expected: Manifest, again: Sequence[Manifest], actual: Manifest) -> WorldDifferences:
    """Compare with uninterrupted runs; only what is the same in all of them is held against this one.

    Of a text file that differs between them, the number of lines is compared, if that is the same; of a folder in which
    names differ, the number of files.
    """
    wrong: list[str] = []
    other_order: list[str] = []
    free = _free(expected, again)
    for folder in sorted(free):
        counts = {_count(one, folder) for one in (expected, *again)}
        if len(counts) == 1 and (now := _count(actual, folder)) not in counts:
            wrong.append(f"{folder} has {counted(now, 'file')} instead of {counts.pop()}")
    for name in sorted(expected.keys() | actual.keys()):
        before, now = expected.get(name), actual.get(name)
        if before is None or now is None:
            if free.isdisjoint(_around(name)):
                wrong.append(f"{name} is {'missing' if now is None else 'there, and should not be'}")
        elif before.digest != now.digest and all(name in other for other in again):
            wrong += _file_differences(name, before, [other[name] for other in again], now, other_order)
    return WorldDifferences(wrong, other_order)


def _around(name: str) -> list[str]:
    """The folders a file lies in, innermost first."""
    folders: list[str] = []
    while (name := os.path.dirname(name)) not in ("", os.sep):
        folders.append(name)
    return folders


def _free(expected: Manifest, again: Sequence[Manifest]) -> set[str]:
    """The folders in which names differ by themselves: the innermost ones that all have."""
    free: set[str] = set()
    for other in again:
        shared = {folder for name in expected for folder in _around(name)}
        shared &= {folder for name in other for folder in _around(name)}
        for name in expected.keys() ^ other.keys():
            free.update([folder for folder in _around(name) if folder in shared][:1])
    return {folder for folder in free if free.isdisjoint(_around(folder))}


def _count(files: Manifest, folder: str) -> int:
    return sum(folder in _around(name) for name in files)


def unstable(expected: Manifest, again: Sequence[Manifest]) -> list[str]:
    """Files that differ between uninterrupted runs."""
    names = expected.keys() | {name for other in again for name in other}
    return sorted(name for name in names if any(expected.get(name) != other.get(name) for other in again))


def _file_differences(
    name: str, before: Content, again: list[Content], now: Content, other_order: list[str]
) -> list[str]:
    stable = all(before.digest == other.digest for other in again)
    if before.lines is None or now.lines is None:
        return [f"{name} differs"] if stable else []
    if stable or all(sorted(before.lines) == sorted(other.lines or ()) for other in again):
        if sorted(before.lines) == sorted(now.lines):
            if stable:
                other_order.append(name)
            return []
        return [f"{name}: {_line_differences(before.lines, now.lines)}"]
    if len(before.lines) != len(now.lines) and all(len(before.lines) == len(other.lines or ()) for other in again):
        return [f"{name} has {counted(len(now.lines), 'line')} instead of {len(before.lines)}"]
    return []


def _line_differences(before: tuple[str, ...], now: tuple[str, ...]) -> str:
    more, less = Counter(now) - Counter(before), Counter(before) - Counter(now)
    told = [
        f"{words} {line.strip()[:SHOWN]!r}"
        for lines, words in ((more, "once more"), (less, "missing"))
        for line in lines
    ]
    return "; ".join(told[:3]) + (f"; {len(told) - 3} more" if len(told) > 3 else "")


class Snapshot:
    """Copies of places in the world, by which they are put back as they were.

    Attributes:
        places: The places by the names they were given.

    Args:
        places: Files and folders; they need not exist.
        folder: Where the copies go.

    Raises:
        PayloadInvalid: A place holds the working folder, the home folder or the whole machine.
    """

    def __init__(self, places: Iterable[Path], folder: Path) -> None:
        self.places = {str(place): place.absolute() for place in places}
        self._copies = [folder / str(index) for index in range(len(self.places))]
        for place, copy in zip(self.places.values(), self._copies, strict=True):
            _refuse_too_much(place)
            folder.mkdir(parents=True, exist_ok=True)
            if place.is_dir():
                shutil.copytree(place, copy, symlinks=True)
            elif place.exists():
                shutil.copy2(place, copy)

    def restore(self) -> None:
        """Put every place back as it was; what did not change is left alone."""
        for place, copy in zip(self.places.values(), self._copies, strict=True):
            _restore(place, copy)


def _refuse_too_much(place: Path) -> None:
    for kept in (Path.cwd(), Path.home()):
        if place.resolve() in (kept.resolve(), *kept.resolve().parents):
            raise PayloadInvalid(
                f"--world {place} holds {kept}; it would be put back as it was before each run",
                next_step="name the files and folders the graph acts on",
            )


def _restore(place: Path, copy: Path) -> None:
    if not copy.exists():
        _remove(place)
        return
    if copy.is_dir() != (place.is_dir() and not place.is_symlink()):
        _remove(place)
    if not copy.is_dir():
        if not place.exists() or place.read_bytes() != copy.read_bytes():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(copy, place)
        return
    place.mkdir(parents=True, exist_ok=True)
    wanted = {entry.name for entry in copy.iterdir()}
    for entry in [*place.iterdir()]:
        if entry.name not in wanted:
            _remove(entry)
    for entry in copy.iterdir():
        if entry.is_symlink():
            _remove(place / entry.name)
            (place / entry.name).symlink_to(os.readlink(entry))
        else:
            _restore(place / entry.name, entry)
    shutil.copystat(copy, place)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
