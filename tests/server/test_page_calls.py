"""The calls of LangGraph's pages, replayed over HTTP; what the pages read of each answer is there."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.page_calls import PAGES, THERE, Call
from tests.support.chat_graphs import catalogue
from tests.support.live import live
from tests.support.record import fresh
from tests.support.waiting import PATIENCE


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a server where nobody was before."""
    with fresh(tmp_path) as store, live(store, catalogue()) as url:
        yield url


@pytest.mark.parametrize("page", PAGES)
def test_a_page_finds_what_it_reads(page: str, url: str) -> None:
    """Every call of the page is answered with the status it expects, and holds what it reads."""
    known: dict[str, Any] = {name: str(uuid.uuid4()) for name in ("first", "second", "third")}
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        if page == "Agent Inbox":
            for name in ("first", "second", "third"):
                client.post("/threads", json={"thread_id": known[name]}).raise_for_status()
        for call in PAGES[page]:
            answer = made(client, call, known)
            known |= {name: at(answer, place) for name, place in call.keeps.items()}
            for place, expected in call.reads.items():
                found = at(answer, place)
                if expected is not THERE:
                    assert found == filled(expected, known), f"{call.method} {call.path}: {place}"


def made(client: httpx.Client, call: Call, known: dict[str, Any]) -> Any:
    """The answer to a call, as the page sees it."""
    body = None if call.body is None else json.dumps(filled(call.body, known))
    headers = {"Content-Type": "application/json", **call.headers}
    with client.stream(call.method, filled(call.path, known), content=body, headers=headers) as response:
        if "event-stream" in response.headers.get("content-type", ""):
            assert response.status_code == call.status
            return events(response.iter_lines(), call.until)
        text = response.read()
        assert response.status_code == call.status, f"{call.method} {call.path}: {text.decode()}"
        return json.loads(text or b"null")


def events(lines: Iterator[str], until: str) -> dict[str, list[Any]]:
    """The data of a stream's events, by the name of the event; until one has come."""
    told: dict[str, list[Any]] = {}
    name = ""
    for line in lines:
        label, _, value = line.partition(": ")
        if label == "event":
            name = value.replace(".", "-")
        elif label == "data":
            told.setdefault(name, []).append(json.loads(value))
        elif not line and until in told:
            break
    return told


def filled(value: Any, known: dict[str, Any]) -> Any:
    """A value with what is known in place of its names."""
    if isinstance(value, dict):
        return {name: filled(one, known) for name, one in value.items()}
    if isinstance(value, list):
        return [filled(one, known) for one in value]
    if not isinstance(value, str):
        return value
    whole = re.fullmatch(r"\{(\w+)\}", value)
    return known[whole[1]] if whole else re.sub(r"\{(\w+)\}", lambda found: str(known[found[1]]), value)


def at(answer: Any, place: str) -> Any:
    """What is at a place of an answer."""
    if place == "$":
        return answer
    head, _, rest = place.partition(".")
    if isinstance(answer, list):
        found = answer[int(head)]
    else:
        found = next(iter(answer.values())) if head == "*" else answer[head]
    return at(found, rest or "$")
