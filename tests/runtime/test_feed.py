"""Where a thread stands and what it is fed: every branch of the rule, on real threads in a real record."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from everstep.checkpoints import writer
from everstep.checkpoints.reviews import Question, open_all
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.errors import GraphChanged
from everstep.nodes.attempt import Attempt
from everstep.runtime.feed import Standing, standing
from tests.support.jobs import Log, beside, chain, work
from tests.support.record import begin_running, claim


class Thread:
    """A job's thread under one claim, fed by hand."""

    def __init__(self, store: Store, graph: Any, *, begun: bool = True) -> None:
        self.store = store
        job, _ = store.enqueue("graph", {"log": []})
        self.job = begin_running(store, lease_ms=10**9) if begun else claim(store, lease_ms=10**9)[0]
        attempt = Attempt(store, job.id, job.public_id, job.idempotency_key, self.job.claim_no, lambda _error: False)
        self.saver = StepSaver(store, attempt)
        self.graph = self._with(graph)
        self.config: RunnableConfig = {"configurable": {"thread_id": job.thread_id}}

    def _with(self, graph: Any) -> Any:
        copy = graph.copy()
        copy.checkpointer = self.saver
        return copy

    async def feed(self, given: Any, graph: Any = None) -> None:
        """Run the graph, as a leg does, until it halts or fails."""
        await (self._with(graph) if graph else self.graph).ainvoke(given, self.config, durability="sync")

    async def stands(self, *, has_run: bool = False, graph: Any = None) -> Standing:
        """Where the thread stands now."""
        return await standing(
            self._with(graph) if graph else self.graph,
            self.config,
            self.store.job_by_row(self.job.id),
            self.store.reviews(self.job),
            self.saver,
            has_run=has_run,
        )

    def ask(self, *questions: Question) -> None:
        """Open the reviews, as a settlement would."""
        self.store.write(lambda c: open_all(c, self.job, list(questions), now=0)).result()

    def answer(self, question: Question, decision: str = "respond", value: Any = None) -> None:
        """A person answers."""
        (row,) = [
            review
            for review in self.store.reviews(self.job)
            if (review.subject, review.occurrence) == (question.subject, question.occurrence)
        ]
        self.store.answer(row.public_id, decision, **({"value": value} if decision == "respond" else {}))


def asking(*questions: str) -> Any:
    """A node that asks."""
    return lambda _state: {"log": [interrupt(question) for question in questions]}


class Fails:
    """A node that fails while told to."""

    def __init__(self) -> None:
        self.now = True

    def __call__(self, _state: Log) -> Log:
        if self.now:
            raise ConnectionError("away")
        return {"log": ["worked"]}


async def test_a_thread_that_has_not_begun_is_fed_the_input(store: Store) -> None:
    """Nothing of the job is committed: the original input."""
    thread = Thread(store, chain(lambda _s: {"log": ["a"]}), begun=False)
    where = await thread.stands()
    assert (where.kind, where.input, where.checkpoint_id) == ("runnable", {"log": []}, None)


async def test_a_finished_thread_is_fed_nothing(store: Store) -> None:
    """The last checkpoint is the end: the job is settled from it, with the graph's output."""
    thread = Thread(store, chain(lambda _s: {"log": ["a"]}))
    await thread.feed({"log": []})
    for has_run in (True, False):
        where = await thread.stands(has_run=has_run)
        assert (where.kind, where.values) == ("finished", {"log": ["a"]})


async def test_only_the_output_is_the_result(store: Store) -> None:
    """Of a graph with an output schema the result has those channels alone; of a workflow it is what it returned."""
    from typing import TypedDict

    class Output(TypedDict, total=False):
        answer: int

    class Whole(Output, total=False):
        log: list[str]

    builder = StateGraph(Whole, output_schema=Output)
    builder.add_node("node", lambda _s: {"answer": 42, "log": ["x"]})
    builder.add_edge(START, "node")
    thread = Thread(store, builder.compile())
    await thread.feed({"log": []})
    assert (await thread.stands()).values == {"answer": 42}


async def test_a_workflows_result_is_what_it_returned(store: Store) -> None:
    """The functional API's return value, also an empty one, is the result."""

    @entrypoint()
    def workflow(given: dict[str, Any]) -> list[Any]:
        return []

    thread = Thread(store, workflow)
    await thread.feed({"log": []})
    where = await thread.stands()
    assert (where.kind, where.values) == ("finished", [])


async def test_a_thread_that_failed_goes_on(store: Store) -> None:
    """After a failure in mid-graph nothing is fed: the node that failed runs again, those before it do not."""
    fails, ran = Fails(), []
    thread = Thread(store, chain(lambda _s: ran.append(1) or {"log": ["a"]}, fails))
    with pytest.raises(ConnectionError):
        await thread.feed({"log": []})
    where = await thread.stands()
    assert (where.kind, where.input) == ("runnable", None)
    fails.now = False
    await thread.feed(where.input)
    assert (await thread.stands(has_run=True)).values == {"log": ["a", "worked"]}
    assert ran == [1]


@pytest.mark.parametrize("has_run", [True, False])
async def test_an_unanswered_question_is_asked(store: Store, has_run: bool) -> None:
    """A thread whose tasks all wait for an answer is paused, whether it just ran or its worker died then."""
    thread = Thread(store, beside(asking("left"), asking("right")))
    await thread.feed({"log": []})
    where = await thread.stands(has_run=has_run)
    assert where.kind == "paused"
    assert [(question.kind, question.value, question.occurrence) for question in where.questions] == [
        ("interrupt", "left", 0),
        ("interrupt", "right", 0),
    ]


@pytest.mark.parametrize("value", [None, {}, 0, False, "", [], "yes"])
async def test_an_answer_is_fed_by_id_until_it_is_used(store: Store, value: Any) -> None:
    """A given answer is fed under its interrupt's id, exactly as given; once used it is not fed again."""
    thread = Thread(store, chain(asking("one", "two")))
    await thread.feed({"log": []})
    (first,) = (await thread.stands()).questions
    thread.ask(first)
    thread.answer(first, value=value)
    where = await thread.stands()
    assert where.kind == "runnable"
    assert isinstance(where.input, Command)
    assert where.input.resume == {first.subject: value}
    await thread.feed(where.input)
    after = await thread.stands(has_run=True)
    (second,) = after.questions
    assert (after.kind, second.value) == ("paused", "two")


async def test_one_of_two_answers_is_fed_alone(store: Store) -> None:
    """With one of two questions answered just that answer is fed; then the other question is asked."""
    thread = Thread(store, beside(asking("left"), asking("right")))
    await thread.feed({"log": []})
    left, right = (await thread.stands()).questions
    thread.ask(left, right)
    thread.answer(right, value="2")
    where = await thread.stands()
    assert where.input.resume == {right.subject: "2"}
    await thread.feed(where.input)
    after = await thread.stands(has_run=True)
    assert (after.kind, [question.subject for question in after.questions]) == ("paused", [left.subject])


async def test_both_answers_are_fed_together(store: Store) -> None:
    """With both answered they are fed at once."""
    thread = Thread(store, beside(asking("left"), asking("right")))
    await thread.feed({"log": []})
    questions = (await thread.stands()).questions
    thread.ask(*questions)
    for question in questions:
        thread.answer(question, value=question.value)
    where = await thread.stands()
    assert where.input.resume == {question.subject: question.value for question in questions}
    await thread.feed(where.input)
    assert (await thread.stands(has_run=True)).values == {"log": ["left", "right"]}


async def test_a_task_that_failed_beside_a_question_runs_again_first(store: Store) -> None:
    """While another task of the step can still run, a thread with an open question is not paused yet."""
    fails = Fails()
    thread = Thread(store, beside(asking("left"), fails))
    with pytest.raises(ConnectionError):
        await thread.feed({"log": []})
    where = await thread.stands()
    assert (where.kind, where.input) == ("runnable", None)
    fails.now = False
    await thread.feed(None)
    after = await thread.stands(has_run=True)
    assert (after.kind, [question.value for question in after.questions]) == ("paused", ["left"])


async def test_an_answer_a_node_used_and_then_failed_is_not_used_twice(store: Store) -> None:
    """A node that fails after it read an answer gets that answer again, for the same question."""
    fails = True

    def node(_state: Log) -> Log:
        first = interrupt("one")
        if fails:
            raise ConnectionError("away")
        return {"log": [first, interrupt("two")]}

    thread = Thread(store, chain(node))
    await thread.feed({"log": []})
    (first,) = (await thread.stands()).questions
    thread.ask(first)
    thread.answer(first, value="1")
    with pytest.raises(ConnectionError):
        await thread.feed((await thread.stands()).input)
    fails = False
    where = await thread.stands()
    assert where.kind == "runnable"
    await thread.feed(where.input)
    after = await thread.stands(has_run=True)
    (second,) = after.questions
    assert (after.kind, second.value) == ("paused", "two")
    thread.ask(second)
    thread.answer(second, value="2")
    await thread.feed((await thread.stands()).input)
    assert (await thread.stands(has_run=True)).values == {"log": ["1", "2"]}


@pytest.mark.parametrize(
    "static", [{"interrupt_before": ["node_1"]}, {"interrupt_after": ["node_0"]}, {"interrupt_before": "*"}]
)
@pytest.mark.parametrize("has_run", [True, False])
async def test_a_breakpoint_is_asked_about_even_if_its_pause_was_not_recorded(
    store: Store, static: dict[str, Any], has_run: bool
) -> None:
    """A thread that stands before a breakpoint is paused, though its worker died before it said so; then approved."""
    graph = chain(lambda _s: {"log": ["a"]}, lambda _s: {"log": ["b"]}, **static)
    thread = Thread(store, graph)
    await thread.feed({"log": []})
    if static == {"interrupt_before": "*"}:
        await thread.feed(None)
    where = await thread.stands(has_run=has_run)
    (question,) = where.questions
    assert (where.kind, question.kind, question.value["next"]) == ("paused", "breakpoint", ["node_1"])
    assert question.subject == where.checkpoint_id
    thread.ask(question)
    thread.answer(question, "approve")
    after = await thread.stands()
    assert (after.kind, after.input) == ("runnable", None)
    await thread.feed(None)
    assert (await thread.stands(has_run=True)).values == {"log": ["a", "b"]}


def test_a_job_that_stops_before_its_first_node_is_asked_about(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its input alone was written, which waits for company: the job is not taken for one that did not take it."""
    monkeypatch.setattr(writer, "PATIENCE_S", 60.0)
    store.enqueue("graph", {"log": []})
    work(store, chain(lambda _s: {"log": ["a"]}, interrupt_before=["node_0"]))
    (job,) = store.jobs()
    (asked,) = store.reviews(job)
    assert (job.status, asked.kind, asked.value["next"]) == ("review", "breakpoint", ["node_0"])


async def test_a_rejected_breakpoint_is_a_new_question(store: Store) -> None:
    """A breakpoint that was rejected, in a job that goes on all the same, is asked about once more."""
    thread = Thread(store, chain(lambda _s: {"log": ["a"]}, lambda _s: {"log": ["b"]}, interrupt_before=["node_1"]))
    await thread.feed({"log": []})
    (question,) = (await thread.stands()).questions
    thread.ask(question)
    thread.answer(question, "reject")
    (again,) = (await thread.stands()).questions
    assert (again.subject, again.occurrence) == (question.subject, 1)


async def test_a_question_inside_a_subgraph_is_found(store: Store) -> None:
    """The question of a subgraph's node is asked, and its answer fed, by the id LangGraph knows it by."""
    inner = chain(lambda _s: {"log": ["in"]}, asking("inside"))
    builder = StateGraph(Log)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    thread = Thread(store, builder.compile())
    await thread.feed({"log": []})
    where = await thread.stands()
    (question,) = where.questions
    assert (where.kind, question.value) == ("paused", "inside")
    thread.ask(question)
    thread.answer(question, value="yes")
    await thread.feed((await thread.stands()).input)
    assert (await thread.stands(has_run=True)).values["log"][-2:] == ["in", "yes"]


async def test_a_thread_whose_next_node_is_gone_is_not_finished(store: Store) -> None:
    """LangGraph would end such a thread silently; here it is an error that names the node."""
    fails = Fails()
    thread = Thread(store, chain(lambda _s: {"log": ["a"]}, fails))
    with pytest.raises(ConnectionError):
        await thread.feed({"log": []})
    with pytest.raises(GraphChanged, match="node_1"):
        await thread.stands(graph=chain(lambda _s: {"log": ["a"]}))
