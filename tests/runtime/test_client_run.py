"""A client's run where it meets acceptance, forks and the removal of checkpoints."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from sqlalchemy import Connection

from everstep.checkpoints import conversations, rollback, runs
from everstep.checkpoints.policy import Acceptance, JobPolicy
from everstep.checkpoints.runs import Run, RunRequest
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from tests.support.jobs import chain, work

THREAD = "019ad000-0000-7000-8000-000000000001"


def post(store: Store, policy: JobPolicy | None = None, **asked: Any) -> Run:
    """Admit a run to the thread."""
    now = store.clock.now_ms()

    def admit(connection: Connection) -> Run:
        conversations.ensure(connection, THREAD, owner="default", now=now)
        request, whose = RunRequest("graph", "A", **asked), {"owner": "default", "actor": "http"}
        return runs.create(connection, request, thread_id=THREAD, now=now, policy=policy, **whose)

    return store.write(admit).result()


def steps(store: Store) -> list[Any]:
    """The checkpoints of the thread, the newest first."""
    saver: BaseCheckpointSaver[Any] = StepSaver(store)
    return list(saver.list({"configurable": {"thread_id": THREAD}}))


def said(store: Store) -> Any:
    """What the thread's newest checkpoint holds."""
    return steps(store)[0].checkpoint["channel_values"].get("log")


def logging(word: str = "node") -> Any:
    """A graph that adds a word to the log."""

    def node(_state: Any) -> Any:
        return {"log": [word]}

    return chain(node)


def passing_at_the_second(folder: Path) -> JobPolicy:
    """What fails once, and tells the graph so."""
    command = f"sh -c 'test -e {folder}/tried || {{ touch {folder}/tried; exit 1; }}'"
    return JobPolicy(acceptance=Acceptance(verify=(command,), feedback="log"))


def test_a_run_that_forks_and_is_given_back_goes_on_where_it_finished(store: Store, tmp_path: Path) -> None:
    """What is given back to a run that began at an earlier checkpoint comes on top of what it did, not of its start."""
    post(store, input={"log": ["one"]})
    work(store, logging())
    start = steps(store)[0].checkpoint["id"]
    post(store, input={"log": ["two"]})
    work(store, logging())
    place = {"checkpoint_id": start}
    run = post(store, passing_at_the_second(tmp_path), input={"log": ["three"]}, checkpoint=place)
    work(store, logging())
    assert store.job_by_row(run.job_id).returns == 1
    first, node, third, again, feedback, last = said(store)
    assert [first, node, third, again, last] == ["one", "node", "three", "node", "node"]
    assert "exited with 1" in feedback


def test_a_command_is_given_once_though_its_run_is_given_back(store: Store, tmp_path: Path) -> None:
    """A run that a command steers is steered once; what is given back to it is the feedback alone."""
    post(store, input={"log": ["one"]})
    work(store, logging())
    post(store, passing_at_the_second(tmp_path), command={"update": {"log": ["two"]}, "goto": "node_0"})
    work(store, logging())
    assert [word for word in said(store) if "exited" not in word] == ["one", "node", "two", "node", "node"]


def test_a_rollback_takes_what_a_run_did_after_it_was_given_back(store: Store, tmp_path: Path) -> None:
    """Every step of a run that is rolled back goes, also those that followed what it was given back."""
    post(store, input={"log": ["one"]})
    work(store, logging())
    run = post(store, passing_at_the_second(tmp_path), input={"log": ["two"]})

    def cancelled_at_its_second_time(state: Any) -> Any:
        if "exited with 1" in state["log"][-1]:
            store.write(lambda c: runs.cancel(c, run, now=1, actor="http", rollback=True)).result()
        return {"log": ["node"]}

    work(store, chain(cancelled_at_its_second_time))
    assert (store.job_by_row(run.job_id).returns, store.read(lambda c: runs.find(c, run.run_id)).status) == (
        1,
        "interrupted",
    )
    asyncio.run(rollback.take_away(store, THREAD))
    assert said(store) == ["one", "node"]
    post(store, input={"log": ["three"]})
    work(store, logging())
    assert said(store) == ["one", "node", "three", "node"]


def test_a_run_whose_fork_was_pruned_meanwhile_fails(store: Store) -> None:
    """The checkpoint a run is to begin at is gone when it begins: it fails and says so, and the thread stays."""
    post(store, input={"log": ["one"]})
    work(store, logging())
    old = steps(store)[-1].checkpoint["id"]
    run = post(store, input={"log": ["two"]}, checkpoint={"checkpoint_id": old})
    StepSaver(store).prune([THREAD])
    work(store, logging())
    job = store.job_by_row(run.job_id)
    assert (job.status, json.loads(job.error_json or "{}").get("code")) == ("failed", "checkpoint_not_found")
    assert said(store) == ["one", "node"]
