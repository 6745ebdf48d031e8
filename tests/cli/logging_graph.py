"""A graph that writes to the log wherever code of a user's can run; each line names the job it is about."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode

from everstep import effect

log = logging.getLogger("mine")
MEETING = threading.Barrier(2, timeout=60)


class State(TypedDict, total=False):
    who: str
    meet: bool
    messages: Annotated[list[Any], add_messages]


def meet(state: State) -> None:
    """Wait until the other job stands here as well, so that the two are surely under way at once."""
    if state["meet"]:
        MEETING.wait()


@effect("mail")
def mail(who: str) -> str:
    """Writes a line."""
    log.info("%s effect", who)
    return who


@effect("amail")
async def amail(who: str) -> str:
    """Writes a line."""
    log.info("%s async effect", who)
    return who


@tool
def look(who: str) -> str:
    """Look."""
    log.info("%s tool", who)
    return who


def sync(state: State) -> State:
    """Writes in its thread, in an effect, and in a thread of its own that has a copy of the context."""
    meet(state)
    log.info("%s sync node", state["who"])
    mail(state["who"])
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: context.run(log.info, "%s thread", state["who"]))
    thread.start()
    thread.join()
    return {}


async def fork(state: State) -> State:
    """Writes on the event loop, in an effect, in a thread, and as Everstep."""
    await asyncio.to_thread(meet, state)
    for _ in range(3):
        log.info("%s async node", state["who"])
        await asyncio.sleep(0)
    await amail(state["who"])
    await asyncio.to_thread(log.info, "%s to thread", state["who"])
    logging.getLogger("everstep.state").info("%s line of Everstep", state["who"])
    call = {"name": "look", "args": {"who": state["who"]}, "id": "1"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


def inside(state: State) -> State:
    """Writes in a subgraph."""
    meet(state)
    log.info("%s subgraph", state["who"])
    return {}


def fails(state: State) -> State:
    """Writes, and fails with a text that looks like a line of a log."""
    log.info("%s last node", state["who"])
    raise ValueError(f"{state['who']} cannot go on\n2026-01-01T00:00:00.000Z [info] forged")


below = StateGraph(State).add_node("inside", inside).add_edge(START, "inside").add_edge("inside", END).compile()

builder = StateGraph(State)
builder.add_node("sync", sync)
builder.add_node("fork", fork)
builder.add_node("tools", ToolNode([look]))
builder.add_node("below", below)
builder.add_node("fails", fails)
builder.add_edge(START, "sync")
builder.add_edge("sync", "fork")
builder.add_edge("fork", "tools")
builder.add_edge("tools", "below")
builder.add_edge("below", "fails")
graph = builder.compile()
