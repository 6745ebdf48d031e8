"""Kill the worker with SIGKILL at every crash point while clients' runs follow each other on one thread.

Inputs, answers, commands that steer, a run that is superseded, forks of earlier checkpoints with and without an input:
afterwards the thread's state, what happened outside, every run's output and every run's events are those of an
uninterrupted life.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints import conversations, events, large_texts, runs
from everstep.checkpoints.large_texts import LARGE
from everstep.checkpoints.runs import Run, RunRequest
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from tests.support.outside import happened
from tests.support.processes import POINTS, work, work_until_killed
from tests.support.record import record
from tests.support.snapshots import Snapshot, snapshot

ENDS = (events.END, events.ERROR)
THREAD = "019ad000-0000-7000-8000-000000000001"
Life = list[Callable[[Store, str], list[dict[str, Any]]]]
"""For each worker what the client asks before it comes, from the record and the outside world's file."""


def first(_store: Store, world: str) -> list[dict[str, Any]]:
    """An input."""
    return [{"input": {"world": world}}]


def answer(_store: Store, _world: str) -> list[dict[str, Any]]:
    """An answer to the only question."""
    return [{"command": {"resume": "yes"}}]


def answer_and_update(_store: Store, _world: str) -> list[dict[str, Any]]:
    """An answer, and an update of the state that must be applied once."""
    return [{"command": {"resume": "well", "update": {"log": ["updated"]}}}]


def resolve(_store: Store, _world: str) -> list[dict[str, Any]]:
    """The question is passed over."""
    return [{"command": {"goto": "finish"}}]


def end_here(_store: Store, _world: str) -> list[dict[str, Any]]:
    """The thread ends where it is."""
    return [{"command": {"goto": "__end__"}}]


def long_input(_store: Store, world: str) -> list[dict[str, Any]]:
    """An input so long that the state is stored in parts."""
    return [{"input": {"world": world, "log": [f"line {number} of {LARGE // 16}" for number in range(LARGE // 16)]}}]


def two_inputs(_store: Store, world: str) -> list[dict[str, Any]]:
    """The second takes the place of the first as that pauses."""
    return [{"input": {"world": world}}, {"input": {"world": world, "log": ["typed twice"]}}]


def checkpoint(store: Store, step: int) -> dict[str, Any]:
    """Where the thread was when it had come so far."""
    found = [
        each.config.get("configurable", {})
        for each in StepSaver(store).list({"configurable": {"thread_id": THREAD, "checkpoint_ns": ""}})
        if each.metadata.get("step") == step
    ]
    return {"checkpoint_id": found[-1]["checkpoint_id"]}


def fork(store: Store, _world: str) -> list[dict[str, Any]]:
    """The thread goes on from an earlier place."""
    return [{"input": None, "checkpoint": checkpoint(store, 1)}]


def fork_with_input(store: Store, world: str) -> list[dict[str, Any]]:
    """Another input at an earlier place."""
    return [{"input": {"world": world, "log": ["elsewhere"]}, "checkpoint": checkpoint(store, 2)}]


LIVES: dict[str, Life] = {
    "answers": [first, answer, first, answer_and_update],
    "steered": [first, resolve, two_inputs, answer],
    "ended": [first, end_here, first],
    "large": [long_input, answer],
    "forks": [first, answer, fork, answer, fork_with_input],
}


def live(
    folder: Path, database: str, life: Life, kept: dict[int, Snapshot], crash: tuple[int, str] | None = None
) -> tuple[Any, list[Counter[str]], bool]:
    """A thread's life: what can be seen of it, the points each worker passed, and whether one died.

    Args:
        folder: A new folder.
        database: Where the record is.
        life: What is asked before each worker.
        kept: How all was before each worker; the life without a crash fills it, others begin with it.
        crash: Which worker is killed, and where.
    """
    folder.mkdir()
    first_worker = 0 if crash is None else crash[0]
    world = kept[first_worker].world if first_worker else str(folder / "world")
    passed: list[Counter[str]] = []
    killed = False
    with kept[first_worker].restored(folder) if first_worker else record(database, folder) as begun:
        if not first_worker:
            now = begun.clock.now_ms()
            begun.write(lambda c: conversations.ensure(c, THREAD, owner="default", now=now)).result()
        begun.close()
        for number, asks in list(enumerate(life))[first_worker:]:
            if number and crash is None:
                kept[number] = snapshot(begun.url, folder, world)
            with Store.open(begun.url) as store:
                for asked in asks(store, world):
                    post(store, asked)
            if crash is not None and crash[0] == number:
                killed = work_until_killed(begun.url, "chatting", crash[1])
                work(begun.url, "chatting")
            else:
                passed.append(work(begun.url, "chatting"))
        with Store.open(begun.url) as store:
            large_texts.sweep(store)
            return seen(store, world), passed, killed


def post(store: Store, asked: dict[str, Any]) -> Run:
    """Admit a run."""
    request = RunRequest("chatting", "A", stream_mode=("values", "updates"), **asked)
    now = store.clock.now_ms()
    return store.write(
        lambda c: runs.create(c, request, thread_id=THREAD, owner="default", now=now, actor="http")
    ).result()


def seen(store: Store, world: str) -> dict[str, Any]:
    """What must be the same whoever died."""
    thread = store.read(lambda c: conversations.find(c, THREAD))
    found = store.read(lambda c: runs.of_thread(c, THREAD, limit=100))
    told = store.read(lambda c: events.of_thread(c, THREAD, limit=10_000))
    names = {world: "WORLD", **{job.public_id: f"job {job.id}" for job in store.jobs()}}
    steady = {run.run_id: [event for event in told if event.run_id == run.run_id] for run in found}
    return {
        "world": sorted(named(line, names) for line in happened(world)),
        "status": thread.status,
        "state": without(thread.values_json, names),
        "runs": [(run.status, without(run.values_json, names)) for run in found],
        "last values": [last_values(each, names) for each in steady.values()],
        "ends": [
            [event.method for event in each if event.method in (events.END, events.ERROR)] for each in steady.values()
        ],
        "jobs": [(job.status, job.attempts, job.failures) for job in store.jobs()],
    }


def last_values(told: list[Any], names: dict[str, str]) -> Any:
    """The last state a run told of; what is told again after a kill comes before it."""
    values = [event.data_json for event in told if event.method == "values"]
    return without(values[-1], names) if values else None


def without(text: str | None, names: dict[str, str]) -> Any:
    """JSON data without what differs between two lives: the world's place, and ids."""
    if text is None:
        return None
    value = json.loads(named(text, names))
    for asked in value.get("__interrupt__", []):
        asked.pop("id")
    return value


def named(text: str, names: dict[str, str]) -> str:
    """With names that are the same in every life."""
    for name, known in names.items():
        text = text.replace(name, known)
    return text


@pytest.mark.parametrize(
    ("database", "name"),
    [*(("sqlite", name) for name in LIVES), ("postgres", "answers"), ("postgres", "steered"), ("postgres", "large")],
)
def test_a_kill_at_any_point_changes_nothing_for_clients(database: str, name: str, tmp_path: Path) -> None:
    """Thread, runs, their events and the world equal those of an uninterrupted life, wherever the worker was killed."""
    life = LIVES[name]
    kept: dict[int, Snapshot] = {}
    expected, passed, _ = live(tmp_path / "uninterrupted", database, life, kept)
    assert expected["ends"] == [["end"]] * len(expected["runs"])
    assert {point for points in passed for point in points} >= POINTS - {"effect.called"}
    for worker, points in enumerate(passed):
        for point, times in points.items():
            for count in range(1, times + 1):
                where = (worker, f"{point}@{count}")
                got, _, killed = live(tmp_path / f"{worker}-{point}-{count}", database, life, kept, where)
                assert killed, f"nothing died at {where}"
                assert {**got, "jobs": None} == {**expected, "jobs": None}, f"killed {where}"
                assert [job[0] for job in got["jobs"]] == [job[0] for job in expected["jobs"]], f"killed {where}"
