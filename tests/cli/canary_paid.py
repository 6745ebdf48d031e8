"""A graph and a provider with secrets in paid work, in effects that a person approves, and in what a person answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypedDict

import httpx
from langgraph.graph import END, START, StateGraph

from everstep import effect
from everstep.checkpoints.provider_status import ProviderEvent, ProviderStatus
from everstep.checkpoints.quote import Quote, QuoteLine
from everstep.errors import ApprovalRejected, EventInvalid, ProviderRefused
from everstep.nodes.provider import Provider, Submitted, observe_task, submit_task


def known(place: str) -> str:
    """A secret of a known form."""
    return f"sk-canary-{place}-0123456789abcdef"


def word(place: str) -> str:
    """A secret of no known form."""
    return f"Zq9x{place.title().replace('-', '')}Vex7"


def told(place: str) -> str:
    """A careless text with both in it, which can be told by form and by name."""
    return f"no luck with {known(place)}, password={word(place)}"


class Films(Provider):
    """A provider whose every word is careless."""

    idempotent = True

    def __init__(self, name: str) -> None:
        self.name = name
        self._asked: Counter[str] = Counter()

    async def submit(self, request: Mapping[str, Any], *, key: str) -> Submitted:
        self._asked[f"submit {key}"] += 1
        if request["how"] == "refused":
            raise ProviderRefused(told("submit-error"), next_step=told("submit-next"))
        if self._asked[f"submit {key}"] == 1:
            raise ConnectionResetError(told("lost-answer"))
        return Submitted(f"film-{request['how']}")

    async def query(self, provider_task_id: str) -> ProviderStatus:
        self._asked[provider_task_id] += 1
        if self._asked[provider_task_id] == 1:
            headers = {"Authorization": f"Bearer {word('poll-header')}", "X-Api-Key": known("poll-header")}
            request = httpx.Request("GET", f"https://api.example/?api_key={word('poll-query')}", headers=headers)
            raise httpx.ConnectError(f"{told('poll-error')} {request.url} {dict(request.headers)}", request=request)
        match provider_task_id:
            case "film-made":
                return ProviderStatus("succeeded", result={"note": word("task-result")})
            case "film-failed":
                error = {"message": told("task-error"), "api_key": word("task-error-key"), "note": word("task-note")}
                return ProviderStatus("failed", error=error)
            case _:
                return ProviderStatus("pending")

    def parse_webhook(self, headers: Mapping[str, str], body: bytes) -> ProviderEvent:
        try:
            said = json.loads(body)
            status = ProviderStatus(said["state"], result=said.get("result"), error=said.get("error"))
            return ProviderEvent(said["id"], status, said["film"])
        except (ValueError, KeyError) as error:
            raise EventInvalid(f"{told('event-error')} {headers.get('authorization')}") from error


class State(TypedDict, total=False):
    """What to ask for, and what came of it."""

    how: str
    film: dict[str, Any]


async def make(state: State) -> State:
    """Ask for a film, pay for it, and wait for it."""
    how = state["how"]
    quote = Quote(100, "EUR", 2, "1", (QuoteLine("a film", "1", "1"),))
    task = await submit_task("films", {"how": how, "note": word("request")}, key=how, quote=quote)
    return {"film": dict(await observe_task(task))}


films = StateGraph(State).add_node("make", make).add_edge(START, "make").add_edge("make", END).compile()


class Order(TypedDict, total=False):
    """What was paid."""

    how: str
    outcome: str


@effect("payment.send", approval=lambda to, note: f"Pay {to}? {told('approval-wording')}")
def pay(to: str, note: str) -> str:
    """Pay somebody."""
    return f"paid {word('paid')}"


def settle(state: Order) -> Order:
    """Pay, if a person says so."""
    note = known("approval-argument") if state["how"] == "secret" else "please"
    try:
        return {"outcome": pay(word("approval-to"), note)}
    except ApprovalRejected as no:
        return {"outcome": str(no.words)}


payments = StateGraph(Order).add_node("settle", settle).add_edge(START, "settle").add_edge("settle", END).compile()


class Event(TypedDict, total=False):
    """What an event or a schedule brought."""

    how: str
    what: str
    body: Any


def fail(state: Event) -> Event:
    """Fail with the event in the error, or end well."""
    if state.get("how") == "fail":
        raise ValueError(told("event-job"))
    return {}


events = StateGraph(Event).add_node("fail", fail).add_edge(START, "fail").add_edge("fail", END).compile()
