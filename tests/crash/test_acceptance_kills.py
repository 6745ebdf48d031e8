"""Kill a worker with SIGKILL at every point around an acceptance: the job ends the same, and is fed everything once.

The job goes back to its graph once by itself and once with a person's words, and a person approves its high-risk paths;
so the matrix holds the settlements that store the feedback, the legs that feed it, and those that settle what was
approved.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints.policy import Acceptance, JobPolicy
from everstep.checkpoints.store import Store
from tests.support.accepted import outcomes
from tests.support.outside import happened
from tests.support.processes import POINTS, work, work_until_killed
from tests.support.record import fresh
from tests.support.repositories import git

GRAPH = "verified"
AROUND = POINTS | {"acceptance.before", "acceptance.verified"}


def run(folder: Path, killed_at: tuple[int, str] | None) -> tuple[dict[str, Any], list[Counter[str]], bool]:
    """One job from beginning to end: what can be seen of it, the points each worker passed, and whether one died."""
    place = folder / "work"
    place.mkdir(parents=True)
    git(place, "init", "--quiet")
    git(place, "commit", "--quiet", "--allow-empty", "--message=start")
    command = "sh -c 'grep -x \"end 3\" world || { echo not yet; exit 1; }'"
    acceptance = Acceptance(
        verify=(command,), workdir="{folder}", returns=1, base=git(place, "rev-parse", "HEAD"), high_risk=("world",)
    )
    with fresh(folder) as store:
        url = store.url
        given = {"messages": [{"role": "user", "content": "build it"}], "folder": str(place)}
        store.enqueue(GRAPH, given, policy=JobPolicy(acceptance=acceptance))
    passed: list[Counter[str]] = []
    killed = False
    while len(passed) < 20:
        armed = killed_at is not None and killed_at[0] == len(passed)
        if killed_at is not None and armed:
            killed = work_until_killed(url, GRAPH, killed_at[1])
            passed.append(Counter())
        else:
            passed.append(work(url, GRAPH))
        with Store.open(url) as store:
            (job,) = store.jobs()
            if job.status in ("done", "failed"):
                return seen(store, place), passed, killed
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
    expected, passed, _ = run(tmp_path / "uninterrupted", None)
    assert len(passed) == 3
    assert set(passed[0]) | set(passed[1]) >= AROUND
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
    for point, times in passed[worker].items():
        for count in range(1, times + 1):
            result, _, killed = run(tmp_path / f"{point}-{count}", (worker, f"{point}@{count}"))
            assert killed, f"nothing died at {point}@{count} of worker {worker}"
            assert result == expected, f"killed at {point}@{count} of worker {worker}"
