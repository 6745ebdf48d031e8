"""Kill a worker with SIGKILL at every point around an acceptance: the job ends the same, and is fed everything once.

The job goes back to its graph once by itself and once with a person's words, and a person approves its high-risk paths;
so the matrix holds the settlements that store the feedback, the legs that feed it, and those that settle what was
approved.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from everstep import crash
from everstep.checkpoints.policy import Acceptance, JobPolicy
from everstep.checkpoints.store import Store
from everstep.runtime.worker import Worker
from tests.support.accepted import Talk, outcomes
from tests.support.jobs import chain
from tests.support.outside import act, happened, note
from tests.support.record import CONTEXT
from tests.support.repositories import git

POINTS = (
    "job.claimed",
    "checkpoint.before_put",
    "checkpoint.after_put",
    "writes.after_put",
    "effect.intended",
    "effect.called",
    "effect.confirmed",
    "acceptance.before",
    "acceptance.verified",
    "job.before_settle",
    "job.settled",
)


def graph() -> Any:
    """Two nodes that act on the world, by how often they were told something; in the third round with success."""

    def node(name: str) -> Any:
        def work(state: Talk) -> Talk:
            told = sum(message.type == "human" for message in state["messages"])
            note(state["folder"] + "/../bodies", f"{name} {told}")
            act(state["folder"] + "/world", f"{name} {told}")
            return {"messages": [{"role": "assistant", "content": f"{name} {told}"}]}

        return work

    return chain(node("begin"), node("end"), schema=Talk)


def work(url: str, crash_at: str | None) -> None:
    """A worker, until it is idle or killed."""
    crash.arm(crash_at)
    with Store.open(url) as store:
        Worker(store, {"graph": graph()}, lease=60.0).run(until_idle=True)


def work_until_killed(url: str, crash_at: str) -> bool:
    """The same in a process of its own; returns whether it was killed at its crash point."""
    process = CONTEXT.Process(target=work, args=(url, crash_at))
    process.start()
    process.join(60)
    if process.is_alive():
        process.kill()
        raise AssertionError(f"the worker is still running (crash point {crash_at})")
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def run(folder: Path, killed_at: tuple[int, str] | None) -> tuple[dict[str, Any], int, bool]:
    """One job from beginning to end: what can be seen of it, how many workers ran, and whether one was killed."""
    place = folder / "work"
    place.mkdir(parents=True)
    git(place, "init", "--quiet")
    git(place, "commit", "--quiet", "--allow-empty", "--message=start")
    url = f"sqlite:///{folder / 'record.db'}"
    command = "sh -c 'grep -x \"end 3\" world || { echo not yet; exit 1; }'"
    acceptance = Acceptance(
        verify=(command,), workdir="{folder}", returns=1, base=git(place, "rev-parse", "HEAD"), high_risk=("world",)
    )
    with Store.open(url) as store:
        given = {"messages": [{"role": "user", "content": "build it"}], "folder": str(place)}
        store.enqueue("graph", given, policy=JobPolicy(acceptance=acceptance))
    runs, killed = 0, False
    while runs < 20:
        armed = killed_at is not None and killed_at[0] == runs
        if killed_at is not None and armed:
            killed = work_until_killed(url, killed_at[1])
        else:
            work(url, None)
        runs += 1
        with Store.open(url) as store:
            (job,) = store.jobs()
            if job.status in ("done", "failed"):
                return seen(store, place), runs, killed
            for review in store.reviews() if not (armed and killed) else []:
                failed = review.value["code"] == "acceptance_failed"
                store.answer(review.public_id, *(("respond",) if failed else ("approve",)), reason="a person's words")
    raise AssertionError("the job did not end")


def seen(store: Store, place: Path) -> dict[str, Any]:
    """What must be the same however often a worker was killed."""
    (job,) = store.jobs()
    assert job.status == "done", f"{job.status}: {job.error_json}"
    bodies = Counter(happened(str(place.parent / "bodies")))
    assert sum(count - 1 for count in bodies.values()) <= 1, f"a node that had finished ran again: {bodies}"
    return {
        "messages": [message["content"] for message in json.loads(job.result_json or "")["messages"]],
        "world": happened(str(place / "world")),
        "outcomes": outcomes(store, job),
        "returns": job.returns,
        "reviews": [(review.value["code"], review.decision) for review in store.reviews(job)],
        "unsettled": [effect.name for effect in store.effects(job) if effect.state != "confirmed"],
    }


@pytest.mark.parametrize("worker", range(3))
def test_a_kill_around_an_acceptance_changes_nothing(worker: int, tmp_path: Path) -> None:
    """Feedback is neither lost nor fed twice, no effect is doubled, and no question asked twice, wherever it struck."""
    expected, runs, _ = run(tmp_path / "uninterrupted", None)
    assert runs == 3
    assert expected == {
        "messages": expected["messages"],
        "world": ["begin 1", "end 1", "begin 2", "end 2", "begin 3", "end 3"],
        "outcomes": ["returned", "review", "review", "accepted"],
        "returns": 2,
        "reviews": [("acceptance_failed", "respond"), ("high_risk_paths", "approve")],
        "unsettled": [],
    }
    assert len(expected["messages"]) == 9
    assert expected["messages"][6] == "a person's words"
    kills = 0
    for point in POINTS:
        for count in range(1, 100):
            result, _, killed = run(tmp_path / f"{point}-{count}", (worker, f"{point}@{count}"))
            if not killed:
                break
            kills += 1
            assert result == expected, f"killed at {point}@{count} of worker {worker}"
    assert kills >= (40, 20, 4)[worker]
