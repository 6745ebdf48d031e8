"""Scores of a job's legs, written to their traces."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.errors import PayloadInvalid
from everstep.observability import langfuse
from everstep.observability.destinations import LangfuseDestination
from everstep.observability.identity import trace_id
from everstep.observability.langfuse import Score
from everstep.runtime.trace.legs import find_leg, leg_rows

NAME_LIMIT, VALUE_LIMIT = 200, 500


@dataclass(frozen=True)
class Written:
    """A score that was written, and what it is about."""

    job_id: str
    leg: int
    score: Score


def score_leg(
    store: Store,
    job: Job,
    name: str,
    value: float | bool | str,
    *,
    comment: str | None = None,
    leg: int | None = None,
    settings: LangfuseDestination | None = None,
) -> Written:
    """Score a leg; a score of the same leg and name is replaced.

    Args:
        store: The record.
        job: The job.
        name: What is judged.
        value: A number, a truth value, or a category; text is read as it is typed on the command line.
        comment: Why.
        leg: Which leg; the newest when omitted.
        settings: Which Langfuse; the one of the environment when omitted.

    Raises:
        PayloadInvalid: The name or the value is empty or too long.
        LegNotFound: The job has no such leg.
        LangfuseUnusable: It is not configured, refuses the keys or the score, or its SDK is not installed.
        LangfuseUnavailable: It cannot be reached.
    """
    for what, text, limit in (("name", name, NAME_LIMIT), ("value", str(value), VALUE_LIMIT)):
        if not 0 < len(text.strip()) <= limit:
            next_step = f"give one of 1 to {limit} characters"
            raise PayloadInvalid(f"the score's {what} has {len(text)} characters", next_step=next_step)
    row = find_leg(leg_rows(store, job), job, leg)
    number, kind = langfuse.parsed(str(value))
    score = Score(
        id=langfuse.score_id(job.public_id, row.number, name),
        trace_id=trace_id(job.public_id, row.number),
        name=name,
        value=number,
        type=kind,
        comment=None if comment is None else comment[: langfuse.COMMENT_LIMIT],
        at_ms=row.started_at,
    )
    langfuse.send(settings or langfuse.required(), score)
    return Written(job.public_id, row.number, score)
