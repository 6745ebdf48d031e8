"""Waits: what a job that is parked waits for, a signal or a moment, decided once and the same in every replay.

`open` until the signal comes (`met`) or the moment has passed (`over`), whichever is written first. A wait is opened
under the job's claim before its node stops, and looked at again in the transaction that parks the job, so no signal is
missed in between.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, bindparam, select, update

from everstep.checkpoints import claims, jobs, signals
from everstep.checkpoints.database import insert_or_ignore
from everstep.checkpoints.job import PARKED
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.schema import waits as table
from everstep.checkpoints.signals import Signal
from everstep.checkpoints.statements import Statement
from everstep.clock import rfc3339

INTERRUPT = "everstep-wait:"
"""How the ids of the interrupts begin by which a node says that it waits for no person."""


def asks_a_person(interrupt_id: object) -> bool:
    """Whether an interrupt of this id is a question; the others say that a node waits for a signal or a moment."""
    return not str(interrupt_id).startswith(INTERRUPT)


@dataclass(frozen=True)
class Wait:
    """A row of `waits`; times are UTC milliseconds.

    Attributes:
        key: Where in the job's graph it is made, and which of the equal ones there.
        signal: What it is for; None: for the moment alone.
        until_at: When it is over; None: only the signal ends it.
        state: `open`, `met` or `over`.
        value_json: The signal, if it is met.
    """

    id: int
    job_id: int
    key: str
    owner: str
    signal: str | None
    until_at: int | None
    state: str
    value_json: str | None
    node: str | None
    created_at: int
    decided_at: int | None

    @property
    def value(self) -> Any:
        """The signal's view, if it is met."""
        return None if self.value_json is None else json.loads(self.value_json)

    @property
    def interrupt_id(self) -> str:
        """The id of the interrupt its node raises while it is open."""
        return INTERRUPT + self.key

    def told(self) -> str:
        """What is waited for, in words."""
        what = [] if self.signal is None else [f"for {self.signal}"]
        return " ".join([*what, *([] if self.until_at is None else [f"until {rfc3339(self.until_at)}"])])

    def view(self) -> dict[str, Any]:
        """As commands and HTTP tell it."""
        return {
            "signal": self.signal,
            "until": rfc3339(self.until_at),
            "state": self.state,
            "node": self.node,
            "since": rfc3339(self.created_at),
            "decided_at": rfc3339(self.decided_at),
        }


_OF_JOB = Statement(select(table).where(table.c.job_id == bindparam("job_id")).order_by(table.c.id))


def _wait(row: RowMapping) -> Wait:
    return Wait(**row)


def of_job(connection: Connection, job_id: int) -> list[Wait]:
    """A job's waits, oldest first."""
    return [Wait(**row) for row in _OF_JOB.rows(connection, {"job_id": job_id})]


def begin(
    connection: Connection,
    *,
    job_id: int,
    claim_no: int,
    key: str,
    signal: str | None,
    until_at: int | None,
    node: str | None,
    now: int,
) -> Wait:
    """The wait of this key: opened now, or as it is; decided, if its signal was emitted or its moment has passed.

    Args:
        connection: The write transaction.
        job_id: Row id of the job.
        claim_no: The claim under which its graph runs.
        key: What makes it the same wait in a replay.
        signal: What to wait for.
        until_at: When to stop waiting, UTC milliseconds; of a wait that was opened before, that one's stands.
        node: The node that waits.
        now: UTC milliseconds.

    Raises:
        LostClaim: The claim is no longer the job's.
    """
    job = jobs.get(connection, job_id)
    if signal is not None:
        signals.hold(connection, job.owner, signal)  # before the job's row, as who emits takes them
    claims.fence(connection, job_id, claim_no)
    values = {
        "job_id": job_id,
        "key": key,
        "owner": job.owner,
        "signal": signal,
        "until_at": until_at,
        "state": "open",
        "node": node,
        "created_at": now,
    }
    insert_or_ignore(connection, table, values)
    found = _wait(
        connection.execute(select(table).where(table.c.job_id == job_id, table.c.key == key)).mappings().one()
    )
    return _decided(connection, found, now)


def _decided(connection: Connection, wait: Wait, now: int) -> Wait:
    """The wait, decided if it can be."""
    if wait.state != "open":
        return wait
    signal = None if wait.signal is None else signals.find(connection, wait.owner, wait.signal)
    if signal is not None:
        return _decide(connection, wait, now, state="met", value_json=json.dumps(signal.view()))
    if wait.until_at is not None and wait.until_at <= now:
        return _decide(connection, wait, now, state="over")
    return wait


def _decide(connection: Connection, wait: Wait, now: int, **values: Any) -> Wait:
    mine = and_(table.c.id == wait.id, table.c.state == "open")
    connection.execute(update(table).where(mine).values(decided_at=now, **values))
    return _wait(connection.execute(select(table).where(table.c.id == wait.id)).mappings().one())


def meet(connection: Connection, signal: Signal, *, now: int) -> int:
    """Decide the open waits for a signal that was emitted, and make their jobs due; how many there were.

    Args:
        connection: The write transaction, which holds the signal's name (`signals.hold`).
        signal: The signal.
        now: UTC milliseconds.
    """
    asked = and_(table.c.owner == signal.owner, table.c.signal == signal.name, table.c.state == "open")
    waiting = select(table.c.job_id).where(asked)
    held = select(agent_jobs.c.id).where(agent_jobs.c.id.in_(waiting)).order_by(agent_jobs.c.id).with_for_update()
    ids = [int(row[0]) for row in connection.execute(held)]
    if not ids:
        return 0
    met = and_(asked, table.c.job_id.in_(ids))
    values = {"state": "met", "value_json": json.dumps(signal.view()), "decided_at": now}
    number = connection.execute(update(table).where(met).values(**values)).rowcount
    for job_id in ids:
        wake(connection, jobs.get(connection, job_id), now=now)
    return number


def wake(connection: Connection, job: jobs.Job, *, now: int) -> None:
    """If the job is parked, let it look now."""
    if job.status == "pending" and now < job.next_run_at <= PARKED:
        jobs.set_due(connection, job, now)


def parked(connection: Connection, job: jobs.Job, keys: Collection[str], *, now: int) -> tuple[int, Sequence[Wait]]:
    """When a job whose graph waits is to look again, UTC milliseconds: now, if one of its waits is decided.

    Args:
        connection: The write transaction, which holds the job's row.
        job: The job.
        keys: The waits its graph stands at.
        now: UTC milliseconds.

    Returns:
        The moment, `PARKED` if only a signal wakes it; and the waits.
    """
    mine = [wait for wait in of_job(connection, job.id) if wait.key in keys]
    if any(wait.state != "open" for wait in mine):
        return now, mine
    return min([PARKED, *(wait.until_at for wait in mine if wait.until_at is not None)]), mine


def still_open(connection: Connection, job_id: int, *, now: int) -> list[str]:
    """Keys of a job's waits that neither a signal nor a moment has ended."""
    waiting = [wait for wait in of_job(connection, job_id) if wait.state == "open"]
    return [wait.key for wait in waiting if wait.until_at is None or wait.until_at > now]


def awaited(connection: Connection, *, owner: str | None, limit: int) -> list[tuple[Wait, str]]:
    """Open waits of jobs that go on, with the ids of their jobs, oldest first.

    Args:
        connection: A snapshot.
        owner: Only theirs; None: everybody's.
        limit: How many at most.
    """
    goes_on = agent_jobs.c.status.not_in(("done", "failed"))
    query = select(table, agent_jobs.c.public_id.label("job")).join(agent_jobs, agent_jobs.c.id == table.c.job_id)
    query = query.where(table.c.state == "open", goes_on).order_by(table.c.id).limit(limit)
    if owner is not None:
        query = query.where(table.c.owner == owner)
    rows = [dict(row) for row in connection.execute(query).mappings()]
    return [(Wait(**{name: value for name, value in row.items() if name != "job"}), row["job"]) for row in rows]
