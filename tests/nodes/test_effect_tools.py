"""`effect(tool)`: LangChain tools of every kind, through LangGraph's ToolNode, each call once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import InjectedState, ToolNode
from pydantic import BaseModel

from everstep import EffectRejected, effect, effect_key
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from tests.support.jobs import work
from tests.support.outside import Once


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def calls(*arguments: dict[str, Any], name: str = "push") -> AIMessage:
    """A model's message that calls the tool with each of these arguments."""
    return AIMessage(
        "", tool_calls=[{"name": name, "args": given, "id": f"call-{i}"} for i, given in enumerate(arguments)]
    )


def agent(tools: list[BaseTool], message: AIMessage, after: Callable[[], None] | None = None) -> Any:
    """A model that says one thing, and a ToolNode that does it."""

    def finish(_state: State) -> dict[str, Any]:
        if after is not None:
            after()
        return {}

    builder = StateGraph(State)
    builder.add_node("model", lambda _state: {"messages": [message]})
    builder.add_node("tools", ToolNode(tools))
    builder.add_node("finish", finish)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    builder.add_edge("tools", "finish")
    return builder.compile()


def run(store: Store, graph: Any) -> tuple[Job, list[Any]]:
    """Run one job; returns it and what the tools answered."""
    job, _ = store.enqueue("graph", {"messages": []})
    work(store, graph)
    job = store.job(job.public_id)
    messages = json.loads(job.result_json or '{"messages": []}')["messages"]
    return job, [message["content"] for message in messages if message["type"] == "tool"]


# ---- one tool of every kind; each does `world.append` and then `lose`, which may raise


class Arguments(BaseModel):
    branch: str
    force: bool = False


def sync_function(world: list[Any], lose: Callable[[], None]) -> BaseTool:
    """A tool made of a function."""

    @tool
    def push(branch: str, force: bool = False) -> str:
        """Push."""
        world.append((branch, force))
        lose()
        return f"pushed {branch}"

    return push


def async_function(world: list[Any], lose: Callable[[], None]) -> BaseTool:
    """A tool that only has an async form."""

    @tool
    async def push(branch: str, force: bool = False) -> str:
        """Push."""
        await asyncio.sleep(0)
        world.append((branch, force))
        lose()
        return f"pushed {branch}"

    return push


def sync_class(world: list[Any], lose: Callable[[], None]) -> BaseTool:
    """A tool class with a sync form; its async form runs that in a thread."""

    class Push(BaseTool):
        name: str = "push"
        description: str = "Push."
        args_schema: type[BaseModel] = Arguments

        def _run(self, branch: str, force: bool = False, config: RunnableConfig | None = None) -> str:
            world.append((branch, force))
            lose()
            return f"pushed {branch}"

    return Push()


def async_class(world: list[Any], lose: Callable[[], None]) -> BaseTool:
    """A tool class with both forms, of which the async one is its own."""

    class Push(BaseTool):
        name: str = "push"
        description: str = "Push."
        args_schema: type[BaseModel] = Arguments

        def _run(self, branch: str, force: bool = False) -> str:
            raise AssertionError("the async form is there")

        async def _arun(self, branch: str, force: bool = False) -> str:
            await asyncio.sleep(0)
            world.append((branch, force))
            lose()
            return f"pushed {branch}"

    return Push()


def structured_both(world: list[Any], lose: Callable[[], None]) -> BaseTool:
    """A structured tool with a sync and an async form."""

    def push(branch: str, force: bool = False) -> str:
        raise AssertionError("the async form is there")

    async def push_async(branch: str, force: bool = False) -> str:
        await asyncio.sleep(0)
        world.append((branch, force))
        lose()
        return f"pushed {branch}"

    return StructuredTool.from_function(push, push_async, name="push", description="Push.", args_schema=Arguments)


KINDS = [sync_function, async_function, sync_class, async_class, structured_both]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@every_kind
def test_a_tools_call_is_not_made_again_on_replay(store: Store, world: list[Any], kind: Any) -> None:
    """A tool node that ran again, after a tool beside it lost its connection, finds its calls done."""
    lost = Once(ConnectionError("later"))

    @tool
    def other() -> str:
        """Fail once."""
        lost()
        return "other"

    pushing = effect(kind(world, lambda: None))
    message = calls({"branch": "a"}, {"branch": "b", "force": True})
    message.tool_calls.append({"name": "other", "args": {}, "id": "call-other"})
    job, answers = run(store, agent([pushing, other], message))
    assert job.status == "done", job.error_json
    assert answers == ["pushed a", "pushed b", "other"]
    assert sorted(world) == [("a", False), ("b", True)]
    assert sorted((found.name, found.state, found.calls) for found in store.effects(job)) == [
        ("push", "confirmed", 1),
        ("push", "confirmed", 1),
    ]
    assert job.attempts == 2


@every_kind
def test_two_equal_calls_in_one_message_are_two_effects(store: Store, world: list[Any], kind: Any) -> None:
    """A model that calls a tool twice with the same arguments means it twice: the call's id tells them apart."""
    lost = Once(ConnectionError("later"))
    pushing = effect(kind(world, lambda: None))
    job, answers = run(store, agent([pushing], calls({"branch": "a"}, {"branch": "a"}), lost))
    assert answers == ["pushed a", "pushed a"]
    assert len(world) == 2
    assert [found.state for found in store.effects(job)] == ["confirmed", "confirmed"]


def test_the_id_of_a_tool_call_is_part_of_what_it_is(store: Store, world: list[Any]) -> None:
    """A replay of the same call is not made again; an equal one with another id is another, if a person says so."""
    fail = Once(ConnectionError("after the tool"), times=2)
    push = effect(sync_function(world, lambda: None))
    ids = iter(["call-0", "call-0", "call-1", "call-1"])

    def node(_state: State) -> dict[str, Any]:
        call = {"type": "tool_call", "name": "push", "args": {"branch": "main"}, "id": next(ids)}
        answer = push.invoke(call)
        fail()
        return {"messages": [answer]}

    builder = StateGraph(State).add_node("node", node).add_edge(START, "node")
    graph = builder.compile()
    job, _ = run(store, graph)
    assert world == [("main", False)]
    assert store.reviews()[0].value["code"] == "effect_not_repeated"
    store.answer(store.reviews()[0].public_id, "approve")
    work(store, graph)
    assert store.job(job.public_id).status == "done"
    assert world == [("main", False)] * 2
    assert len({effect.key for effect in store.effects(job)}) == 2


@every_kind
@pytest.mark.parametrize("happened", [True, False])
def test_a_lost_answer_is_settled_by_the_probe(store: Store, world: list[Any], kind: Any, happened: bool) -> None:
    """A probe of a tool gets its arguments and settles the call; what did not happen is called again."""
    lose = Once(TimeoutError("no answer"))
    asked: list[dict[str, Any]] = []

    def look(**given: Any) -> str | None:
        asked.append(given)
        return "found" if happened else None

    pushing = effect(kind(world, lose), probe=look)
    job, answers = run(store, agent([pushing], calls({"branch": "a", "force": True})))
    assert job.status == "done", job.error_json
    assert answers == ["found" if happened else "pushed a"]
    assert len(world) == (1 if happened else 2)
    assert asked[0] == {"branch": "a", "force": True}


@every_kind
def test_an_unknown_tool_call_is_asked_about(store: Store, world: list[Any], kind: Any) -> None:
    """Without a probe the job goes to review through ToolNode's error handling; the answer is the tool's result."""
    lose = Once(TimeoutError("no answer"))
    graph = agent([effect(kind(world, lose))], calls({"branch": "a"}))
    job, _ = run(store, graph)
    assert job.status == "review"
    (review,) = store.reviews()
    assert review.kind == "effect"
    assert review.value["arguments"]["branch"] == "a"
    store.answer(review.public_id, "approve", value="it was pushed")
    work(store, graph)
    messages = json.loads(store.job(job.public_id).result_json or "")["messages"]
    assert messages[-1]["content"] == "it was pushed"
    assert world == [("a", False)]


@pytest.mark.parametrize("kind", [sync_function, async_function], ids=lambda kind: kind.__name__)
def test_an_idempotent_tool_is_called_again_with_its_key(store: Store, world: list[Any], kind: Any) -> None:
    """A tool whose provider honours keys asks for the effect's key, which is the same in the second call."""
    keys: list[str] = []
    fail = Once(TimeoutError("no answer"))

    def lose() -> None:
        keys.append(effect_key())
        fail()

    job, answers = run(store, agent([effect(kind(world, lose), idempotent=True)], calls({"branch": "a"})))
    assert answers == ["pushed a"]
    assert len(keys) == 2
    assert set(keys) == {store.effects(job)[0].key}


def test_a_tool_that_handles_its_errors_hides_no_doubt(store: Store, world: list[Any]) -> None:
    """`handle_tool_error` and ToolNode's own handling turn errors into messages, but not an unknown effect."""
    lose = Once(TimeoutError("no answer"))
    pushing = sync_function(world, lose)
    pushing.handle_tool_error = True
    builder = StateGraph(State)
    builder.add_node("model", lambda _state: {"messages": [calls({"branch": "a"})]})
    builder.add_node("tools", ToolNode([effect(pushing)], handle_tool_errors=True))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    job, _ = run(store, builder.compile())
    assert job.status == "review"
    assert store.reviews()[0].kind == "effect"


def test_a_rejected_call_is_a_message_the_model_can_read(store: Store, world: list[Any]) -> None:
    """With ToolNode's error handling a rejected call becomes an error message, and the ledger says rejected."""

    @tool
    def push(branch: str) -> str:
        """Push."""
        raise EffectRejected("the branch is protected")

    builder = StateGraph(State)
    builder.add_node("model", lambda _state: {"messages": [calls({"branch": "a"})]})
    builder.add_node("tools", ToolNode([effect(push)], handle_tool_errors=True))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    job, answers = run(store, builder.compile())
    assert job.status == "done"
    assert "protected" in answers[0]
    assert store.effects(job)[0].state == "rejected"


def test_arguments_the_model_got_wrong_are_no_effect(store: Store, world: list[Any]) -> None:
    """Arguments that do not fit the tool's schema never reach it: the model reads the error, the ledger stays empty."""
    job, answers = run(store, agent([effect(sync_function(world, lambda: None))], calls({"wrong": 1})))
    assert job.status == "done"
    assert "branch" in answers[0]
    assert (world, store.effects(job)) == ([], [])


@pytest.mark.parametrize("settled", ["replay", "by hand"])
def test_a_tool_with_artifact_and_injected_state(store: Store, world: list[Any], settled: str) -> None:
    """What LangGraph injects is not part of the effect; content and artifact come back from the record or a person."""
    lose = Once(TimeoutError("no answer"))

    @tool(response_format="content_and_artifact")
    def push(branch: str, state: Annotated[dict[str, Any], InjectedState]) -> tuple[str, dict[str, Any]]:
        """Push."""
        world.append(len(state["messages"]))
        if settled == "by hand":
            lose()
        return f"pushed {branch}", {"ref": "abc"}

    graph = agent([effect(push)], calls({"branch": "a"}), Once(ConnectionError("later")))
    job, _ = run(store, graph)
    if settled == "by hand":
        store.answer(store.reviews()[0].public_id, "approve", value="pushed a")
        work(store, graph)
    job = store.job(job.public_id)
    assert job.status == "done", job.error_json
    answer = json.loads(job.result_json or "")["messages"][-1]
    assert answer["content"] == "pushed a"
    assert answer["artifact"] == (None if settled == "by hand" else {"ref": "abc"})
    assert world == [1]
    assert json.loads(store.effects(job)[0].arguments_json) == {"branch": "a"}


@every_kind
async def test_outside_a_job_a_tool_is_what_it_was(world: list[Any], kind: Any) -> None:
    """Without a job the wrapped tool is invoked like the original, which stays untouched."""
    original = kind(world, lambda: None)
    wrapped = effect(original)
    assert isinstance(wrapped, BaseTool)
    assert (wrapped.name, wrapped.description) == (original.name, original.description)
    assert wrapped.args == original.args
    assert wrapped.tool_call_schema.model_json_schema() == original.tool_call_schema.model_json_schema()
    assert await wrapped.ainvoke({"branch": "a"}) == "pushed a"
    message = await wrapped.ainvoke({"name": "push", "args": {"branch": "b"}, "id": "1", "type": "tool_call"})
    assert isinstance(message, ToolMessage)
    assert message.content == "pushed b"
    assert type(original)._run is not type(wrapped)._run
    assert world == [("a", False), ("b", False)]


@every_kind
def test_a_person_approves_each_call_of_a_tool(store: Store, world: list[Any], kind: Any) -> None:
    """Two calls of a tool node, which run at once, ask one after the other; one is edited, one is not approved."""
    pushing = effect(kind(world, lambda: None), approval=lambda branch, force=False: f"Push {branch}?")
    graph = agent([pushing], calls({"branch": "a"}, {"branch": "b"}))
    job, _ = run(store, graph)
    asked = list[str]()
    while reviews := store.reviews():
        assert world == ([("c", True)] if asked else [])
        asked.append(reviews[0].value["action_requests"][0]["description"])
        if len(asked) == 1:  # whichever asks first
            store.answer(reviews[0].public_id, "edit", value={"branch": "c", "force": True})
        else:
            store.answer(reviews[0].public_id, "respond", value="not this one")
        work(store, graph)
    assert sorted(asked) == ["Push a?", "Push b?"]
    assert world == [("c", True)]
    job = store.job(job.public_id)
    assert (job.status, "not this one" in (job.error_json or "")) == ("failed", True)


def test_a_tool_that_was_not_approved_tells_its_agent(store: Store, world: list[Any]) -> None:
    """A tool node that hands errors to the model tells it what the person said."""
    pushing = effect(sync_function(world, lambda: None), approval=True)
    builder = StateGraph(State)
    builder.add_node("model", lambda _state: {"messages": [calls({"branch": "a"})]})
    builder.add_node("tools", ToolNode([pushing], handle_tool_errors=True))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    graph = builder.compile()
    run(store, graph)
    store.answer(store.reviews()[0].public_id, "reject", reason="not on a Friday")
    work(store, graph)
    (job,) = store.jobs(status="done")
    assert "not on a Friday" in json.loads(job.result_json or "")["messages"][-1]["content"]
    assert world == []
