"""The health of a record as metrics in the text format of Prometheus.

https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4). All are gauges: they are read from the
record, where every process sees the same numbers, and hold for the moment of the look. Labels have few, fixed values.
"""

from __future__ import annotations

from collections.abc import Iterator

from everstep.checkpoints.health import Health

Sample = tuple[str, float]
"""Labels as they are written, or nothing; and the value."""


def exposition(health: Health) -> str:
    """The metrics, each with its help and type, ready to be served as `text/plain; version=0.0.4`."""
    lines: list[str] = []
    for name, help_text, samples in _metrics(health):
        lines += [f"# HELP everstep_{name} {help_text}", f"# TYPE everstep_{name} gauge"]
        lines += [f"everstep_{name}{labels} {_number(value)}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _metrics(health: Health) -> Iterator[tuple[str, str, list[Sample]]]:
    yield "jobs", "Jobs by state.", _labelled("state", health.jobs)
    yield "due_jobs", "Jobs that could start now by their time.", [("", health.due)]
    yield (
        "oldest_due_seconds",
        "How long the job that waits longest has been due, 0 if none is.",
        _seconds(health.oldest_due_ms),
    )
    yield "busy_workers", "Workers that hold a living lease.", [("", health.busy_workers)]
    yield "expired_leases", "Running jobs whose worker is gone.", [("", health.expired_leases)]
    yield "stuck_jobs", "Running jobs that stored nothing for an hour or ten leases.", [("", health.stuck)]
    yield "unknown_effects", "Effects nobody knows the outcome of.", [("", health.unknown_effects)]
    yield "open_reviews", "Questions that wait for a person.", [("", health.open_reviews)]
    yield "oldest_review_seconds", "Age of the oldest open question, 0 if none is.", _seconds(health.oldest_review_ms)
    yield "retries_last_hour", "Failures that are tried again, in the last hour.", [("", health.retries_last_hour)]
    yield (
        "lease_expiries_last_hour",
        "Jobs whose worker vanished, in the last hour.",
        [("", health.lease_expiries_last_hour)],
    )
    yield "services", "Services by the state of their gate.", _labelled("gate", health.services)
    yield "record_bytes", "Size of the record.", [("", health.size)]
    if health.log_size is not None:
        yield "wal_bytes", "Size of SQLite's write-ahead log.", [("", health.log_size)]


def _labelled(label: str, values: dict[str, int]) -> list[Sample]:
    return [(f'{{{label}="{value}"}}', number) for value, number in values.items()]


def _seconds(milliseconds: int | None) -> list[Sample]:
    return [("", (milliseconds or 0) / 1000)]


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
