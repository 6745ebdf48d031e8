"""What `everstep doctor` says of a record's health: from which values on something deserves a look, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from everstep.counts import counted

if TYPE_CHECKING:
    from everstep.checkpoints.health import Health
    from everstep.checkpoints.provider_health import ProviderHealth

LOG_BYTES = 256 * 1024 * 1024
OLDEST_DUE_MS = 15 * 60_000
OLDEST_REVIEW_MS = 24 * 3_600_000
OLDEST_PARKED_MS = 24 * 3_600_000
NAMED = 5
RETRIES_PER_HOUR = 100
LEASE_EXPIRIES_PER_HOUR = 10


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: `level` is `ok`, `warning` or `wrong`; `advice` is what to do."""

    check: str
    level: Literal["ok", "warning", "wrong"]
    detail: str
    advice: str = ""


def on_health(health: Health) -> Iterator[Finding]:
    """A finding for each part of the record's health; the thresholds stand in docs/health.md."""
    counts = [f"{number} {status}" for status, number in sorted(health.jobs.items()) if number]
    yield Finding("jobs", "ok", ", ".join(counts) or "none")
    yield _queue(health)
    if health.expired_leases:
        who = _named(health.expired_jobs, health.expired_leases)
        detail = f"{counted(health.expired_leases, 'running job')} whose worker is gone: {who}"
        yield Finding("leases", "warning", detail, "start one: everstep worker")
    if health.stuck:
        detail = f"{counted(health.stuck, 'job holds', 'jobs hold')} a living lease but stored nothing for long: "
        detail += _named(health.stuck_jobs, health.stuck)
        advice = "see which node it is (everstep show JOB); give its calls a time limit, or: everstep cancel JOB"
        yield Finding("stuck", "warning", detail, advice)
    if health.log_size is not None:
        yield _log(health.log_size)
    if health.unknown_effects:
        they = counted(health.unknown_effects, "effect nobody knows whether it", "effects nobody knows whether they")
        detail = f"of {they} happened"
        yield Finding("effects", "warning", detail, "say what became of them: everstep review")
    if health.open_reviews:
        waits = health.jobs["review"]
        oldest = health.oldest_review_ms or 0
        asked = counted(health.open_reviews, "question is", "questions are")
        detail = f"{counted(waits, 'job waits', 'jobs wait')} for a person" if waits else f"{asked} open"
        detail += f", the oldest question for {duration(oldest)}" if oldest >= OLDEST_REVIEW_MS else ""
        yield Finding("reviews", "warning", detail, "everstep review")
    yield from _tasks(health.providers)
    if health.overdue_ms is not None:
        detail = f"{len(health.overdue)} should have run, the first {duration(health.overdue_ms)} ago: "
        detail += ", ".join(health.overdue[:NAMED]) + (", …" if len(health.overdue) > NAMED else "")
        advice = "nobody runs schedules: everstep worker does, or everstep schedules run"
        yield Finding("schedules", "warning", detail, advice)
    if health.retries_last_hour > RETRIES_PER_HOUR:
        advice = "see what they have in common: everstep jobs --status retry"
        yield Finding("retries", "warning", f"{counted(health.retries_last_hour, 'failure')} in the last hour", advice)
    if health.lease_expiries_last_hour > LEASE_EXPIRIES_PER_HOUR:
        detail = f"{counted(health.lease_expiries_last_hour, 'job')} lost a worker in the last hour"
        advice = "find what ends the workers (memory? deployments that do not drain?)"
        yield Finding("expiries", "warning", detail, advice)


def _tasks(health: ProviderHealth) -> Iterator[Finding]:
    if unknown := health.in_state("submission_unknown"):
        detail = f"of {counted(unknown, 'paid submission')} nobody knows whether the provider took it: "
        detail += _named(health.unknown, unknown)
        advice = "look at the provider, then: everstep provider link TASK ID, or answer the review: everstep review"
        yield Finding("providers", "warning", detail, advice)
    if health.abandoned:
        tasks = counted(health.abandoned, "task of an ended job is", "tasks of ended jobs are")
        detail = f"{tasks} paid and never submitted: "
        detail += _named(health.abandoned_tasks, health.abandoned)
        advice = "submit with the same key again, or give the money back: everstep provider cancel TASK"
        yield Finding("providers", "warning", detail, advice)
    if health.unpolled:
        detail = f"nobody has asked for {counted(health.unpolled, 'provider task')} for 15 minutes after the time: "
        detail += _named(health.unpolled_tasks, health.unpolled)
        advice = "run a worker whose everstep.toml has the provider; the last failure: everstep provider show TASK"
        yield Finding("providers", "warning", detail, advice)
    if health.oldest_parked_ms is not None and health.oldest_parked_ms >= OLDEST_PARKED_MS:
        events = counted(health.parked, "event")
        detail = f"{events} of providers found no task, the oldest for {duration(health.oldest_parked_ms)}"
        yield Finding("providers", "warning", detail, "see which: everstep provider events")


def _queue(health: Health) -> Finding:
    if health.oldest_due_ms is None:
        return Finding("queue", "ok", "no job is due")
    oldest, job, detail = (
        health.oldest_due_ms,
        health.oldest_due_job,
        f"{counted(health.due, 'job is', 'jobs are')} due",
    )
    if health.held:
        which = "all" if health.held == health.due else f"{health.held}"
        detail += f", {which} of them held by a service that is out or a limit (everstep services, everstep.toml)"
        oldest, job = health.oldest_free_ms, health.oldest_free_job
    if oldest is None:
        return Finding("queue", "ok", detail)
    detail += f", the oldest {'of the others ' if health.held else ''}({job}) for {duration(oldest)}"
    if oldest < OLDEST_DUE_MS:
        return Finding("queue", "ok", detail)
    if health.busy_workers == 0:
        return Finding("queue", "warning", f"{detail}; nobody runs anything", "start a worker: everstep worker")
    detail += f"; {counted(health.busy_workers, 'worker runs', 'workers run')} other jobs"
    return Finding("queue", "warning", f"{detail}, and none takes it", "start more workers, or one that has its graph")


def _log(size: int) -> Finding:
    detail = f"write-ahead log of {size / 1e6:.1f} MB"
    if size <= LOG_BYTES:
        return Finding("wal", "ok", detail)
    advice = "something keeps an old snapshot open and it cannot shrink: end long reads of the file (shells, backups)"
    return Finding("wal", "warning", detail, advice)


def _named(ids: tuple[str, ...], number: int) -> str:
    return ", ".join(ids) + (", …" if number > len(ids) else "")


def duration(milliseconds: int) -> str:
    """A length of time in its largest whole unit."""
    seconds = milliseconds // 1000
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
