"""The legs of a job in `everstep show`: which trace each one is, and where it can be looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everstep.clock import rfc3339
from everstep.counts import counted
from everstep.observability.identity import trace_id

if TYPE_CHECKING:
    from everstep.checkpoints.jobs import Job
    from everstep.checkpoints.store import Store
    from everstep.observability.links import Links

SHOWN = 10


def legs_view(store: Store, job: Job, links: Links) -> list[dict[str, Any]]:
    """The legs, as `show --json` gives them."""
    from everstep.runtime.trace.legs import leg_rows

    return [
        {
            "leg": row.number,
            "trace_id": trace_id(job.public_id, row.number),
            "url": links.to(trace_id(job.public_id, row.number)),
            "worker": row.worker,
            "started_at": rfc3339(row.started_at),
            "ended_at": rfc3339(row.ended_at),
            "outcome": row.outcome,
        }
        for row in leg_rows(store, job)
    ]


def leg_lines(legs: list[dict[str, Any]], job_id: str) -> list[str]:
    """The newest legs, for people: number, outcome, and the link, or the trace's id where nothing is linked."""
    lines = [f"{leg['leg']:>3}  {leg['outcome']:<10}  {leg['url'] or 'trace ' + leg['trace_id']}" for leg in legs]
    earlier = len(lines) - SHOWN
    return [f"{counted(earlier, 'earlier one')}: everstep trace {job_id}", *lines[-SHOWN:]] if earlier > 0 else lines
