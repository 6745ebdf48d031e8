"""Jobs that ended, for those who delete them, and what the record still holds."""

from __future__ import annotations

from typing import Any

from sqlalchemy import update

from everstep.checkpoints import (
    jobs,
)
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.retention import Rules
from everstep.checkpoints.schema import (
    agent_jobs,
    metadata,
)
from everstep.checkpoints.store import Store
from everstep.runtime.settle import Outcome
from tests.support.record import begin_running, settled

AT_ONCE = Rules(done_days=0, failed_days=0)


def done(store: Store, name: Any = 1, **more: Any) -> Job:
    """A job that is done."""
    store.enqueue("graph", {"n": name}, **more)
    return settled(store, begin_running(store), Outcome("done", values={"n": name}))


def failed(store: Store, name: Any = 1, **more: Any) -> Job:
    """A job that failed."""
    job, _ = store.enqueue("graph", {"n": name}, **more)
    return change(store, job, "failed", error_json='{"code": "x", "message": "y"}')


def change(store: Store, job: Job, to: str, **columns: Any) -> Job:
    """Move a job."""
    now = store.clock.now_ms()
    return store.write(
        lambda c: jobs.transition(c, jobs.lock(c, job.id), to, now=now, actor="test", reason="", **columns)
    ).result()


def adopt(store: Store, child: Job, parent: Job) -> None:
    """Make a job the child of another."""
    store.write(
        lambda c: c.execute(update(agent_jobs).where(agent_jobs.c.id == child.id).values(parent_id=parent.id))
    ).result()


def rows(store: Store, *but: str) -> dict[str, int]:
    """How many rows each table has, if any."""
    names = {*metadata.tables, *store.database.checkpoint_tables} - set(but)
    counts = store.read(
        lambda c: {name: c.exec_driver_sql(f"SELECT count(*) FROM {name}").scalar_one() for name in sorted(names)}
    )
    return {name: count for name, count in counts.items() if count}


def names(store: Store) -> set[Any]:
    """The jobs that are there."""
    return {job.payload["n"] for job in store.jobs()}
