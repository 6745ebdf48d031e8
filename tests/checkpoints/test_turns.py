"""Whose turn it is on a thread, where what came from a client meets what came otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection

from everstep.checkpoints import conversations, runs
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.runs import Run, RunRequest
from everstep.checkpoints.store import Store
from everstep.errors import JobStateConflict, ThreadNotFound
from everstep.runtime.settle import Outcome
from tests.support.record import begin_running, settled

pytestmark = pytest.mark.both_databases
THREAD = "019ad000-0000-7000-8000-000000000001"


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


def test_the_thread_of_a_run_alone_goes_though_a_person_answered_it(store: Store) -> None:
    """A stateless run paused and a person let it go on: its thread goes when that is over, as without the pause."""
    run = post(store, THREAD, input={}, delete_thread=True)
    question = Question("interrupt", "a" * 32, "who?")
    settled(store, begin_running(store), Outcome("review", questions=[question]))
    assert store.read(lambda c: conversations.find(c, THREAD)).status == "interrupted"
    (review,) = store.reviews()
    store.answer(review.public_id, "respond", value="me", by="ann")
    assert settled(store, begin_running(store), Outcome("done", values={})).id == run.job_id
    with pytest.raises(ThreadNotFound):
        store.read(lambda c: conversations.find(c, THREAD))
