"""A graph with a secret in every place where one can be, each with a word of its own that tells the place.

`known` has the form of a credential; `word` is a random word, which only its place can betray.
"""

from __future__ import annotations

import logging
import os
from typing import TypedDict

import httpx
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from everstep import effect

log = logging.getLogger("mine")


def known(place: str) -> str:
    """A secret of a known form."""
    return f"sk-canary-{place}-0123456789abcdef"


def word(place: str) -> str:
    """A secret of no known form."""
    return f"Zq9x{place.title().replace('-', '')}Vex7"


class State(TypedDict, total=False):
    """How to end, and what to keep."""

    how: str
    note: str
    kept: str
    key: str


@tool
def look(api_key: str, query: str, plain: str) -> str:
    """Look something up."""
    return f"{known('tool-result')} {word('tool-result')}"


@effect("letter.send")
def send(headers: dict[str, str], body: str, plain: str) -> dict[str, str]:
    """Send a letter."""
    log.info("sending with %s", headers)
    return {"receipt": word("effect-result"), "key": known("effect-result")}


@effect("letter.lose")
def lose(body: str) -> None:
    """Send a letter, and not know whether it arrived."""
    raise ConnectionError(f"lost with {known('effect-error')}, token={word('effect-error')}")


def work(state: State, config: RunnableConfig) -> State:
    """Use every secret once, as a careless program would."""
    configured = config["configurable"]
    assert configured["tenant"] == word("configurable")
    log.info("key %s, api_token=%s", known("log"), configured["api_token"])
    headers = httpx.Headers({"X-Api-Key": word("log-header"), "Cookie": word("log-cookie")})
    log.warning("headers %s, once more %s", headers.multi_items(), dict(headers))
    log.info("fields", extra={"customer": word("log-field"), "token": known("log-field")})
    try:
        raise LookupError(f"password={word('log-exception')} {known('log-exception')}")
    except LookupError:
        log.exception("caught")
    look.invoke(
        {"api_key": word("tool-argument"), "query": known("tool-argument"), "plain": word("tool-plain")}, config
    )
    answer = AIMessage(f"{known('answer')} {word('answer')}")
    GenericFakeChatModel(messages=iter([answer])).invoke(f"{known('prompt')} {word('prompt')}", config)
    send({"Authorization": f"Bearer {word('effect-header')}"}, known("effect-body"), word("effect-plain"))
    return {"kept": word("state"), "key": known("state")}


def end(state: State) -> State:
    """End as asked for."""
    headers = {"Authorization": f"Bearer {word('request-header')}", "X-Api-Key": known("request-header")}
    address = f"https://user:{word('address')}@api.example/v1?api_key={word('query')}"
    request = httpx.Request("POST", address, headers=headers)
    response = httpx.Response(503, request=request, headers={"Set-Cookie": f"session={word('response-header')}"})
    client_error = httpx.HTTPStatusError(
        f"503 for {request.url} with {dict(request.headers)}", request=request, response=response
    )
    if state["how"] == "outage":
        raise client_error
    if state["how"] == "ask":
        interrupt({"question": word("question"), "key": known("question")})
    if state["how"] == "lose":
        lose(word("lost-body"))
    told = " ".join(os.environ[name] for name in ("LANGFUSE_SECRET_KEY", "EVERSTEP_WEBHOOK_SECRET", "ORDERS_TOKEN"))
    try:
        several()
    except ExceptionGroup:
        raise ValueError(f"refused {known('error')}, password={word('error')}; I know {told}")  # noqa: B904


def several() -> None:
    """Fail with a group of one, which has a cause."""
    try:
        raise LookupError(f"no {known('cause')}, password={word('cause')}")
    except LookupError as cause:
        member = TypeError(f"odd {known('member')}, password={word('member')}")
        raise ExceptionGroup(f"all of {known('group')}, password={word('group')}", [member]) from cause


builder = StateGraph(State)
builder.add_node("work", work)
builder.add_node("end", end)
builder.add_edge(START, "work")
builder.add_edge("work", "end")
builder.add_edge("end", END)
graph = builder.compile().with_config(
    configurable={"api_token": known("configurable"), "tenant": word("configurable"), "number": 1},
    metadata={"note": word("metadata"), "key": known("metadata")},
    tags=[word("tag")],
)
