"""Which ready jobs may start now: limits on how many run at once, and the gates of the services they need.

Jobs that run under a lease that has expired hold no place (prefect#7239).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, exists, func, not_, or_, select, true

from everstep.checkpoints import job_statements, services
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.schema import agent_jobs, job_services
from everstep.checkpoints.services import Service

ANYBODY_TRIES_FROM = 3
"""After so many tries in a row that met the outage any job may try: it may be the fault of the one that did."""
_LOCK = 0x4556434C  # any number, as long as all workers take the same, and no migration


@dataclass(frozen=True)
class Limits:
    """Most jobs at once, over all workers; what is not named is not limited.

    Attributes:
        graphs: By graph.
        services: By service.
        per_key: Of one concurrency key.
        probed: Services with a probe of their own, which jobs do not try.
    """

    graphs: Mapping[str, int] = field(default_factory=dict[str, int])
    services: Mapping[str, int] = field(default_factory=dict[str, int])
    per_key: int = 1
    probed: frozenset[str] = frozenset()


@dataclass
class Admission:
    """What may start, kept current while jobs are taken in one transaction."""

    limits: Limits
    graphs: Collection[str] | None
    closed: dict[str, Service]
    held: set[str]
    by_graph: Counter[str]
    by_key: Counter[str]
    by_service: Counter[str]
    now: int
    keyed: bool

    @classmethod
    def of_all(cls, limits: Limits, *, now: int, graphs: Collection[str] | None = None) -> Admission:
        """All may start that have no concurrency key: no gate is closed, and nothing is limited."""
        return cls(limits, graphs, {}, set(), Counter(), Counter(), Counter(), now, keyed=False)

    @classmethod
    def read(
        cls,
        connection: Connection,
        limits: Limits,
        *,
        now: int,
        graphs: Collection[str] | None = None,
        dead_workers: Collection[str] = (),
        lock: bool = True,
    ) -> Admission:
        """What runs now.

        Args:
            connection: The transaction.
            limits: How many may.
            now: UTC milliseconds.
            graphs: The graphs the asking worker has; None: all.
            dead_workers: Workers proven dead: what they hold does not run.
            lock: Keep other workers from counting at the same time; one that only looks need not.
        """
        any_closed, keyed = job_statements.CLOSED_AND_KEYED.run(connection).fetchone()
        if not (any_closed or keyed or limits.graphs or limits.services):
            return cls.of_all(limits, now=now, graphs=graphs)
        if lock and connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        closed = {service.name: service for service in services.every(connection, gate="closed")}
        runs = and_(
            agent_jobs.c.status == "running",
            agent_jobs.c.lease_until > now,
            agent_jobs.c.leased_by.not_in(tuple(dead_workers)),
        )
        held = {name for name, service in closed.items() if _is_held(connection, service, limits, now, runs)}
        return cls(
            limits,
            graphs,
            closed,
            held,
            _count(connection, agent_jobs.c.graph, runs) if limits.graphs else Counter(),
            _count(connection, agent_jobs.c.concurrency_key, runs) if keyed else Counter(),
            _count(connection, job_services.c.service, runs) if limits.services else Counter(),
            now,
            bool(keyed),
        )

    def clause(self) -> ColumnElement[bool]:
        """What a ready job must satisfy. One that is taken over from a dead worker runs already: no gate holds it."""
        conditions: list[ColumnElement[bool]] = [true()]
        if not self.keyed:  # what comes meanwhile was not counted with
            conditions.append(agent_jobs.c.concurrency_key.is_(None))
        if graphs := [name for name, limit in self.limits.graphs.items() if self.by_graph[name] >= limit]:
            conditions.append(agent_jobs.c.graph.not_in(graphs))
        if keys := [key for key, number in self.by_key.items() if number >= self.limits.per_key]:
            conditions.append(or_(agent_jobs.c.concurrency_key.is_(None), agent_jobs.c.concurrency_key.not_in(keys)))
        if full := [name for name, limit in self.limits.services.items() if self.by_service[name] >= limit]:
            conditions.append(not_(_needs(full)))
        if self.held:
            conditions.append(or_(agent_jobs.c.status == "running", not_(_needs(self.held))))
        if tried := self._tried():  # by a job that met the outage, where one could start now
            met = and_(
                agent_jobs.c.status == "retry",
                agent_jobs.c.next_run_at <= self.now,
                agent_jobs.c.id == job_services.c.job_id,
                agent_jobs.c.id.not_in(_needing(self.held)),
                self._mine(),
            )
            known = select(job_services.c.service).join(agent_jobs, met).where(job_services.c.service.in_(tried))
            new = select(job_services.c.job_id).where(job_services.c.service.in_(known))
            conditions.append(or_(agent_jobs.c.status != "pending", agent_jobs.c.id.not_in(new)))
        return and_(*conditions)

    def held_by(self, running: Collection[int]) -> Hashable:
        """What tells, as long as it is the same, that jobs which may not start still may not.

        Args:
            running: Row ids of the jobs that the asking worker runs.

        Returns:
            None if that depends on other jobs.
        """
        if self._tried():
            return None
        return (
            frozenset(self.held),
            frozenset(name for name, limit in self.limits.graphs.items() if self.by_graph[name] >= limit),
            frozenset(key for key, number in self.by_key.items() if number >= self.limits.per_key),
            frozenset(name for name, limit in self.limits.services.items() if self.by_service[name] >= limit),
            self.keyed,
            frozenset(running),
            None if self.graphs is None else frozenset(self.graphs),
        )

    def _tried(self) -> set[str]:
        return {name for name in self.closed.keys() - self.held if self.closed[name].outages < ANYBODY_TRIES_FROM}

    def _mine(self) -> ColumnElement[bool]:
        return true() if self.graphs is None else agent_jobs.c.graph.in_(self.graphs)

    def needs(self, connection: Connection, jobs: Sequence[Job]) -> dict[int, list[str]]:
        """The services each job needs, as far as they are limited or closed."""
        matter = {*self.closed, *self.limits.services}
        if not matter or not jobs:
            return {}
        found: dict[int, list[str]] = {}
        query = select(job_services.c.job_id, job_services.c.service).where(
            job_services.c.job_id.in_([job.id for job in jobs]), job_services.c.service.in_(matter)
        )
        for job_id, service in connection.execute(query):
            found.setdefault(job_id, []).append(service)
        return found

    def admits(self, job: Job, needed: Iterable[str]) -> bool:
        """Whether it may start, after those that were taken before it in this transaction."""
        limits, names = self.limits, list(needed)
        return not (
            (job.graph in limits.graphs and self.by_graph[job.graph] >= limits.graphs[job.graph])
            or (job.concurrency_key is not None and self.by_key[job.concurrency_key] >= limits.per_key)
            or any(name in limits.services and self.by_service[name] >= limits.services[name] for name in names)
            or (job.status != "running" and any(name in self.held for name in names))
        )

    def start(self, connection: Connection, job: Job, claim_no: int, needed: Iterable[str]) -> None:
        """It starts: it holds its places, and tries what is closed.

        Args:
            connection: The write transaction.
            job: The job.
            claim_no: The claim it starts under.
            needed: The services it needs.
        """
        self.by_graph[job.graph] += 1
        if job.concurrency_key is not None:
            self.by_key[job.concurrency_key] += 1
        for name in needed:
            self.by_service[name] += 1
            if name in self.closed and name not in self.held:
                services.begin_trial(connection, self.closed[name], job, claim_no, now=self.now)
                self.held.add(name)


def _is_held(connection: Connection, service: Service, limits: Limits, now: int, runs: ColumnElement[bool]) -> bool:
    if service.name in limits.probed or (service.opens_at or 0) > now:
        return True
    trial = and_(runs, agent_jobs.c.id == service.trial_job_id, agent_jobs.c.claim_no == service.trial_claim_no)
    return bool(connection.execute(select(exists().where(trial))).scalar_one())


def _count(connection: Connection, column: Any, runs: ColumnElement[bool]) -> Counter[str]:
    query = select(column, func.count()).where(runs, column.is_not(None)).group_by(column)
    if column.table is job_services:
        query = query.join_from(job_services, agent_jobs, agent_jobs.c.id == job_services.c.job_id)
    return Counter({str(row[0]): int(row[1]) for row in connection.execute(query)})


def _needs(names: Iterable[str]) -> ColumnElement[bool]:
    """Whether a job needs one of these services; asked of each job, since often only a few are looked at."""
    return exists().where(job_services.c.job_id == agent_jobs.c.id, job_services.c.service.in_(list(names)))


def _needing(names: Iterable[str]) -> Any:
    return select(job_services.c.job_id).where(job_services.c.service.in_(list(names)))
