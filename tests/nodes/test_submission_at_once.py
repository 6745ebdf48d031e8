"""Paid tasks of jobs whose transactions meet on PostgreSQL: who decides waits for the rows it decides by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection

from everstep.checkpoints import cancelled_tasks, effects, jobs, provider_settlement, provider_task, provider_tasks
from everstep.checkpoints.provider_status import ProviderStatus
from everstep.checkpoints.provider_task import ProviderTask
from everstep.checkpoints.store import Store
from everstep.nodes import arguments
from everstep.nodes.attempt import Attempt
from everstep.nodes.submission import EFFECT, Submission
from tests.support.paid import QUOTE, Scripted, again, entries, task_of
from tests.support.postgres import fresh_postgres
from tests.support.record import begin_effect, begin_running, claim
from tests.support.transactions import stands
from tests.support.waiting import Halt


@pytest.fixture
def beside() -> Iterator[tuple[Store, Store]]:
    """A record, opened by two processes."""
    with fresh_postgres() as store, Store.open(store.url, clock=store.clock) as other:
        yield store, other


def test_who_opens_a_submission_decides_by_the_row_as_another_job_left_it(
    beside: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that failed is retried as another adopts its task: it leaves the task alone, and does not submit it."""
    store, other = beside
    store.enqueue("graph", {}, key="mine")
    mine = begin_running(store)
    store.enqueue("graph", {}, key="another")
    (another,) = claim(store)
    task = task_of(store, to="created", owner="default", job=mine.public_id)
    key = arguments.effect_key(mine.idempotency_key, EFFECT, "business", task.provider_key)
    effect, _ = begin_effect(store, mine, key)
    refused: dict[str, Any] = {"claim_no": mine.claim_no, "settled_by": "call", "error": "no room", "now": 1}
    store.write(lambda c: effects.reject(c, effect, **refused)).result()
    store.write(lambda c: jobs.fail(c, mine, now=1, actor="test", reason="a test")).result()

    adopted, write = Halt(), provider_settlement.write

    def stand_first(connection: Connection, row: ProviderTask, **columns: Any) -> ProviderTask:
        if columns.get("job") == another.public_id:  # it has the row, and saw that its job had ended
            adopted.stand()
        return write(connection, row, **columns)

    monkeypatch.setattr(provider_settlement, "write", stand_first)
    adopting = other.write(lambda c: provider_tasks.submitting(c, task, job=another.public_id, now=1))
    adopted.wait_until_reached()
    store.write(lambda c: jobs.redrive(c, jobs.get(c, mine.id), now=store.clock.now_ms(), actor="test")).result()
    (retried,) = claim(store)
    attempt = Attempt(
        store, retried.id, retried.public_id, retried.idempotency_key, retried.claim_no, lambda error: False
    )
    submission = Submission(attempt, Scripted(), 0)
    opened = store.write(
        lambda c: submission.open(c, request=task.request, key=task.submission_key, generation=1, quote=QUOTE)
    )
    stands(store, opened)
    adopted.release()
    adopting.result()
    assert opened.result() is False
    now = again(store, task)
    assert (now.state, now.job) == ("submitting", another.public_id)


def test_ending_a_job_takes_all_of_its_tasks_before_the_first_account(beside: tuple[Store, Store]) -> None:
    """What tells one of them its end holds it and wants the account; neither is run twice to leave a circle."""
    store, other = beside
    job, _ = store.enqueue("graph", {})
    first = task_of(store, "first", to="created", owner="default", job=job.public_id)
    second = task_of(store, "second", to="pending", owner="default", job=job.public_id)
    store.write(lambda c: jobs.fail(c, jobs.get(c, job.id), now=1, actor="test", reason="a test")).result()
    telling, letting, held = list[int](), list[int](), Halt()

    def tell(connection: Connection) -> None:
        telling.append(1)
        task = provider_task.lock(connection, second)
        held.stand()
        failed = ProviderStatus("failed", error={"message": "too dark"})
        provider_tasks.reconcile(connection, task, failed, source="webhook", actor="test", now=1)

    def let_go(connection: Connection) -> None:
        letting.append(1)
        cancelled_tasks.let_go(connection, jobs.get(connection, job.id), now=1, actor="test")

    told = other.write(tell)
    held.wait_until_reached()
    let = store.write(let_go)
    stands(store, let)
    held.release()
    told.result()
    let.result()
    assert (len(telling), len(letting)) == (1, 1)
    for task in (first, second):
        assert again(store, task).state == "failed"
        assert [kind for kind, _ in entries(store, task)] == ["charge", "refund"]
