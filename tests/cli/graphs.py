"""Graphs as a user would write them, one for each way a job can go; the tests copy this file into their folders."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from everstep import effect, review


class State(TypedDict, total=False):
    n: Any
    seen: Annotated[list[Any], operator.add]


@effect("mail.send", idempotent=True)
def send(to: str, idempotency_key: str = "") -> str:
    """An effect that goes well."""
    return f"sent to {to}"


@effect("pay.order")
def pay(order: str) -> str:
    """An effect whose outcome nobody knows."""
    raise ConnectionResetError("the answer was lost")


@effect("pay.slowly")
async def pay_slowly(order: str) -> str:
    """An effect that stays in flight."""
    await asyncio.Event().wait()
    return order


def _with(node: Any) -> StateGraph[Any, Any, Any, Any]:
    return StateGraph(State).add_node("work", node).add_edge(START, "work").add_edge("work", END)


def _tool(state: State) -> Any:
    decision = review("Delete 14 files?", action="delete", args={"path": "a"}, allow=("approve", "edit", "reject"))
    return {"seen": [[decision.type, decision.args, decision.message]]}


async def _hold(state: State) -> Any:
    print("a node may print what it likes")
    await asyncio.Event().wait()


async def _slow(state: State) -> Any:
    return {"n": await pay_slowly("A18")}


def _raise(error: Exception) -> Any:
    raise error


count = _with(lambda state: {"n": state.get("n", 0) + 1})
mail = _with(lambda state: {"n": send("ada")})
ask = _with(lambda state: {"seen": [interrupt({"question": "How many?"})]})
tool = _with(_tool)
hold = _with(_hold)
fails = _with(lambda state: _raise(ValueError("there is no such branch")))
garbled = _with(lambda state: _raise(ValueError("no file of the name na\udcffme→")))
broken = _with(lambda state: {"n": {}["missing"]})
lost = _with(lambda state: {"n": pay("A17")})
slow = _with(_slow)
away = _with(lambda state: _raise(ConnectionRefusedError("nobody listens there")))
stop = _with(lambda state: {"n": 1}).compile(interrupt_before=["work"])
