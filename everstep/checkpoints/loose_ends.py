"""What the end of a leg has to tie up besides its job: looked for in the message that locks the job's row.

Most jobs end with none of it, and each look of its own would be a round trip to PostgreSQL. What is found here is only
whether there is any; `services`, `effects` and `reviews` say what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, exists, select

from everstep.checkpoints import jobs, services
from everstep.checkpoints.effects import IS_UNSETTLED
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.schema import agent_jobs, effects, reviews
from everstep.checkpoints.statements import Statement


class LooseEnds(NamedTuple):
    """Whether there is any of each kind. None of them comes to be while a claim holds, but by the claim itself.

    Attributes:
        tried: Services that the job's claim tries.
        unsettled: Effects of which nobody knows yet whether they happened.
        asked: Open reviews.
    """

    tried: bool
    unsettled: bool
    asked: bool


_job = agent_jobs.c
_LOCK = Statement(
    select(
        exists().where(services.is_tried_by(_job.id, _job.claim_no)),
        exists().where(effects.c.job_id == _job.id, IS_UNSETTLED),
        exists().where(reviews.c.job_id == _job.id, reviews.c.status == "open"),
        agent_jobs,
    )
    .where(_job.id == bindparam("job"))
    .with_for_update(of=agent_jobs)
)


def lock(connection: Connection, job_id: int) -> tuple[Job, LooseEnds]:
    """As `jobs.lock`, with what is loose about the job."""
    row: Sequence[Any] = _LOCK.run(connection, {"job": job_id}).fetchone() or ()
    kinds = len(LooseEnds._fields)
    return jobs.found(connection, row[kinds:]), LooseEnds(*map(bool, row[:kinds]))
