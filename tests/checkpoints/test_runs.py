"""Runs on the thread of a job that came without a client, and what a run's end leaves."""

from __future__ import annotations

import json
import operator
import threading
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from everstep.checkpoints import claims, conversations, runs
from everstep.checkpoints.runs import Run, RunRequest
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.errors import JobStateConflict, ReviewAnswerInvalid, ThreadBusy
from everstep.runtime.worker import Worker
from tests.support.jobs import chain
from tests.support.waiting import PATIENCE, until

pytestmark = pytest.mark.both_databases


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def asking(questions: int = 1) -> Any:
    """A graph that asks so many questions at once."""
    builder = StateGraph(Log)
    for number in range(questions):
        builder.add_node(f"ask_{number}", lambda _s, number=number: {"log": [interrupt({"question": number})]})
        builder.add_edge(START, f"ask_{number}")
        builder.add_edge(f"ask_{number}", END)
    return builder.compile()


def work(store: Store, graph: Any) -> None:
    """Run what can run."""
    Worker(store, {"graph": graph}).run(until_idle=True)


def post(store: Store, thread_id: str, **asked: Any) -> Run:
    """Admit a run."""
    request, now = RunRequest("graph", "A", **asked), store.clock.now_ms()
    return store.write(
        lambda c: runs.create(c, request, thread_id=thread_id, owner="default", now=now, actor="http")
    ).result()


def made_thread(store: Store, thread_id: str = "019ad000-0000-7000-8000-000000000001") -> str:
    """A thread with a row."""
    now = store.clock.now_ms()
    store.write(lambda c: conversations.ensure(c, thread_id, owner="default", now=now)).result()
    return thread_id


def test_a_run_waits_for_a_job_that_came_without_a_client(store: Store) -> None:
    """A job of the command line runs on its own thread; a client's run there begins when it is over."""
    job, _ = store.enqueue("graph", {"log": ["mine"]})
    made_thread(store, job.thread_id)
    now = store.clock.now_ms()
    store.write(lambda c: claims.claim(c, now=now, worker="w", lease_ms=1000, limit=1)).result()
    run = post(store, job.thread_id, input={"log": ["yours"]})
    assert store.job_by_row(run.job_id).next_run_at > now + 10**12, "its turn has not come"
    store.clock.advance(2000)  # type: ignore[attr-defined]
    work(store, asking())
    assert store.job(job.public_id).status == "failed", "the client's input took the place of its question"
    assert store.job_by_row(run.job_id).status == "review"


def test_a_client_answers_a_job_that_came_without_one(store: Store) -> None:
    """The question of a job of the command line is answered by a run on its thread, and that job goes on."""
    job, _ = store.enqueue("graph", {"log": []})
    work(store, asking())
    run = post(store, job.thread_id, command={"resume": "yes"})
    assert run.job_id == job.id
    work(store, asking())
    assert store.job(job.public_id).status == "done"
    assert store.read(lambda c: runs.find(c, run.run_id)).status == "success"


def test_an_answer_names_its_question_if_several_wait(store: Store) -> None:
    """Of two questions an answer without an id fits none; by id each is answered once."""
    thread = made_thread(store)
    post(store, thread, input={"log": []})
    graph = asking(2)
    work(store, graph)
    with pytest.raises(ReviewAnswerInvalid) as refused:
        post(store, thread, command={"resume": "yes"})
    first, second = refused.value.ids["interrupts"]
    post(store, thread, command={"resume": {first: "one"}})
    work(store, graph)
    with pytest.raises(JobStateConflict):
        post(store, thread, command={"resume": {first: "again"}})
    post(store, thread, command={"resume": {second: "two"}})
    work(store, graph)
    (job,) = store.jobs()
    assert job.status == "done"


def test_a_person_and_a_client_see_the_same_run(store: Store) -> None:
    """What a person answers goes on as a run that clients of the thread see."""
    thread = made_thread(store)
    first = post(store, thread, input={"log": []})
    work(store, asking())
    (review,) = store.reviews()
    store.answer(review.public_id, "respond", value="by hand", by="ann")
    newest, before = store.read(lambda c: runs.of_thread(c, thread))
    assert (before.run_id, before.status) == (first.run_id, "success")
    assert (newest.status, newest.job_id) == ("pending", first.job_id)
    work(store, asking())
    assert store.read(lambda c: runs.find(c, newest.run_id)).status == "success"


def test_a_busy_thread_refuses_by_strategy_alone(store: Store) -> None:
    """`reject` is refused while something is under way, and leaves nothing."""
    thread = made_thread(store)
    post(store, thread, input={"log": []})
    with pytest.raises(ThreadBusy):
        post(store, thread, input={"log": []}, strategy="reject")
    assert len(store.jobs()) == 1
    post(store, thread, input={"log": []}, strategy="interrupt")
    statuses = [run.status for run in store.read(lambda c: runs.of_thread(c, thread))]
    assert statuses == ["pending", "interrupted"]


def test_a_command_to_a_node_that_is_not_there_fails(store: Store) -> None:
    """A run that goes to no node of the graph fails with the names of those there are, and runs nothing."""
    thread = made_thread(store)
    post(store, thread, input={"log": []})
    work(store, asking())
    run = post(store, thread, command={"goto": "nowhere"})
    work(store, asking())
    found = store.read(lambda c: runs.find(c, run.run_id))
    assert found.status == "error"
    assert "'nowhere'" in (found.error_json or "")
    assert store.job_by_row(run.job_id).step == 0


def test_rollback_takes_the_steps_away(store: Store) -> None:
    """What a run did that gave way by `rollback` is gone from the thread before the next run starts."""
    thread = made_thread(store)
    go_on = threading.Event()

    def block(state: Log) -> Log:
        if state["log"][0] == "first":
            assert go_on.wait(PATIENCE)
        return {"log": ["end"]}

    graph = chain(lambda _s: {"log": ["step"]}, block, schema=Log)
    first = post(store, thread, input={"log": ["first"]})
    worker = threading.Thread(target=work, args=(store, graph))
    worker.start()
    until(lambda: store.job_by_row(first.job_id).step >= 1)
    second = post(store, thread, input={"log": ["second"]}, strategy="rollback")
    go_on.set()
    worker.join(PATIENCE)
    assert not worker.is_alive()
    found = {run.run_id: run for run in store.read(lambda c: runs.of_thread(c, thread))}
    assert [found[run.run_id].status for run in (first, second)] == ["interrupted", "success"]
    assert json.loads(found[second.run_id].values_json or "") == {"log": ["second", "step", "end"]}
    history = StepSaver(store).list({"configurable": {"thread_id": thread}})
    assert {each.metadata.get("run_id") for each in history} == {second.run_id}
