"""Services jobs need, each with one gate for all processes: while a service is out, its jobs wait and spend nothing.

A gate closes when a job reports an outage, and opens when one job that tries it comes further, when a probe says so, or
when a person does. Nothing secret is kept: the service's name, what is wrong and since when.

Every function runs inside a transaction it is given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)

from everstep.checkpoints.database import insert_or_ignore, notify
from everstep.checkpoints.job_statements import UNFINISHED
from everstep.checkpoints.jobs import LEVEL_MS, Job
from everstep.checkpoints.schema import agent_jobs, job_services, upstream_events
from everstep.checkpoints.schema import services as table
from everstep.checkpoints.statements import Statement
from everstep.errors import PayloadInvalid, ServiceNotFound

NAME = re.compile(r"[^\s/?#@]{1,253}")
"""A host with or without a port, or a library's name; never an address, which might hold credentials."""

SPREAD_MS = 250
MOST_SPREAD_MS = 60_000
FORGET_AT_ONCE = 1000
AGAIN_MS = 15_000
"""Jobs whose gate opens become due a quarter of a second apart, within a minute at most, and do not rush in at once."""


@dataclass(frozen=True)
class Service:
    """A row of `services`. Times are UTC milliseconds.

    Attributes:
        name: The host jobs call, such as `api.openai.com`, or the library.
        gate: `open`, or `closed` while it is out.
        symptom: What is wrong: `service_unavailable`, `rate_limited`, `usage_limit`, `payment_failed` or
            `subscription_ended`.
        closed_at: Since when.
        opens_at: From when one job tries it, or the probe is asked.
        outages: Tries in a row that met the outage.
        trial_job_id: Row id of the job that tries it, under the claim `trial_claim_no`.
    """

    id: int
    name: str
    gate: str
    symptom: str | None
    closed_at: int | None
    opens_at: int | None
    outages: int
    trial_job_id: int | None
    trial_claim_no: int | None
    updated_at: int

    def is_tried_by(self, job: Job) -> bool:
        """Whether that claim of the job is the one that tries it."""
        return (self.trial_job_id, self.trial_claim_no) == (job.id, job.claim_no)


@dataclass(frozen=True)
class Report:
    """What a job met.

    Attributes:
        service: The service's name.
        symptom: What is wrong with it.
        detail: What the person reads; nothing secret.
        tier: The plan the account should be on, if that is configured.
    """

    service: str
    symptom: str
    detail: str
    tier: str | None = None


def is_tried_by(job_id: ColumnElement[int], claim_no: ColumnElement[int]) -> ColumnElement[bool]:
    """Whether a service is tried by a claim of a job."""
    return and_(table.c.gate == "closed", table.c.trial_job_id == job_id, table.c.trial_claim_no == claim_no)


_TRIED_BY = Statement(select(table).where(is_tried_by(bindparam("job"), bindparam("claim"))))


def _service(row: RowMapping) -> Service:
    return Service(**row)


def every(connection: Connection, *, gate: str | None = None) -> list[Service]:
    """The services that are known, by name."""
    query = select(table).order_by(table.c.name)
    query = query if gate is None else query.where(table.c.gate == gate)
    return [_service(row) for row in connection.execute(query).mappings()]


def holding(connection: Connection, job_id: int) -> list[Service]:
    """The services that a job needs and that are out."""
    needed = select(job_services.c.service).where(job_services.c.job_id == job_id)
    query = select(table).where(table.c.gate == "closed", table.c.name.in_(needed)).order_by(table.c.name)
    return [_service(row) for row in connection.execute(query).mappings()]


def find(connection: Connection, name: str) -> Service:
    """The service of this name.

    Raises:
        ServiceNotFound: No job ever reported it, or needs it.
    """
    row = connection.execute(select(table).where(table.c.name == name.lower())).mappings().first()
    if row is None:
        known = ", ".join(service.name for service in every(connection)) or "none"
        raise ServiceNotFound(
            f"no service is named {name!r}", next_step=f"known services: {known} (everstep services)", service=name
        )
    return _service(row)


def need(connection: Connection, job_id: int, names: Sequence[str], *, now: int) -> None:
    """Note that a job needs services: it waits while one of them is out.

    Raises:
        PayloadInvalid: A name is none.
    """
    for name in dict.fromkeys(name.lower() for name in names):
        if not NAME.fullmatch(name):
            raise PayloadInvalid(
                f"{name!r} is no name of a service", next_step="give a host, such as api.openai.com, without https://"
            )
        insert_or_ignore(connection, job_services, {"job_id": job_id, "service": name})
        insert_or_ignore(connection, table, {"name": name, "gate": "open", "outages": 0, "updated_at": now})


def report(connection: Connection, job: Job, met: Report, *, now: int, wait_ms: Callable[[int], int]) -> Service:
    """Note an outage a job met, and close the service's gate.

    Of many jobs that meet one outage only the first, and those that tried it later, make the wait longer.

    Args:
        connection: The write transaction.
        job: The job as it was claimed.
        met: What it met.
        now: UTC milliseconds.
        wait_ms: How long to wait before the next try, by how many tries in a row failed before, milliseconds.

    Returns:
        The service as it is now.
    """
    need(connection, job.id, [met.service], now=now)
    connection.execute(
        insert(upstream_events).values(
            service=met.service,
            symptom=met.symptom,
            check_time=now,
            account_tier_expected=met.tier,
            job_id=job.id,
            detail=met.detail,
        )
    )
    row = connection.execute(select(table).where(table.c.name == met.service).with_for_update()).mappings().one()
    known = _service(row)
    first = known.gate == "open"
    counts = first or known.is_tried_by(job)
    opens_at = now + wait_ms(known.outages if counts else max(known.outages - 1, 0))
    if not counts:  # it began before the gate closed; it may have been asked to wait for longer
        opens_at = max(opens_at, known.opens_at or 0) if known.trial_job_id is None else known.opens_at or opens_at
    values = {
        "gate": "closed",
        "symptom": met.symptom,
        "closed_at": now if first else known.closed_at,
        "opens_at": opens_at,
        "outages": known.outages + counts,
        "updated_at": now,
    }
    if counts:
        values |= {"trial_job_id": None, "trial_claim_no": None}
    connection.execute(update(table).where(table.c.id == known.id).values(**values))
    return find(connection, met.service)


def begin_trial(connection: Connection, service: Service, job: Job, claim_no: int, *, now: int) -> None:
    """This claim of the job tries the service; all others wait for what comes of it."""
    trial = {"trial_job_id": job.id, "trial_claim_no": claim_no, "updated_at": now}
    connection.execute(update(table).where(table.c.id == service.id).values(**trial))


def tried_by(connection: Connection, job: Job) -> list[Service]:
    """The services that this claim of the job tries."""
    return [Service(**row) for row in _TRIED_BY.rows(connection, {"job": job.id, "claim": job.claim_no})]


def passed(connection: Connection, job: Job, *, now: int, but: str | None = None) -> list[Service]:
    """A claim came further, or ended: what it tried works again, except for the service whose outage it met."""
    opened = [service for service in tried_by(connection, job) if service.name != but]
    for service in opened:
        open_gate(connection, service, now=now)
    return opened


def end_trials(connection: Connection, job: Job, *, now: int) -> None:
    """A claim ended before it came anywhere: it tells nothing of what it was to try, and another may in a moment."""
    for service in tried_by(connection, job):
        opens_at = now + AGAIN_MS
        ended = {"trial_job_id": None, "trial_claim_no": None, "opens_at": opens_at, "updated_at": now}
        connection.execute(update(table).where(table.c.id == service.id).values(**ended))


def open_gate(connection: Connection, service: Service, *, now: int) -> int:
    """Open a service's gate; the jobs that wait for it become due one after another.

    Returns:
        How many they are.
    """
    connection.execute(
        update(table)
        .where(table.c.id == service.id)
        .values(
            gate="open",
            symptom=None,
            closed_at=None,
            opens_at=None,
            outages=0,
            trial_job_id=None,
            trial_claim_no=None,
            updated_at=now,
        )
    )
    met = agent_jobs.c.error_json.contains(f'"service": {json.dumps(service.name)}', autoescape=True)
    waits = and_(agent_jobs.c.status == "retry", agent_jobs.c.id.in_(_jobs_of(service.name)), met)
    number = connection.execute(select(func.count()).where(waits)).scalar_one()
    window = max(min(number * SPREAD_MS, MOST_SPREAD_MS), 1)
    due = literal(now) + (agent_jobs.c.id * 7919) % window
    connection.execute(
        update(agent_jobs).where(waits).values(next_run_at=due, due_rank=due - agent_jobs.c.priority * LEVEL_MS)
    )
    notify(connection)
    return number


def postpone(connection: Connection, service: Service, *, now: int, until: int, failed: bool) -> bool:
    """A probe of the service begins, or has failed: nobody else asks before `until`.

    Args:
        connection: The write transaction.
        service: The service as its caller saw it.
        now: UTC milliseconds.
        until: When it is asked again, UTC milliseconds.
        failed: Whether a probe failed.

    Returns:
        Whether it was as the caller saw it; else nothing was written.
    """
    same = and_(table.c.id == service.id, table.c.gate == "closed", table.c.opens_at == service.opens_at)
    values = {"opens_at": until, "outages": service.outages + failed, "updated_at": now}
    return connection.execute(update(table).where(same).values(**values)).rowcount == 1


def waiting(connection: Connection, name: str, *, owner: str | None = None) -> list[str]:
    """Ids of the jobs that need a service and have not ended, oldest first; only an owner's if one is given."""
    query = (
        select(agent_jobs.c.public_id)
        .where(agent_jobs.c.id.in_(_jobs_of(name)), agent_jobs.c.status.in_(UNFINISHED))
        .order_by(agent_jobs.c.id)
    )
    query = query if owner is None else query.where(agent_jobs.c.owner == owner)
    return [str(row[0]) for row in connection.execute(query)]


def events(connection: Connection, name: str, *, limit: int) -> list[dict[str, object]]:
    """The newest outages of a service, newest first."""
    query = (
        select(upstream_events, agent_jobs.c.public_id)
        .join(agent_jobs, agent_jobs.c.id == upstream_events.c.job_id, isouter=True)
        .where(upstream_events.c.service == name)
        .order_by(upstream_events.c.id.desc())
        .limit(limit)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def old_events(connection: Connection, *, before: int) -> int:
    """How many outages were met at this moment, UTC milliseconds, or before."""
    old = upstream_events.c.check_time <= before
    return connection.execute(select(func.count()).select_from(upstream_events).where(old)).scalar_one()


def forget_events(connection: Connection, *, before: int) -> int:
    """Delete some of these outages, at most `FORGET_AT_ONCE`; the state of a gate is not among them.

    Returns:
        How many.
    """
    old = upstream_events.c.check_time <= before
    some = select(upstream_events.c.id).where(old).limit(FORGET_AT_ONCE)
    return connection.execute(delete(upstream_events).where(upstream_events.c.id.in_(some))).rowcount


def _jobs_of(name: str) -> Select[int]:
    return select(job_services.c.job_id).where(job_services.c.service == name)
