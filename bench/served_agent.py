"""The agent that servers run in the scenario `server`: it tells the time again and again, as a model tells tokens."""

from __future__ import annotations

import asyncio
import time
from typing import TypedDict

from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph


class State(TypedDict, total=False):
    """What it is to do: how often to tell the time, and how many seconds lie between."""

    tokens: int
    pause: float


async def tell(state: State) -> State:
    """Tell the machine's monotonic time, which all processes share."""
    writer = get_stream_writer()
    for _ in range(state.get("tokens", 0)):
        writer({"at": time.monotonic()})
        await asyncio.sleep(state.get("pause", 0.0))
    return {"tokens": 0}


builder = StateGraph(State).add_node("tell", tell).add_edge(START, "tell").add_edge("tell", END)
graph = builder.compile()
