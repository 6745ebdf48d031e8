"""Deleting threads, each with its jobs, checkpoints and events in one transaction; and those whose time is over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import Connection, String, column, delete, select, table, update

from everstep.checkpoints import conversations, jobs, large_texts, retention
from everstep.checkpoints.conversations import ENDED
from everstep.checkpoints.schema import agent_jobs, threads
from everstep.checkpoints.schema import events as events_table
from everstep.checkpoints.thread import Thread, Ttl, thread_of
from everstep.errors import ThreadBusy

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

PART = 100


def remove(connection: Connection, thread: Thread, *, now: int, actor: str, checkpoint_tables: tuple[str, ...]) -> None:
    """Delete a thread with everything of it. Jobs on it that wait for a person are ended; their keys stay known.

    Args:
        connection: The write transaction.
        thread: The thread.
        now: UTC milliseconds.
        actor: Who does it.
        checkpoint_tables: LangGraph's tables.

    Raises:
        ThreadBusy: A run of it is in flight, nobody can say whether an effect of it happened, or a job of it has a
            parent or child that has not ended.
    """
    conversations.require_idle(connection, thread.thread_id)
    query = select(agent_jobs).where(agent_jobs.c.thread_id == thread.thread_id).order_by(agent_jobs.c.id)
    found = [jobs.job_of(row) for row in connection.execute(query.with_for_update()).mappings()]
    for job in found:
        if job.status in conversations.GOING:  # since the look
            raise _busy(thread, "a run of it is in flight", "wait for its end, or cancel it")
        if job.status not in ENDED:
            ended = jobs.end(connection, job, now=now, actor=actor, why="cancelled: its thread was deleted")
            if ended.status not in ENDED:
                raise _busy(thread, "an effect's outcome is unknown", "answer its review first: everstep review")
    ids = [job.id for job in found]
    tables = checkpoint_tables
    for start in range(0, len(ids), PART):
        part = ids[start : start + PART]
        gone = retention.remove(connection, part, now=now, key_days=retention.KEY_DAYS, checkpoint_tables=tables)
        if len(gone) < len(part):
            raise _busy(thread, "a job of it has a parent or child that has not ended", "wait for it, or cancel it")
    for name in checkpoint_tables:
        rows = table(name, column("thread_id", String))
        connection.execute(delete(rows).where(rows.c.thread_id == thread.thread_id))
    connection.execute(delete(events_table).where(events_table.c.thread_id == thread.thread_id))
    large_texts.remove(connection, [thread.thread_id])
    connection.execute(delete(threads).where(threads.c.thread_id == thread.thread_id))


def _busy(thread: Thread, why: str, next_step: str) -> ThreadBusy:
    message = f"thread {thread.thread_id} cannot be deleted: {why}"
    return ThreadBusy(message, next_step=next_step, thread_id=thread.thread_id)


def remove_expired(
    store: Store, *, dry_run: bool = False, most: int | None = None, progress: Callable[[int], None] | None = None
) -> int:
    """Delete, or cut to their newest checkpoint, threads whose time to live is over.

    One on which something is under way, or that waits for a person, stays until that is over.

    Args:
        store: The record.
        dry_run: Only count.
        most: How many at most.
        progress: Called with how many so far.

    Returns:
        How many threads.
    """
    now, done, last = store.clock.now_ms(), 0, 0
    while most is None or done < most:
        found = store.read(partial(_expired, now=now, after=last))
        if not found:
            return done
        last = found[-1][0]
        for _, thread in found:
            if most is not None and done >= most:
                return done
            done += _end(store, thread, now, dry_run)
        if progress is not None:
            progress(done)
    return done


def _expired(connection: Connection, now: int, after: int) -> list[tuple[int, Thread]]:
    waiting = select(agent_jobs.c.id).where(
        agent_jobs.c.thread_id == threads.c.thread_id, agent_jobs.c.status.not_in(ENDED)
    )
    query = select(*(each for each in threads.c if each.name != "values_json")).where(
        threads.c.expires_at <= now, threads.c.id > after, ~waiting.exists()
    )
    rows = connection.execute(query.order_by(threads.c.id).limit(PART)).mappings()
    return [(row["id"], thread_of(row)) for row in rows]


def _end(store: Store, thread: Thread, now: int, dry_run: bool) -> bool:
    """Whether its time was over; of one on which something happened since it was set, it begins anew."""
    ttl = thread.ttl or Ttl(0)
    expires_at = ttl.from_now(thread.updated_at)
    if dry_run:
        return expires_at <= now
    if expires_at > now:
        store.write(partial(_postpone, thread_id=thread.thread_id, expires_at=expires_at)).result()
        return False
    if ttl.strategy == "keep_latest":
        from everstep.checkpoints.saver import StepSaver

        StepSaver(store).prune([thread.thread_id])
        store.write(partial(_postpone, thread_id=thread.thread_id, expires_at=ttl.from_now(now))).result()
        return True
    deletion = partial(_remove_if_over, thread_id=thread.thread_id, now=now)
    try:
        store.write(partial(deletion, checkpoint_tables=store.database.checkpoint_tables)).result()
    except ThreadBusy:
        return False
    return True


def _remove_if_over(connection: Connection, thread_id: str, now: int, checkpoint_tables: tuple[str, ...]) -> None:
    conversations.require_idle(connection, thread_id)
    row = connection.execute(select(threads).where(threads.c.thread_id == thread_id)).mappings().first()
    if row is None:
        return
    thread = thread_of(row)
    if thread.ttl is not None and thread.ttl.from_now(thread.updated_at) <= now:
        remove(connection, thread, now=now, actor="ttl", checkpoint_tables=checkpoint_tables)


def _postpone(connection: Connection, thread_id: str, expires_at: int) -> None:
    connection.execute(update(threads).where(threads.c.thread_id == thread_id).values(expires_at=expires_at))
