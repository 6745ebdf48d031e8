"""Retention: deleting jobs that have ended, each with everything of it at once, and what is left to know their keys by.

A job and all that refers to it go in one transaction, and a tombstone takes its place there: until it expires, the same
key with the same payload is told what became of the job, instead of doing its work again. (dbos-transact-py#769)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    String,
    Table,
    and_,
    column,
    delete,
    exists,
    or_,
    select,
    table,
    update,
)

from everstep.checkpoints import (
    cancelled_tasks,
    events,
    jobs,
    large_texts,
    provider_events,
    replies,
    signals,
    slots,
    spans,
    stream_readers,
    tombstones,
    trigger_events,
)
from everstep.checkpoints import services as upstream
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.schema import agent_jobs, deliveries, metadata, services, threads, upstream_events
from everstep.errors import PayloadInvalid

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

ENDED = ("done", "failed")
PART = 500
BATCH = 100
"""Most jobs deleted in one transaction, so that nobody who writes waits long."""
DAY_MS = 86_400_000
MOST_DAYS = 36_500
DONE_DAYS, FAILED_DAYS, KEY_DAYS, OUTAGE_DAYS, SPAN_DAYS = 30.0, 90.0, 365.0, 90.0, 30.0
EVENT_DAYS = 7.0


@dataclass(frozen=True)
class Rules:
    """How long what has ended is kept.

    Attributes:
        done_days: Days a job is kept after it was done.
        failed_days: Days a job is kept after it failed, or was cancelled or rejected.
        key_days: Days the key of a deleted job is known after the deletion.
        outage_days: Days it is known that a job met an outage of a service.
        span_days: Days a span is kept that waits for no destination; with its job it goes earlier.
        event_days: Days what a run emitted is kept after it is over; its end stays with it.
        graph: Only jobs of this graph; keys, outages, spans and events whose time is over go whatever their graph.

    Raises:
        PayloadInvalid: A number of days is out of range.
    """

    done_days: float = DONE_DAYS
    failed_days: float = FAILED_DAYS
    key_days: float = KEY_DAYS
    outage_days: float = OUTAGE_DAYS
    span_days: float = SPAN_DAYS
    event_days: float = EVENT_DAYS
    graph: str | None = None

    def __post_init__(self) -> None:
        for name in ("done_days", "failed_days", "key_days", "outage_days", "span_days", "event_days"):
            days: float = getattr(self, name)
            if not 0 <= days <= MOST_DAYS:  # NaN is neither
                raise PayloadInvalid(f"{name} is {days}", next_step=f"give a number from 0 to {MOST_DAYS}")

    def ended_before(self, now: int) -> dict[str, int]:
        """By status, the moment at or before which a job must have ended to be deleted, UTC milliseconds."""
        return {"done": now - int(self.done_days * DAY_MS), "failed": now - int(self.failed_days * DAY_MS)}


@dataclass
class Pruned:
    """What was deleted, or would be.

    Attributes:
        jobs: Jobs by status.
        kept: Jobs whose time is over but whose parents or children have not ended.
        keys: Tombstones whose time is over.
        outages: Rows of `upstream_events` whose time is over.
        spans: Spans whose time is over, of jobs that stay.
        events: Events of runs that stay.
        threads: Threads whose time to live is over.
        items: Items of the key-value store whose time to live is over.
    """

    jobs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDED, 0))
    kept: int = 0
    keys: int = 0
    outages: int = 0
    spans: int = 0
    events: int = 0
    threads: int = 0
    items: int = 0

    def add(self, deleted: Sequence[Job], candidates: int) -> None:
        """Count a batch."""
        for job in deleted:
            self.jobs[job.status] += 1
        self.kept += candidates - len(deleted)


def prune(
    store: Store, rules: Rules, *, dry_run: bool = False, progress: Callable[[Pruned], None] | None = None
) -> Pruned:
    """Delete what the rules no longer keep, in batches of `BATCH` jobs.

    Args:
        store: The record.
        rules: How long things are kept.
        dry_run: Only count.
        progress: Called after each batch with what was deleted so far.

    Returns:
        What was deleted, or would be.
    """
    from everstep.checkpoints import item_expiry, thread_removal

    now, pruned, last = store.clock.now_ms(), Pruned(), 0
    pruned.threads = thread_removal.remove_expired(store, dry_run=dry_run)
    pruned.items = item_expiry.forget(store, dry_run=dry_run)
    before, tables = rules.ended_before(now), store.database.checkpoint_tables
    while ids := store.read(partial(_candidates, before=before, graph=rules.graph, after=last)):
        last = ids[-1]
        if dry_run:
            deleted = store.read(partial(_deletable, job_ids=ids, before=before, lock=False))
        else:
            batch = partial(remove, job_ids=ids, now=now, key_days=rules.key_days, checkpoint_tables=tables)
            deleted = store.write(partial(batch, ended_before=before)).result()
        pruned.add(deleted, len(ids))
        if progress is not None:
            progress(pruned)
    met_before = now - int(rules.outage_days * DAY_MS)
    outages = store.read(partial(upstream.old_events, before=met_before))
    began_before = now - int(rules.span_days * DAY_MS)
    pruned.spans = _prune_spans(store, began_before, dry_run=True)
    if pruned.spans and not dry_run:
        pruned.spans = _prune_spans(store, began_before, dry_run=False)
    over_before = now - int(rules.event_days * DAY_MS)
    pruned.events = store.read(partial(events.old, before=over_before))
    if dry_run:
        pruned.keys, pruned.outages = store.read(partial(tombstones.expired, now=now)), outages
        return pruned
    while pruned.outages < outages and (
        forgotten := store.write(partial(upstream.forget_events, before=met_before)).result()
    ):
        pruned.outages += forgotten
    of_events, pruned.events = pruned.events, 0
    while pruned.events < of_events and (forgotten := store.write(partial(events.forget, before=over_before)).result()):
        pruned.events += forgotten
    large_texts.sweep(store)
    store.write(partial(stream_readers.forget, now=now)).result()
    while store.write(partial(slots.forget, before=before["done"])).result():
        pass
    while store.write(partial(replies.forget, now=now)).result():
        pass
    while store.write(partial(signals.forget, before=before["failed"])).result():
        pass
    while store.write(partial(trigger_events.forget, before=before["failed"])).result():
        pass
    parked_before = now - int(rules.key_days * DAY_MS)
    told = partial(provider_events.forget, before=before["failed"], parked_before=parked_before)
    while store.write(told).result():
        pass
    while forgotten := store.write(partial(tombstones.forget, now=now)).result():
        pruned.keys += forgotten
        if progress is not None:
            progress(pruned)
    return pruned


def _prune_spans(store: Store, before: int, *, dry_run: bool) -> int:
    """Delete, or count, old spans that are delivered; how many."""
    last: int | None = 0
    pruned = 0
    while last is not None:
        part = partial(spans.prune, before_ns=before * 1_000_000, after=last, dry_run=dry_run)
        number, last = store.read(part) if dry_run else store.write(part).result()
        pruned += number
    return pruned


def remove_all(
    store: Store, job_ids: Sequence[int], rules: Rules, *, now: int, ended_before: Mapping[str, int]
) -> list[Job]:
    """Delete these jobs as `remove` does, in batches.

    Args:
        store: The record.
        job_ids: Row ids of the jobs.
        rules: How long their keys are known.
        now: UTC milliseconds.
        ended_before: By status, when a job must have ended, UTC milliseconds.

    Returns:
        The jobs that were deleted.
    """
    batch = partial(remove, now=now, key_days=rules.key_days, ended_before=ended_before)
    tables = store.database.checkpoint_tables
    deleted: list[Job] = []
    for start in range(0, len(job_ids), BATCH):
        ids = job_ids[start : start + BATCH]
        deleted += store.write(partial(batch, job_ids=ids, checkpoint_tables=tables)).result()
    return deleted


def remove(
    connection: Connection,
    job_ids: Sequence[int],
    *,
    now: int,
    key_days: float,
    checkpoint_tables: tuple[str, ...],
    ended_before: Mapping[str, int] | None = None,
) -> list[Job]:
    """Delete jobs that have ended, with everything of them; their keys stay as tombstones. Keep `job_ids` short.

    What they were charged for and never submitted is given back.

    A job that has not ended, or whose parent or child has not, stays: a budget counts what children use.

    Args:
        connection: The write transaction.
        job_ids: Row ids of the jobs.
        now: UTC milliseconds.
        key_days: Days their keys are known from now on.
        checkpoint_tables: LangGraph's tables.
        ended_before: By status, when a job must have ended, UTC milliseconds; whenever, if omitted.

    Returns:
        The jobs that were deleted.
    """
    deletable = _deletable(connection, job_ids, ended_before, lock=True)
    ids = [job.id for job in deletable]
    if not ids:
        return []
    own = _own_threads(connection, deletable)
    for referring in owned_tables():
        connection.execute(delete(referring).where(referring.c.job_id.in_(ids)))
    for name in checkpoint_tables:
        rows = table(name, column("thread_id", String))
        connection.execute(delete(rows).where(rows.c.thread_id.in_(own)))
    large_texts.remove(connection, own)
    connection.execute(delete(threads).where(threads.c.thread_id.in_(own)))
    connection.execute(update(upstream_events).where(upstream_events.c.job_id.in_(ids)).values(job_id=None))
    tried = {"trial_job_id": None, "trial_claim_no": None}
    connection.execute(update(services).where(services.c.trial_job_id.in_(ids)).values(**tried))
    _hand_on_children(connection, deletable)
    connection.execute(delete(agent_jobs).where(agent_jobs.c.id.in_(ids)))
    cancelled_tasks.withdraw_of(connection, [job.public_id for job in deletable], now=now, actor="retention")
    tombstones.leave(connection, deletable, now=now, expires_at=now + int(key_days * DAY_MS))
    return deletable


def _own_threads(connection: Connection, gone: Sequence[Job]) -> list[str]:
    """The threads that go with jobs: those that are theirs alone. A client's thread stays until it is deleted.

    That of a run without one is the run's own: it has no row any more.
    """
    on = [job.thread_id for job in gone]
    held = select(threads.c.thread_id).where(threads.c.thread_id.in_(on)).order_by(threads.c.id).with_for_update()
    clients = set(connection.execute(held).scalars())  # nobody admits another run to one meanwhile
    own = [job.thread_id for job in gone if job.thread_id == job.public_id or job.thread_id not in clients]
    others = select(agent_jobs.c.thread_id).where(
        agent_jobs.c.thread_id.in_(own), agent_jobs.c.id.not_in([job.id for job in gone])
    )
    shared = set(connection.execute(others).scalars())
    return [thread for thread in own if thread not in shared]


def owned_tables() -> list[Table]:
    """The tables whose rows belong to a job and go with it, those that refer to others of them first."""
    ordered = reversed(metadata.sorted_tables)
    return [each for each in ordered if any(key.column is agent_jobs.c.id for key in each.foreign_keys)]


def _candidates(connection: Connection, before: Mapping[str, int], graph: str | None, after: int) -> list[int]:
    untold = exists().where(deliveries.c.job_id == agent_jobs.c.id, deliveries.c.state == "pending")
    query = select(agent_jobs.c.id).where(agent_jobs.c.id > after, _over(before), ~untold)
    query = query if graph is None else query.where(agent_jobs.c.graph == graph)
    return [row.id for row in connection.execute(query.order_by(agent_jobs.c.id).limit(BATCH))]


def _over(before: Mapping[str, int]) -> ColumnElement[bool]:
    return or_(*(and_(agent_jobs.c.status == status, agent_jobs.c.updated_at <= at) for status, at in before.items()))


def _deletable(
    connection: Connection, job_ids: Sequence[int], before: Mapping[str, int] | None, *, lock: bool
) -> list[Job]:
    """Those of the jobs that have ended, with all of their family; locked, they cannot be redriven meanwhile."""
    ended = agent_jobs.c.status.in_(ENDED) if before is None else _over(before)
    query = select(agent_jobs).where(agent_jobs.c.id.in_(job_ids), ended).order_by(agent_jobs.c.id)
    rows = connection.execute(query.with_for_update() if lock else query).mappings()
    found = [jobs.job_of(row) for row in rows]
    alive = _with_living_kin(connection, found, lock)
    return [job for job in found if job.id not in alive]


def _with_living_kin(connection: Connection, found: Sequence[Job], lock: bool) -> set[int]:
    """Row ids of those jobs that have an ancestor or a descendant that has not ended.

    Done ones also if an ancestor failed and stays: whoever retries it goes on with the budget that they used of.
    """
    kin = select(agent_jobs.c.id, agent_jobs.c.parent_id, agent_jobs.c.status).order_by(agent_jobs.c.id)
    kin = kin.with_for_update() if lock else kin
    alive: set[int] = set()
    below: dict[int, set[int]] = {
        job.id: {job.id} for job in found
    }  # by the row whose children come next: the jobs it descends from
    while below:
        rows = _in_parts(connection, kin, agent_jobs.c.parent_id, list(below))
        alive.update(*(below[row.parent_id] for row in rows if row.status not in ENDED))
        below = {row.id: below[row.parent_id] for row in rows}
    going, done = {job.id for job in found} - alive, {job.id for job in found if job.status == "done"}
    above: dict[int, set[int]] = {}  # by the row that comes next: the jobs that descend from it
    for job in found:
        if job.parent_id is not None:
            above.setdefault(job.parent_id, set()).add(job.id)
    while above:
        rows = _in_parts(connection, kin, agent_jobs.c.id, list(above))
        alive.update(*(above[row.id] for row in rows if row.status not in ENDED))
        alive.update(*(above[row.id] & done for row in rows if row.status == "failed" and row.id not in going))
        following: dict[int, set[int]] = {}
        for row in rows:
            if row.parent_id is not None:
                following.setdefault(row.parent_id, set()).update(above[row.id])
        above = following
    return alive


def _in_parts(
    connection: Connection, query: Select[Any, Any, Any], column: ColumnElement[Any], values: list[int]
) -> list[Any]:
    """The rows whose column has one of many values; a statement takes only so many."""
    parts = [values[start : start + PART] for start in range(0, len(values), PART)]
    return [row for part in parts for row in connection.execute(query.where(column.in_(part))).all()]


def _hand_on_children(connection: Connection, gone: Sequence[Job]) -> None:
    """The children of a deleted job become those of its parent, if it has one."""
    mine = agent_jobs.c.parent_id.in_([job.id for job in gone])
    parents = {row.parent_id for row in connection.execute(select(agent_jobs.c.parent_id).where(mine).distinct())}
    for job in reversed(gone):  # the youngest first: a child is younger than its parent
        if job.id in parents:
            connection.execute(
                update(agent_jobs).where(agent_jobs.c.parent_id == job.id).values(parent_id=job.parent_id)
            )
