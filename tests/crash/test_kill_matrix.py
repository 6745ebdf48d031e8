"""Kill a worker with SIGKILL at every crash point it passes, for graphs of every shape; nothing may differ afterwards.

The points are those an uninterrupted run passes, so the matrix is complete: each checkpoint, each write of a task, each
effect before, in and after its call, each claim and settlement, in the first leg and in those that resume with an
answer or a signal. All shapes on SQLite; on PostgreSQL, whose transactions and saver are its own, three that between
them have questions, waits, effects before, between and after them, parallel tasks and a join; of a fourth, with
approvals, the points around its calls.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints.reviews import Review
from everstep.checkpoints.store import Store
from tests.support.kill_graphs import SHAPES
from tests.support.outside import happened
from tests.support.processes import POINTS, drive, work, work_until_killed
from tests.support.record import record
from tests.support.snapshots import Snapshot, snapshot

ON_POSTGRES = ("asking", "fan_out", "waiting")


def answer(store: Store, review: Review) -> None:
    """A person: answers questions by their text, and looks at the world to settle an effect."""
    if review.kind == "effect":
        world = review.value["arguments"]["world"]
        line = review.value["arguments"]["line"]
        if line in happened(world):
            store.answer(review.public_id, "approve", value=line)
        else:
            store.answer(review.public_id, "reject")
    elif review.kind == "interrupt" and "approval" in review.value:
        args = review.value["action_requests"][0]["args"]
        if args["line"] == "pay":
            store.answer(review.public_id, "edit", value={**args, "line": "pay less"})
        else:
            store.answer(review.public_id, *(("reject",) if args["line"] == "never" else ("approve",)), reason="so")
    elif review.kind == "interrupt":
        store.answer(review.public_id, "respond", value=f"answer to {review.value['question']}")
    else:
        store.answer(review.public_id, "approve")


def asked(value: Any, world: str) -> str:
    """What a question asks, in a form that is the same in every run."""
    return json.dumps({name: told for name, told in value.items() if name != "argument_digest"}).replace(world, "WORLD")


def run(
    folder: Path, database: str, graph: str, kept: dict[int, Snapshot], crash: tuple[int, str] | None = None
) -> tuple[dict[str, Any], list[Counter[str]], bool]:
    """One job from beginning to end: what can be seen of it, the points each worker passed, and whether one died.

    Args:
        folder: A new folder.
        database: Where the record is.
        graph: The graph.
        kept: How all was before each worker; the life without a crash fills it, others begin with it.
        crash: Which worker is killed, and where.
    """
    folder.mkdir()
    first = 0 if crash is None else crash[0]
    world = kept[first].world if first else str(folder / "world")
    with kept[first].restored(folder) if first else record(database, folder) as begun:
        if not first:
            begun.enqueue(graph, {"world": world})
        begun.close()

        def keep(number: int) -> None:
            if crash is None and number:
                kept[number] = snapshot(begun.url, folder, world)

        passed, killed = drive(begun.url, graph, answer, crash, first=first, before=keep)
        with Store.open(begun.url) as store:
            seen = found(store, world)
    bodies = Counter(happened(world + ".bodies"))
    assert sum(count - 1 for count in bodies.values()) <= 1, f"a node that had finished ran again: {bodies}"
    return seen, passed, killed


def found(store: Store, world: str) -> dict[str, Any]:
    """What can be seen of the job and of the world."""
    (job,) = store.jobs()
    assert job.status == "done", f"{job.status}: {job.error_json}"
    return {
        "result": json.loads((job.result_json or "").replace(world, "WORLD")),
        "world": sorted(happened(world)),
        "questions": Counter(asked(r.value, world) for r in store.reviews(job) if r.kind == "interrupt"),
        "unsettled": [effect.name for effect in store.effects(job) if effect.state != "confirmed"],
    }


@pytest.mark.parametrize(
    ("database", "graph"),
    [*(("sqlite", graph) for graph in SHAPES), *(("postgres", graph) for graph in ON_POSTGRES)],
)
def test_a_kill_at_any_point_changes_nothing(database: str, graph: str, tmp_path: Path) -> None:
    """Final state, effects and questions equal those of an uninterrupted run, wherever the worker was killed."""
    kept: dict[int, Snapshot] = {}
    expected, passed, _ = run(tmp_path / "uninterrupted", database, graph, kept)
    assert expected["unsettled"] == []
    assert len(set(expected["world"])) == len(expected["world"])
    assert {point for points in passed for point in points} >= POINTS
    for worker, points in enumerate(passed):
        for point, times in points.items():
            for count in range(1, times + 1):
                where = (worker, f"{point}@{count}")
                seen, _, killed = run(tmp_path / f"{worker}-{point}-{count}", database, graph, kept, where)
                assert killed, f"nothing died at {where}"
                assert seen == expected, f"killed {where}"


def test_a_kill_around_an_approved_call_changes_nothing_on_postgres(tmp_path: Path) -> None:
    """Where the permit is reserved, used and noted, once in each worker: the rest of it is the other shapes' too."""
    kept: dict[int, Snapshot] = {}
    expected, passed, _ = run(tmp_path / "uninterrupted", "postgres", "approving", kept)
    points = {(worker, point) for worker, found in enumerate(passed) for point in found if point.startswith("effect.")}
    assert {point for _, point in points} == {"effect.intended", "effect.called", "effect.confirmed"}
    for worker, point in sorted(points):
        seen, _, killed = run(tmp_path / f"{worker}-{point}", "postgres", "approving", kept, (worker, f"{point}@1"))
        assert killed, f"nothing died at {point} of worker {worker}"
        assert seen == expected, f"killed at {point} of worker {worker}"


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_kill_between_the_jobs_of_a_worker_loses_none(database: str, tmp_path: Path) -> None:
    """More jobs than places, so settlements claim the next: what was claimed so and never began runs, once."""
    for point, count in (("job.before_settle", 1), ("job.settled", 1), ("job.settled", 2)):
        folder = tmp_path / f"{point}-{count}"
        folder.mkdir()
        worlds = [str(folder / f"world {number}") for number in range(5)]
        with record(database, folder) as store:
            for world in worlds:
                store.enqueue("linear", {"world": world})
            assert work_until_killed(store.url, "linear", f"{point}@{count}")
            assert any(job.status != "done" for job in store.jobs())
            work(store.url, "linear")
            assert [job.status for job in store.jobs()] == ["done"] * len(worlds)
            assert all(not job.failures for job in store.jobs())
        for world in worlds:
            assert len(happened(world)) == len(set(happened(world))) == 5
