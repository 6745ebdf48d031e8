"""What of all that an effect's function does is a touch of the world, and so a place where `crash-test` kills."""

from __future__ import annotations

import contextlib
import logging
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everstep import crash, effect
from everstep.checkpoints.store import Store
from everstep.runtime.crash_test.inside import POINT, Inside
from everstep.runtime.crash_test.judgement import Reference, judge
from everstep.runtime.crash_test.one_run import EffectSeen, Run
from everstep.runtime.crash_test.points import Point
from tests.support.jobs import Log, chain, run


def touches(store: Store, does: Callable[[], Any]) -> list[str]:
    """What an effect was seen to do, in a job that is run here: all but what the audit hook tells of."""
    inside = Inside(lambda path: path.endswith(".ours"))
    seen: list[str] = []

    def passed(name: str, subject: str, about: Any) -> None:
        if name == "effect.intended":
            inside.begin(about[0], subject)
        elif name == "effect.called":
            inside.end()
        elif name == POINT:
            seen.append(about[1])

    @effect("world.act")
    def act() -> int:
        does()
        return 1

    crash.observe(passed)
    try:
        job = run(store, chain(lambda _: Log(log=[act()])))
    finally:
        crash.observe(None)
    assert job.status == "done", job.error_json
    return seen


def add_row(path: Path) -> None:
    """Commit one change, on a connection of its own."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS t (n)")
        connection.execute("SELECT 1")
        connection.execute("INSERT INTO t VALUES (1)")
        connection.execute("SELECT count(*) FROM t")
        connection.commit()
        connection.commit()
        connection.execute("SELECT count(*) FROM t")


def test_what_is_written_out_is_a_touch(store: Store, tmp_path: Path) -> None:
    """A file that is closed or flushed, and each write without a buffer; not what is read, nor what is ours."""
    path = tmp_path / "file"

    def does() -> None:
        with open(path, "wb", buffering=0) as bare:
            bare.write(b"a")
        path.read_text()
        (tmp_path / "record.ours").write_text("b")
        with open(path, "a") as file:
            file.write("c")
            file.flush()

    closed = f"close of '{path}'"
    assert touches(store, does) == [f"write of '{path}'", closed, f"flush of '{path}'", closed]


def test_what_a_library_writes_that_changes_nothing_is_none(store: Store, tmp_path: Path) -> None:
    """Lines of a log, and what an event loop tells itself."""

    def does() -> None:
        handler = logging.FileHandler(tmp_path / "log")
        handler.emit(logging.makeLogRecord({"msg": "said"}))
        handler.close()
        ours, own = socket.socketpair()
        with ours, own:
            ours.send(b"\0")

    assert touches(store, does) == []


def test_what_is_sent_is_a_touch(store: Store) -> None:
    """To whoever it goes."""

    def does() -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as listening,
            socket.create_connection(listening.getsockname()) as line,
        ):
            line.send(b"a")
            line.sendall(b"b")

    assert touches(store, does) == ["send", "sendall"]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_commit_that_changed_something_is_a_touch(store: Store, tmp_path: Path, times: int) -> None:
    """Once for each; also of a connection that has the place in memory of one that was closed."""
    assert touches(store, lambda: [add_row(tmp_path / "data.db") for _ in range(times)]) == ["commit"] * times


def test_an_effect_within_one_ends_nothing_of_the_outer(store: Store, tmp_path: Path) -> None:
    """What the outer one does after it is still seen."""

    @effect("world.inner")
    def inner() -> int:
        (tmp_path / "inner").write_text("a")
        return 1

    def does() -> None:
        inner()
        (tmp_path / "outer").write_text("b")

    assert touches(store, does) == [f"close of '{tmp_path / name}'" for name in ("inner", "outer")]


@pytest.mark.parametrize(("end", "happened"), [("effect.raised", 1), ("effect.touched", 2)])
def test_a_call_that_raised_had_its_end(end: str, happened: int, tmp_path: Path) -> None:
    """What was told to have failed did not happen, whatever it touched; what was killed after all it does, did."""

    def points(*names: str) -> list[dict[str, Any]]:
        return [{"event": "point", "name": name, "key": "k", "idempotent": False, "probe": True} for name in names]

    once = ["effect.intended", "effect.touched", "effect.called"]
    seen = [EffectSeen("k", "world.act", "{}", "confirmed", 1, "call", 1)]
    reference = Run(tmp_path, status="done", effects=seen, traces=[points(*once)])
    first = ["effect.intended", "effect.touched", *([end] if end == "effect.raised" else [])]
    crashed = Run(tmp_path, status="done", killed=True, effects=seen, traces=[points(*first), points(*once)])
    result = judge(Reference(reference, []), crashed, Point("effect.touched", "world.act", 1, 0, 1))
    assert result.outcome == ("held" if happened == 1 else "differs")
    assert [problem.partition(":")[0] for problem in result.problems] == (
        [] if happened == 1 else ["effect world.act happened 2 times"]
    )
