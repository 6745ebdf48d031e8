"""What a thread waits for: the questions of its job that paused, while nothing else goes on there."""

from __future__ import annotations

from sqlalchemy import Connection, select

from everstep.checkpoints import reviews
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.turns import GOING


def open_on(connection: Connection, thread_id: str) -> list[Review]:
    """The questions that wait for an answer on a thread, oldest first; none while a job of it goes on."""
    on_thread = select(agent_jobs.c.id, agent_jobs.c.status).where(agent_jobs.c.thread_id == thread_id)
    live = connection.execute(on_thread.where(agent_jobs.c.status.in_((*GOING, "review")))).all()
    if any(row.status != "review" for row in live):
        return []
    return [review for row in live for review in reviews.of_job(connection, row.id) if review.status == "open"]
