"""Threads whose lists grow, and what the record holds of them."""

from __future__ import annotations

import itertools
import operator
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple, empty_checkpoint
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt

from everstep.checkpoints.history import CHUNKS
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store

NUMBERS = itertools.count()

TEXT = "word " * 600


def thread(name: str, checkpoint_id: str | None = None, namespace: str = "") -> RunnableConfig:
    """A place."""
    there = {"thread_id": name, "checkpoint_ns": namespace}
    return {"configurable": there | ({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}


def rows(store: Store) -> int:
    """How many chunks there are."""
    table = store.database.checkpoint_tables[-1]
    sql = f"SELECT count(*) FROM {table} WHERE checkpoint_id = '{CHUNKS}'"
    return store.read(lambda connection: connection.exec_driver_sql(sql).scalar_one())


def seen(found: CheckpointTuple | None) -> Any:
    """A checkpoint without its thread; by `repr`, for which 1, 1.0 and True differ, and as it is."""
    if found is None:
        return None
    parent = (found.parent_config or {}).get("configurable", {}).get("checkpoint_id")
    return repr((dict(found.checkpoint), dict(found.metadata), parent, found.pending_writes))


class State(TypedDict, total=False):
    """Lists of each kind."""

    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[Any], operator.add]
    last: list[str]
    deltas: Annotated[
        list[str], DeltaChannel(lambda state, writes: state + [text for write in writes for text in write])
    ]
    count: int


def talk(saver: Any) -> Any:
    """A graph that does to its lists what can be done; it asks once, and has a subgraph with a memory of its own."""
    inner = StateGraph(State)
    inner.add_node(
        "note", lambda state: {"log": [TEXT], "messages": [HumanMessage(TEXT, id=f"inner {len(state['log'])}")]}
    )
    inner.add_edge(START, "note")

    def say(state: State) -> Any:
        count = state.get("count", 0)
        update: dict[str, Any] = {"count": count + 1, "log": [{"n": count, "text": TEXT}], "deltas": [TEXT]}
        update["last"] = [*state.get("last", []), TEXT]
        messages: list[Any] = [AIMessage(TEXT, id=str(count))]
        if count == 3:
            messages = [AIMessage("other", id="1"), RemoveMessage(id="0"), *messages]
        if count == 4:
            state["log"][0]["text"] = "changed in place"
            state["messages"][0].content = "changed in place"
            state["last"].append("in place")
        if count == 5:
            update["log"].append(interrupt("go on?"))
        return {**update, "messages": messages}

    builder = StateGraph(State)
    builder.add_node("say", say)
    builder.add_node("inner", inner.compile(checkpointer=True))
    builder.add_node("one", lambda number: {"log": [number]})
    builder.add_edge(START, "say")
    builder.add_edge("one", "inner")
    builder.add_conditional_edges("say", lambda state: [Send("one", number) for number in range(3)])
    builder.add_conditional_edges("inner", lambda state: "say" if state["count"] < 8 else END)
    return builder.compile(checkpointer=saver)


def conversation(saver: StepSaver, name: str = "thread", *, more: int = 3) -> list[AIMessage]:
    """Store some checkpoints, each with one message more."""
    items: list[AIMessage] = []
    config = thread(name)
    for number in range(more):
        items.append(AIMessage(TEXT, id=str(number)))
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"items": items}
        checkpoint["channel_versions"] = {"items": str(number)}
        config = saver.put(config, checkpoint, {"step": number}, {"items": str(number)})
    return items


def go_on(saver: StepSaver, config: RunnableConfig, items: list[Any], run: str = "") -> RunnableConfig:
    """Store one checkpoint after another."""
    checkpoint, version = empty_checkpoint(), str(next(NUMBERS))
    checkpoint["channel_values"], checkpoint["channel_versions"] = {"items": items}, {"items": version}
    metadata: Any = {"run_id": run}
    return saver.put(config, checkpoint, metadata, {"items": version})


def items_of(store: Store, config: RunnableConfig) -> list[str]:
    """The ids of the messages of a checkpoint."""
    found = StepSaver(store).get_tuple(config)
    assert found is not None
    return [item.id for item in found.checkpoint["channel_values"]["items"]]


def message(name: str) -> AIMessage:
    """A long one."""
    return AIMessage(TEXT, id=name)
