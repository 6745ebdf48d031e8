"""Spans in the record: the first writer wins, a write that fails takes none with it, and old ones go."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Connection, select

from everstep.checkpoints import retention, span_outbox, spans
from everstep.checkpoints.schema import span_outbox as outbox_table
from everstep.checkpoints.schema import spans as spans_table
from everstep.checkpoints.spans import SpanWriter
from everstep.checkpoints.store import Store
from everstep.observability.span_buffer import MUCH, ROOM, FinishedSpan, SpanBuffer

pytestmark = pytest.mark.both_databases


def span(number: int, *, body: bytes = b"body", started_ns: int = 1, step_ns: str | None = None) -> FinishedSpan:
    """A finished span."""
    return FinishedSpan(f"{number:016x}", started_ns, body, step_ns)


def job_of(store: Store) -> int:
    """The row of a job."""
    return store.enqueue("graph", {}).job.id


def write(store: Store, job_id: int, *finished: FinishedSpan, to: tuple[str, ...] = ("here",)) -> int:
    """Write spans of the first leg; how many were not there."""
    operation = partial(spans.write, job_id=job_id, leg=1, finished=finished, destinations=to, now=1)
    return store.write(operation).result()


def waiting(store: Store, name: str = "here") -> list[bytes]:
    """What waits for a destination, in its order."""
    return [one.body for one in store.read(partial(span_outbox.oldest, name=name, after=0, limit=1000))]


def test_of_two_writers_of_a_span_the_first_wins(store):
    """The second changes nothing, and queues nothing again."""
    job_id = job_of(store)
    assert write(store, job_id, span(1, body=b"first"), to=("here", "there")) == 1
    assert write(store, job_id, span(1, body=b"second"), span(2), to=("here", "there")) == 1
    assert waiting(store) == waiting(store, "there") == [b"first", b"body"]
    assert store.read(partial(spans.of_leg, job_id=job_id, leg=1)) == [
        ("0" * 15 + "1", b"first"),
        ("0" * 15 + "2", b"body"),
    ]


@pytest.fixture
def buffer() -> SpanBuffer:
    """The buffer of a leg."""
    return SpanBuffer()


@pytest.fixture
def writer(store: Store, buffer: SpanBuffer) -> SpanWriter:
    """What writes it."""
    return SpanWriter(store, buffer, job_of(store), 1, destinations=["here"], written=lambda: None)


def nothing(connection: Connection) -> None:
    """A write of the leg that changes nothing."""


def refused(connection: Connection) -> None:
    """A write of the leg that is refused."""
    raise ValueError("no")


def test_a_span_goes_with_the_next_write_that_does_not_fail(store, buffer, writer):
    """What a failed write had with it is not in the record, and goes with the one after it."""
    buffer.add(span(1))
    with pytest.raises(ValueError, match="no"):
        writer.submit(refused).result()
    assert waiting(store) == []
    buffer.add(span(2))
    writer.submit(nothing).result()
    assert len(waiting(store)) == 2
    writer.submit(nothing).result()
    assert len(waiting(store)) == 2


def test_a_steps_span_goes_with_what_the_step_wrote_and_not_before(store, buffer, writer):
    """Writes of others leave it; its own task's takes it, or the checkpoint of its graph, or the end of the leg."""
    buffer.add(span(1, body=b"a", step_ns="inner:1|a:task-a"))
    buffer.add(span(2, body=b"b", step_ns="inner:1|b:task-b"))
    buffer.add(span(3, body=b"c", step_ns="c:task-c"))
    writer.submit(nothing).result()
    writer.submit(nothing, task_id="sk-a").result()
    assert waiting(store) == []
    writer.submit(nothing, task_id="task-a").result()
    assert waiting(store) == [b"a"]
    writer.submit(nothing, graph_ns="inner:1").result()
    assert waiting(store) == [b"a", b"b"]
    buffer.release_all()
    writer.write_alone()
    store.write(nothing).result()
    assert waiting(store) == [b"a", b"b", b"c"]


def test_a_leg_that_writes_nothing_for_long_still_has_its_spans_written(store, buffer, writer):
    """Many spans do not wait for a step to end."""
    buffer.when_much(writer.write_alone)
    for number in range(MUCH):
        buffer.add(span(number))
    store.write(nothing).result()
    assert len(waiting(store)) == MUCH


def test_what_fails_beside_the_settlement_keeps_its_spans(store, buffer, writer):
    """A write that fails in the settlement's own commit gives its spans back after that, and they are written still."""
    go = threading.Event()
    store.write(lambda _connection: go.wait())
    buffer.add(span(1))
    failing, settling = writer.submit(refused), store.write(writer.write_rest)
    go.set()
    settling.result()
    assert isinstance(failing.exception(), ValueError)
    writer.forget_rest()
    writer.write_alone()
    store.write(nothing).result()
    assert len(waiting(store)) == 1


def test_spans_of_steps_are_bounded_too(buffer):
    """Where nothing else waits, the oldest step's own span goes."""
    for number in range(ROOM + 3):
        buffer.add(span(number, step_ns=f"n:{number}"))
    assert (len(buffer), buffer.lost) == (ROOM, 3)


def test_a_record_that_cannot_be_written_costs_the_oldest_ordinary_spans(buffer):
    """The buffer is bounded; what was lost is counted."""
    for number in range(ROOM + 3):
        buffer.add(span(number))
    assert (len(buffer), buffer.lost) == (ROOM, 3)
    assert buffer.take()[0] == span(3)


def test_prune_forgets_delivered_spans_after_their_time(store, clock):
    """Old spans that wait for nobody go, of jobs that stay as well; those that wait, and young ones, stay."""
    job_id, now_ns = job_of(store), clock.now_ms() * 1_000_000
    day_ns = 86_400_000_000_000
    write(store, job_id, span(1, started_ns=now_ns - 31 * day_ns), span(2, started_ns=now_ns - 29 * day_ns), to=())
    write(store, job_id, span(3, started_ns=now_ns - 31 * day_ns))
    assert store.prune(dry_run=True).spans == 1
    assert store.prune().spans == 1
    left = store.read(lambda connection: connection.execute(select(spans_table.c.span_id)).scalars().all())
    assert sorted(left) == ["0" * 15 + "2", "0" * 15 + "3"]


def test_a_pruned_job_takes_its_spans_along(store, clock):
    """Spans and what waits of them go with the job."""
    job, _ = store.enqueue("graph", {})
    write(store, job.id, span(1))
    store.cancel(job.public_id)
    clock.advance(91 * 86_400_000)
    assert store.prune(retention.Rules()).jobs["failed"] == 1

    def rows(connection: Connection) -> list[Any]:
        return [*connection.execute(select(spans_table)), *connection.execute(select(outbox_table))]

    assert store.read(rows) == []


def test_a_destination_is_taken_by_one_at_a_time(store):
    """Who looked at the same moment takes nothing; after the lease's end, or its release, another does."""

    def takes(holder: str, now: int) -> bool:
        return store.write(partial(span_outbox.take, name="here", holder=holder, now=now, lease_ms=100)).result()

    assert [takes("one", 0), takes("other", 0), takes("one", 50), takes("other", 149)] == [True, False, True, False]
    assert takes("other", 150)
    store.write(partial(span_outbox.release, name="here", holder="one", now=151)).result()
    assert not takes("one", 151)
    store.write(partial(span_outbox.release, name="here", holder="other", now=152)).result()
    assert takes("one", 152)
