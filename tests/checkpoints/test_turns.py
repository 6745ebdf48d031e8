"""Whose turn it is on a thread, where what came from a client meets what came otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection

from everstep.checkpoints import conversations, runs
from everstep.checkpoints.runs import Run, RunRequest
from everstep.checkpoints.store import Store
from everstep.errors import JobStateConflict

pytestmark = pytest.mark.both_databases


def post(store: Store, thread_id: str, **asked: Any) -> Run:
    """Admit a run to a thread, which is made if there is none."""

    def admit(connection: Connection) -> Run:
        conversations.ensure(connection, thread_id, owner="default", now=1)
        request = RunRequest("graph", "A", **asked)
        return runs.create(connection, request, thread_id=thread_id, owner="default", now=1, actor="http")

    return store.write(admit).result()


def test_a_job_is_not_retried_while_a_clients_run_is_on_its_thread(store: Store) -> None:
    """A job of the command line failed, and a client runs on its thread: a retry beside that run is refused."""
    job, _ = store.enqueue("graph", {})
    store.cancel(job.public_id)
    run = post(store, job.thread_id, input={})
    with pytest.raises(JobStateConflict, match=run.run_id):
        store.redrive(job.public_id)
    assert store.job(job.public_id).status == "failed"
