"""A leg's root says what was committed: a settlement that was rolled back may be made otherwise, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from sqlalchemy import Connection

from everstep.checkpoints import spans
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.errors import StoreUnavailable
from everstep.observability import provider, tracing
from everstep.runtime.claiming import Claiming
from everstep.runtime.outage import RecordOutage
from everstep.runtime.worker import Worker
from tests.observability.conftest import stored_spans
from tests.support.jobs import chain


def root_of(store: Store, job: Job, leg: int = 1) -> dict[str, Any]:
    """The root in the record, when all was written."""
    store.write(lambda _connection: None).result()
    rows = store.read(lambda connection: spans.of_leg(connection, job.id, leg))
    (body,) = [body for span_id, body in rows if span_id == tracing.root_span_id(job.public_id, leg)]
    (root,) = stored_spans(body)
    return root


def working(store: Store, graph: Any) -> Worker:
    """A worker whose spans go into the record."""
    return Worker(store, {"graph": graph}, tracing=provider.recorded((), "1.2.3"))


def broken_once(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """The first settlement is rolled back by an outage, at its end."""
    broken: list[int] = []
    claim_next = Claiming.claim_next

    def breaking(mine: Claiming, connection: Connection, running: Collection[int]) -> list[Job]:
        if not broken:
            broken.append(1)
            meanwhile()
            raise StoreUnavailable("the disk is full", next_step="")
        return claim_next(mine, connection, running)

    monkeypatch.setattr(Claiming, "claim_next", breaking)
    monkeypatch.setattr("everstep.runtime.run.SETTLE_RETRY_S", 0.01)


def failing(_state: Any) -> Any:
    """A node whose error is tried again."""
    raise ConnectionError("no answer")


def test_the_root_says_what_the_second_try_of_a_settlement_came_to(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job was to be tried again; while the record was away somebody cancelled it."""
    job = store.enqueue("graph", {"log": []}).job
    met = RecordOutage.met

    def cancelling(outage: RecordOutage, what: str, error: StoreUnavailable) -> None:
        met(outage, what, error)
        store.cancel(job.public_id)

    broken_once(monkeypatch, lambda: None)
    monkeypatch.setattr(RecordOutage, "met", cancelling)
    working(store, chain(failing)).run(until_idle=True)
    assert store.job(job.public_id).status == "failed"
    root = root_of(store, job)
    assert root["attributes"]["everstep.outcome"] == "failed"
    assert root["attributes"]["everstep.resume_command"] == f"everstep retry {job.public_id}"
    assert "langfuse.observation.level" not in root["attributes"]
    assert root["status"] == 2


def test_the_root_does_not_say_done_if_that_was_never_committed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is away as the worker ends: the job is left to its lease, and what became of the leg is unknown."""
    job = store.enqueue("graph", {"log": []}).job
    worker = working(store, chain(lambda _state: {"log": ["said"]}))
    broken_once(monkeypatch, worker.drain)
    worker.run()
    assert store.job(job.public_id).status == "running"
    root = root_of(store, job)
    assert root["attributes"]["everstep.outcome"] == "unknown"
    assert (
        root["attributes"]["langfuse.observation.metadata.detail"] == "its settlement may not have reached the record"
    )
