"""Claims: bounded ownership of a job by a worker, and the fence that makes every later write of a lost one void.

Every function runs inside a write transaction it is given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, or_, select, update

from everstep.checkpoints import deaths, job_statements
from everstep.checkpoints.admission import Admission, Limits
from everstep.checkpoints.job_statements import WAITING
from everstep.checkpoints.jobs import Job, LostClaim, Move, from_row, get, job_of, transition, transition_all
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.standstill import Standstill, newest_event
from everstep.checkpoints.starts import CLAIMED, in_order, start, start_first

MOMENT_MS = 2_000
"""Leases of one worker that end within this time are judged together; a worker beats each second."""
NO_LIMITS = Limits()
HOLD_UP_MS = 600_000
"""How long a suspect that must run alone keeps the jobs behind it from starting in a worker that is not idle."""


def claim(
    connection: Connection,
    *,
    now: int,
    worker: str,
    lease_ms: int,
    limit: int,
    dead_workers: Collection[str] = (),
    graphs: Sequence[str] | None = None,
    running: Collection[int] = (),
    limits: Limits | None = None,
    rebooted: Collection[str] = (),
    alone_from: int = deaths.ALONE,
    told: deaths.Told = deaths.nobody,
) -> list[Job]:
    """Take up to `limit` jobs that are ready, by priority and how long they have been due (`jobs.rank`).

    Ready is: pending or retry and due; or running under a lease that has expired, or whose worker is proven dead.
    Starts are counted here, before anything runs. What a worker that is gone held is judged first (`deaths`): several
    jobs are suspects; a single one has that death counted, and fails after `max_attempts` of them in a row.

    Args:
        connection: The write transaction.
        now: UTC milliseconds.
        worker: Id of the claiming worker.
        lease_ms: Length of the lease, milliseconds.
        limit: Most jobs to take.
        dead_workers: Worker ids that are proven dead, so that their leases need not run out.
        graphs: Only jobs of these graphs; all when None.
        running: Row ids of jobs this worker still runs; it does not take over from itself.
        limits: How many jobs may run at once, over all workers.
        rebooted: Those of `dead_workers` whose machine was started anew since: that explains their death.
        alone_from: From which degree (`deaths.degree`) a suspect is taken only while this worker runs nothing else, and
            with nothing else; those below it are run in processes of their own. It holds up the jobs behind it for ten
            minutes at most.
        told: Told of each leg whose process is found to be gone (`deaths.judge`).
    """
    limits = limits or NO_LIMITS
    if limit > 0 and not (dead_workers or limits.graphs or limits.services):
        started = start_first(
            connection, now=now, worker=worker, lease_ms=lease_ms, limit=limit, graphs=graphs, running=running
        )
        if started is not None:
            return started
    look = _Look(connection, limits, now, graphs, dead_workers, frozenset(running))
    passed_over: set[int] = set()
    claimed: list[Job] = []
    waiting: list[Move] = []
    judged: set[int] = set()

    def start_those_waiting() -> list[Job]:
        claimed.extend(transition_all(connection, waiting, now=now, actor=worker))
        waiting.clear()
        return claimed

    while (room := limit - len(claimed) - len(waiting)) > 0:
        found = look.first(room, passed_over | {move.job.id for move in waiting})
        admission = look.admission
        needed = admission.needs(connection, found)
        judged_before = len(judged)
        for job in found:
            services = needed.get(job.id, ())
            if job.id in judged:
                job = get(connection, job.id)
            if job.status not in (*WAITING, "running") or not admission.admits(job, services):
                continue
            reason, count = CLAIMED, dict[str, int]()
            if job.status == "running":
                start_those_waiting()  # a judgement looks at what else that worker held
                if deaths.is_unripe(connection, job, dead_workers, now=now, patience_ms=min(lease_ms // 2, MOMENT_MS)):
                    passed_over.add(job.id)
                    continue
                reason = f"taken over from {job.leased_by}, which is gone, at step {job.step}"
                judgement = deaths.judge(connection, job, dead_workers, rebooted, now=now, actor=worker, told=told)
                judged |= {job.id, *judgement.given_back}
                if judgement.count is None:
                    continue
                count = judgement.count
            alone = deaths.degree(replace(job, **count)) >= alone_from if count else deaths.degree(job) >= alone_from
            if alone and (claimed or waiting or running):
                _postpone(connection, job, count, now, worker)
                if now - job.next_run_at < HOLD_UP_MS:
                    return start_those_waiting()
                passed_over.add(job.id)
                continue
            waiting.append(start(job, reason, now=now, worker=worker, lease_ms=lease_ms, count=count))
            admission.start(connection, job, job.claim_no + 1, services)
            if alone or job.status == "running":
                start_those_waiting()
            if alone:
                return claimed
        if len(found) < room and len(judged) == judged_before:
            break
    return start_those_waiting()


def anything_ready(
    connection: Connection,
    *,
    now: int,
    graphs: Sequence[str] | None,
    limits: Limits | None = None,
    running: Collection[int] = (),
    memory: Standstill | None = None,
) -> bool:
    """Whether a claim would find anything; a look that locks nothing, and is quick as long as it remembers."""
    limits, memory = limits or NO_LIMITS, memory or Standstill()
    if not (limits.graphs or limits.services):
        look = job_statements.look_around(None if graphs is None else len(graphs))
        closed, keyed, ready = look.run(connection, {"now": now, **job_statements.numbered(graphs)}).fetchone()
        if not (closed or keyed):
            memory.forget()
            return bool(ready)
    admission = Admission.read(connection, limits, now=now, graphs=graphs, lock=False)
    may_start = and_(agent_jobs.c.id.not_in(tuple(running)), admission.clause())
    held_by = admission.held_by(running)
    event = newest_event(connection)
    changed = memory.changed(held_by, now=now)
    *waiting, lost = _ready(now, graphs, ())
    if changed is not None:
        waiting = [and_(part, one) for part in waiting for one in changed]
    found = or_(*(exists(select(agent_jobs.c.id).where(part, may_start)) for part in (*waiting, lost)))
    if connection.execute(select(found)).scalar_one():
        memory.forget()
        return True
    memory.remember(held_by, event=event, now=now, in_all=changed is None)
    return False


def other_holders(connection: Connection, *, worker: str, graphs: Sequence[str]) -> list[str]:
    """The other workers that hold a job of these graphs."""
    statement = job_statements.other_holders(len(graphs))
    values = {"leased_by": worker, **job_statements.numbered(graphs)}
    return [str(row[0]) for row in statement.run(connection, values).fetchall()]


class _Look:
    """What is ready: looked for without much ado as long as nothing limits which of it may start.

    Attributes:
        admission: Which of it may.
    """

    def __init__(
        self,
        connection: Connection,
        limits: Limits,
        now: int,
        graphs: Sequence[str] | None,
        dead_workers: Collection[str],
        running: frozenset[int],
    ) -> None:
        self._connection = connection
        self._running = running
        self._limits = limits
        self._now = now
        self._graphs = graphs
        self._dead_workers = dead_workers
        self._plain = not (dead_workers or limits.graphs or limits.services)
        self.admission = Admission.of_all(limits, now=now, graphs=graphs) if self._plain else self._read()

    def first(self, number: int, passed_over: Collection[int]) -> list[Job]:
        """The first so many jobs but for some, locked; what another transaction has locked is passed over.

        What the worker still runs is not among them.
        """
        passed_over = self._running.union(passed_over)
        if self._plain:
            found = self._found(number + len(passed_over - self._running), number + len(passed_over))
            if found is not None and any(job.id in self._running and job.status in WAITING for job in found):
                found = self._found(number + len(passed_over), number + len(passed_over))  # seldom: it hides others
            if found is not None:
                return _in_order(job for job in found if job.id not in passed_over)[:number]
            self._plain, self.admission = False, self._read()
        may_start = and_(agent_jobs.c.id.not_in(tuple(passed_over)), self.admission.clause())
        ready = _ready(self._now, self._graphs, self._dead_workers)
        return _first(self._connection, ready, may_start, number)

    def _found(self, most: int, most_lost: int) -> list[Job] | None:
        """The first of each kind; None if something limits what may start."""
        values = {"now": self._now, "most": most, "most_lost": most_lost, **job_statements.numbered(self._graphs)}
        graphs = None if self._graphs is None else len(self._graphs)
        rows = job_statements.look_for_ready(self._connection, graphs, values)
        return None if rows is None else [from_row(row) for row in rows]

    def _read(self) -> Admission:
        return Admission.read(
            self._connection, self._limits, now=self._now, graphs=self._graphs, dead_workers=self._dead_workers
        )


def _ready(now: int, graphs: Sequence[str] | None, dead_workers: Collection[str]) -> list[ColumnElement[bool]]:
    """As in `job_statements`; also what a worker holds that is proven dead."""
    due = agent_jobs.c.next_run_at + 0 <= now
    lost = or_(agent_jobs.c.lease_until <= now, agent_jobs.c.leased_by.in_(tuple(dead_workers)))
    parts = [and_(agent_jobs.c.status == status, due) for status in WAITING]
    parts.append(and_(agent_jobs.c.status == "running", lost))
    return parts if graphs is None else [and_(part, agent_jobs.c.graph.in_(graphs)) for part in parts]


def _first(
    connection: Connection, ready: list[ColumnElement[bool]], may_start: ColumnElement[bool], limit: int
) -> list[Job]:
    """The first of all parts, locked; what another transaction has locked is passed over."""
    order = (agent_jobs.c.due_rank, agent_jobs.c.id)
    found: list[Job] = []
    for part in ready:
        query = select(agent_jobs).where(part, may_start).order_by(*order).limit(limit)
        rows = connection.execute(query.with_for_update(skip_locked=True)).mappings()
        found += [job_of(row) for row in rows]
    return _in_order(found)[:limit]


def _in_order(found: Iterable[Job]) -> list[Job]:
    return sorted(found, key=in_order)


def _postpone(connection: Connection, job: Job, count: dict[str, int], now: int, worker: str) -> None:
    """A suspect whose turn it is while others run here: it waits until nothing does; one that was judged is let go."""
    if job.status == "running":
        reason = f"its worker {job.leased_by} is gone; it waits to run alone"
        transition(connection, job, "pending", now=now, actor=worker, reason=reason, next_run_at=now, **count)


def hand_over(
    connection: Connection, job_id: int, claim_no: int, *, holder: str, to: str, now: int, lease_ms: int
) -> None:
    """Pass a claim to the process that runs its job: from now on that one keeps the lease.

    Args:
        connection: The write transaction.
        job_id: Row id of the job.
        claim_no: The claim.
        holder: The worker that made the claim.
        to: Id of the process.
        now: UTC milliseconds.
        lease_ms: Length of the lease from now, milliseconds.

    Raises:
        LostClaim: The claim is no longer the job's.
    """
    fence(connection, job_id, claim_no)
    held = and_(agent_jobs.c.id == job_id, agent_jobs.c.leased_by == holder)
    connection.execute(update(agent_jobs).where(held).values(leased_by=to, lease_until=now + lease_ms))


def heartbeat(
    connection: Connection, *, now: int, worker: str, lease_ms: int, running: Collection[int]
) -> dict[int, tuple[int, bool]]:
    """Extend the leases this worker still holds, all at once; a job that is being written this moment at the next beat.

    Args:
        connection: The write transaction.
        now: UTC milliseconds.
        worker: Id of the worker.
        lease_ms: Length of the lease from now, milliseconds.
        running: Row ids of the jobs it runs; the lease of one it no longer runs, and could not settle, expires.

    Returns:
        For each job still held: row id → (claim number, whether its cancellation was requested).
    """
    held = and_(agent_jobs.c.status == "running", agent_jobs.c.leased_by == worker, agent_jobs.c.id.in_(tuple(running)))
    query = select(agent_jobs.c.id, agent_jobs.c.claim_no, agent_jobs.c.cancel_requested_at).where(held)
    rows = connection.execute(query.with_for_update(skip_locked=True)).all()
    mine = and_(held, agent_jobs.c.id.in_([row.id for row in rows]))
    connection.execute(update(agent_jobs).where(mine).values(lease_until=now + lease_ms))
    return {row.id: (row.claim_no, row.cancel_requested_at is not None) for row in rows}


def fence(connection: Connection, job_id: int, claim_no: int, *, writing: bool = True) -> None:
    """Check that the claim is still the job's, and keep it so until this transaction ends.

    Args:
        connection: The transaction.
        job_id: Row id of the job.
        claim_no: The claim.
        writing: Whether the transaction may write; one that only looks cannot keep anything so.

    Raises:
        LostClaim: It is not; the caller must write nothing.
    """
    statement = job_statements.HOLD_CLAIM if writing else job_statements.LOOK_AT_CLAIM
    if statement.run(connection, {"job": job_id, "claim": claim_no}).fetchone() is None:
        raise LostClaim(f"claim {claim_no} of job row {job_id} is no longer its claim")


def advance(
    connection: Connection, job_id: int, claim_no: int, *, now: int, progressed: int = 1, **columns: Any
) -> None:
    """Note, under the fence, where a job is, and that its input is now part of its thread.

    Args:
        connection: The write transaction.
        job_id: Row id of the job.
        claim_no: The claim that writes.
        now: UTC milliseconds.
        progressed: How often it brings the job further: a checkpoint or a finished task does, an error does not.
        **columns: What else to keep current: step, node, tokens.

    Raises:
        LostClaim: The claim is no longer the job's.
    """
    columns |= {"updated_at": now}
    values = {**columns, "job": job_id, "claim": claim_no, "more": int(progressed)}
    if job_statements.advance(tuple(columns)).run(connection, values).rowcount == 0:
        raise LostClaim(f"claim {claim_no} of job row {job_id} is no longer its claim")
