"""What a change of a thread's state from outside means to the job that waits on it."""

from __future__ import annotations

from sqlalchemy import Connection, select

from everstep.checkpoints import effects, jobs
from everstep.checkpoints.schema import agent_jobs


def end_waiting(connection: Connection, thread_id: str, *, now: int, actor: str) -> None:
    """A thread was brought to its end by a client: the job that waited on it for a person looks again, and is done.

    But if a person must say first what became of one of its effects.

    Args:
        connection: The write transaction.
        thread_id: The thread.
        now: UTC milliseconds.
        actor: Who did it.
    """
    waits = select(agent_jobs.c.id).where(agent_jobs.c.thread_id == thread_id, agent_jobs.c.status == "review")
    for job_id in connection.execute(waits).scalars().all():
        job = jobs.lock(connection, job_id)
        if job.status == "review" and not effects.unsettled(connection, job.id):
            reason = "its thread was brought to an end"
            jobs.transition(connection, job, "pending", now=now, actor=actor, reason=reason, next_run_at=now)
