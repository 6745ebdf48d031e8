"""The parts of `everstep crash-test` that need no process: comparing, the world, the draw, answers, crash points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep import crash
from everstep.errors import PayloadInvalid
from everstep.runtime.crash_test import world
from everstep.runtime.crash_test.answers import Script
from everstep.runtime.crash_test.differences import differences, patterns
from everstep.runtime.crash_test.points import choose, passed
from everstep.runtime.crash_test.world import Manifest, Snapshot


def told(expected: Any, actual: Any, *ignored: str) -> list[str]:
    """The differences in words."""
    return [str(difference) for difference in differences(expected, actual, frozenset(ignored))]


def test_differences_name_the_place() -> None:
    """Of objects and lists each member is compared; what is missing, too much or of another type is told."""
    assert told({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}) == []
    assert told({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == ["a[1].b: 3 instead of 2"]
    assert told({"a": 1}, {"b": 1}) == ["a: nothing instead of 1", "b: 1 instead of nothing"]
    assert told({"a": [1]}, {"a": [1, 1]}) == ["a: 2 items [1, 1] instead of 1 item [1]"]
    assert told({"a": True}, {"a": 1}) == ["a: 1 instead of true"]
    assert told({"a": None}, {}) == ["a: nothing instead of null"]
    assert told(1, 2) == ["the state: 2 instead of 1"]


def test_what_differs_by_itself_is_known_by_its_place_in_any_item() -> None:
    """The id of every message is left out once one of them differs; the number of messages is not."""
    expected = {"messages": [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]}
    again = {"messages": [{"id": 7, "text": "a"}, {"id": 2, "text": "b"}]}
    ignored = patterns(differences(expected, again))
    assert ignored == {"messages[*].id"}
    assert told(expected, {"messages": [{"id": 1, "text": "a"}, {"id": 9, "text": "c"}]}, *ignored) == [
        'messages[1].text: "c" instead of "b"'
    ]
    assert len(told(expected, {"messages": []}, *ignored)) == 1


def files(tmp_path: Path, **texts: str) -> Manifest:
    """What a folder with these files is like; `__` in a name is a slash."""
    folder = tmp_path / str(len([*tmp_path.iterdir()]))
    folder.mkdir()
    for name, text in texts.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.replace("HERE", str(folder)))
    return world.manifest([("w", folder)], run=folder)


def test_the_world_is_compared_by_content(tmp_path: Path) -> None:
    """Lines too many or missing are told, and files; the run's own folder in a text is no difference."""
    before = files(tmp_path, a="1\n2\nHERE\n", b="x")
    again = files(tmp_path, a="1\n2\nHERE\n", b="x")
    same = world.compare(before, [again], files(tmp_path, a="1\n2\nHERE\n", b="x"))
    assert (same.wrong, same.other_order) == ([], [])
    assert world.compare(before, [again], files(tmp_path, a="2\n1\nHERE\n", b="x")).other_order == ["w/a"]
    changed = files(tmp_path, a="1\n2\n2\nHERE\n", c="y")
    assert world.compare(before, [again], changed).wrong == [
        "w/a: once more '2'",
        "w/b is missing",
        "w/c is there, and should not be",
    ]


def test_of_files_that_differ_by_themselves_numbers_are_compared(tmp_path: Path) -> None:
    """A log with times still has so many lines, and a folder of random names so many files."""
    before = files(tmp_path, log="at 1\nat 2\n", o__a="1", o__b="2")
    again = files(tmp_path, log="at 3\nat 4\n", o__c="1", o__b="2")
    assert world.unstable(before, [again]) == ["w/log", "w/o/a", "w/o/c"]
    assert world.compare(before, [again], files(tmp_path, log="at 5\nat 6\n", o__x="1", o__b="2")).wrong == []
    assert world.compare(before, [again], files(tmp_path, log="at 5\n", o__x="1", o__y="2", o__b="2")).wrong == [
        "w/o has 3 files instead of 2",
        "w/log has 1 line instead of 2",
    ]


def test_a_snapshot_puts_everything_back(tmp_path: Path) -> None:
    """Files, folders, links and absence; what changed kind in between, too."""
    place, gone = tmp_path / "world", tmp_path / "not there"
    (place / "folder").mkdir(parents=True)
    (place / "folder" / "file").write_text("1")
    (place / "link").symlink_to("folder")
    (place / "was a file").write_text("2")
    before = world.manifest([("w", place)], run=tmp_path / "run")
    snapshot = Snapshot([place, gone], tmp_path / "copies")
    (place / "folder" / "file").write_text("changed")
    (place / "new").mkdir()
    (place / "was a file").unlink()
    (place / "was a file").mkdir()
    (place / "link").unlink()
    gone.write_text("3")
    snapshot.restore()
    assert world.manifest([("w", place)], run=tmp_path / "run") == before
    assert not gone.exists()


@pytest.mark.parametrize("place", [Path.cwd(), Path.cwd().parent, Path.home(), Path("/")])
def test_a_place_that_holds_too_much_is_refused(place: Path, tmp_path: Path) -> None:
    """The working folder, the home folder and what holds them are not put back by a test."""
    with pytest.raises(PayloadInvalid, match="would be put back"):
        Snapshot([place], tmp_path)


def trace(*names: str) -> list[dict[str, Any]]:
    """What a worker tells that passes these points."""
    pairs = [name.partition(":") for name in names]
    return [{"event": "point", "name": name, "subject": subject} for name, _, subject in pairs]


def test_points_are_counted_over_the_whole_run_and_in_each_worker() -> None:
    """The label is the run's, the variable a worker gets is its own."""
    points = passed([trace("a", "e:x", "e:y", "a"), trace("a", "e:x")])
    assert [point.label for point in points] == ["a@1", "e:x@1", "e:y@1", "a@2", "a@3", "e:x@2"]
    assert [point.crash_at for point in points] == ["a@1", "e:x@1", "e:y@1", "a@2", "a@1", "e:x@1"]
    assert [point.worker for point in points] == [0, 0, 0, 0, 1, 1]


def test_of_touches_at_one_line_the_first_and_the_last_are_points() -> None:
    """A loop is two points, in each call of the effect; their names count all the same."""
    at = {"event": "point", "name": "effect.touched", "subject": "e", "what": "send", "where": "a.py:1 in f"}
    told = [{**at, "key": "one"}] * 5 + [{**at, "key": "other"}] * 3 + [{**at, "key": "other", "where": ""}]
    found = passed([told])
    assert [point.local for point in found] == [1, 5, 6, 8, 9]
    assert [point.after for point in found][-2:] == ["send  a.py:1 in f", "send"]


def test_a_draw_is_repeated_by_its_seed() -> None:
    """The same seed draws the same points, in whatever order threads pass them; another seed draws others."""
    points = passed([trace(*"abcdefghijklmnopqrstuvwxyz")])
    drawn = choose(points, number=5, seed=7, only=())
    assert set(drawn) == set(choose(points[::-1], number=5, seed=7, only=()))
    assert drawn == choose(points, number=5, seed=7, only=()) != choose(points, number=5, seed=8, only=())
    assert drawn == sorted(drawn, key=points.index)
    assert choose(points, number=99, seed=7, only=()) == points
    assert [point.label for point in choose(points, number=None, seed=7, only=("b", "z@1"))] == ["b@1", "z@1"]


def test_answers_are_a_list_or_an_object() -> None:
    """Anything else is refused before any process starts."""
    with pytest.raises(PayloadInvalid, match="neither a list nor an object"):
        Script("approve")
    assert Script(["approve", 3]).unused() == ["2 at the end of the list"]


def test_an_observer_is_told_of_every_point() -> None:
    """Names, subjects and what they are about, in order; nothing is told any more once it is taken away."""
    seen: list[tuple[str, str, Any]] = []
    crash.observe(lambda name, subject, about: seen.append((name, subject, about)))
    try:
        crash.point("one")
        crash.point("two", "subject", 3)
    finally:
        crash.observe(None)
    crash.point("three")
    assert seen == [("one", "", None), ("two", "subject", 3)]
