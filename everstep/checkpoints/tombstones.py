"""Tombstones: what is left of a job that was deleted, so that its key still answers for it, for a stated time.

Every function runs inside a transaction it is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from everstep.checkpoints.schema import tombstones as table
from everstep.checkpoints.statements import Statement
from everstep.clock import rfc3339
from everstep.errors import JobPruned, KeyConflict

if TYPE_CHECKING:
    from everstep.checkpoints.jobs import Job

FORGET_AT_ONCE = 1000
_WITH_KEY = Statement(select(table).where(table.c.idempotency_key == bindparam("idempotency_key")))


def leave(connection: Connection, jobs: Sequence[Job], *, now: int, expires_at: int) -> None:
    """Write the tombstones of jobs that are deleted in this transaction.

    Args:
        connection: The write transaction.
        jobs: The jobs.
        now: UTC milliseconds.
        expires_at: From when on their keys are free, UTC milliseconds.
    """
    connection.execute(delete(table).where(table.c.idempotency_key.in_([job.idempotency_key for job in jobs])))
    stones = [
        {
            "idempotency_key": job.idempotency_key,
            "public_id": job.public_id,
            "graph": job.graph,
            "payload_digest": job.payload_digest,
            "status": job.status,
            "result_digest": job.result_digest,
            "pruned_at": now,
            "expires_at": expires_at,
        }
        for job in jobs
    ]
    connection.execute(insert(table), stones)


def require_free(connection: Connection, key: str, payload_digest: str, *, now: int) -> None:
    """Refuse a key whose job was deleted, until its tombstone expires; one that has expired is removed.

    Raises:
        JobPruned: The job had the same graph and payload.
        KeyConflict: It had another.
    """
    found = _WITH_KEY.run(connection, {"idempotency_key": key}).fetchone()
    if found is None:
        return
    stone = dict(zip(table.c.keys(), found, strict=True))
    if stone["expires_at"] <= now:
        connection.execute(delete(table).where(table.c.id == stone["id"]))
        return
    was = f"job {stone['public_id']} ({stone['status']}), which was deleted at {rfc3339(stone['pruned_at'])}"
    until = rfc3339(stone["expires_at"])
    ids = {
        "key": key,
        "job": stone["public_id"],
        "status": stone["status"],
        "pruned_at": rfc3339(stone["pruned_at"]),
        "expires_at": until,
    }
    if stone["payload_digest"] != payload_digest:
        raise KeyConflict(
            f"the key {key!r} belongs to {was} and had another graph or input",
            next_step=f"give this input another --key; this one is free again from {until} on",
            **ids,
        )
    raise JobPruned(
        f"the key {key!r} belongs to {was}; nothing is done again",
        next_step=f"to run it again on purpose, give another --key or --workflow-version; the key is free from {until}",
        result_digest=stone["result_digest"],
        **ids,
    )


def expired(connection: Connection, *, now: int) -> int:
    """How many tombstones have expired."""
    return connection.execute(select(func.count()).select_from(table).where(table.c.expires_at <= now)).scalar_one()


def forget(connection: Connection, *, now: int) -> int:
    """Delete some tombstones that have expired, at most `FORGET_AT_ONCE`.

    Returns:
        How many.
    """
    some = select(table.c.id).where(table.c.expires_at <= now).limit(FORGET_AT_ONCE)
    return connection.execute(delete(table).where(table.c.id.in_(some))).rowcount
