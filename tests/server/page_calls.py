"""What LangGraph's pages ask of a server, call by call, and what each of them reads of the answers.

Written down from the calls of Agent Chat UI, Agent Inbox, Studio, both generations of `useStream` and `RemoteGraph`.
`{name}` stands for what an earlier answer told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

THERE = object()
"""In place of a value: whatever it is, it is there."""


@dataclass(frozen=True)
class Call:
    """One call and its answer.

    Attributes:
        method: Of HTTP.
        path: With its query.
        body: As JSON.
        status: What it is answered with.
        reads: What the page reads of the answer, by the place in it, and what it finds there. A place is names and
            numbers joined by dots, `*` for the first one whatever its name, and `$` alone for all of it. Of a stream,
            the names are those of events, a `-` for each dot in them, and their data is in a list.
        keeps: What later calls need of it, by name: its place.
        headers: Of the request.
        until: The stream stays open: read it until an event of this name has come.
    """

    method: str
    path: str
    body: Any = None
    status: int = 200
    reads: dict[str, Any] = field(default_factory=dict[str, Any])
    keeps: dict[str, str] = field(default_factory=dict[str, str])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    until: str = "end"


def says(text: str) -> dict[str, Any]:
    """A person's message, as the pages send it."""
    return {"messages": [{"id": f"person-{text}", "type": "human", "content": text}]}


CHAT_MODES = ["values", "messages-tuple", "custom"]
AGENT_CHAT_UI = [
    Call("GET", "/info", reads={"version": THERE, "flags": THERE}),
    Call("POST", "/threads/search", {"metadata": {"graph_id": "approval"}, "limit": 100}, reads={"$": []}),
    Call("POST", "/threads", {}, reads={"status": "idle"}, keeps={"thread": "thread_id"}),
    Call(
        "POST",
        "/threads/{thread}/runs/stream",
        {
            "assistant_id": "approval",
            "input": says("mail Anna"),
            "stream_mode": CHAT_MODES,
            "stream_subgraphs": True,
            "stream_resumable": True,
            "on_disconnect": "continue",
        },
        reads={
            "messages.0.0.type": "AIMessageChunk",
            "values.-1.__interrupt__.0.value.action_requests.0.name": "send_mail",
            "end": [None],
        },
        keeps={"run": "metadata.0.run_id"},
    ),
    Call(
        "POST",
        "/threads/{thread}/history",
        {"limit": 10},
        reads={"0.tasks.0.interrupts.0.id": THERE, "0.next": ["ask"]},
    ),
    Call(
        "GET",
        "/threads/{thread}/runs/{run}/stream?cancel_on_disconnect=0",
        headers={"Last-Event-ID": "-1"},
        reads={"metadata.0.run_id": "{run}", "end": [None]},
    ),
    Call(
        "POST",
        "/threads/search",
        {"metadata": {"graph_id": "approval"}, "limit": 100},
        reads={"0.thread_id": "{thread}", "0.values.messages.0.content": "mail Anna", "0.status": "interrupted"},
    ),
    Call(
        "POST",
        "/threads/{thread}/runs/stream",
        {
            "assistant_id": "approval",
            "input": {},
            "command": {"resume": {"decisions": [{"type": "approve"}]}},
            "stream_mode": CHAT_MODES,
            "stream_resumable": True,
        },
        reads={"values.-1.messages.-1.content": "decided: approve"},
    ),
    Call(
        "POST",
        "/threads/{thread}/history",
        {"limit": 10},
        reads={"0.next": [], "-2.metadata.source": THERE},
        keeps={"place": "-3.checkpoint.checkpoint_id"},
    ),
    Call(
        "POST",
        "/threads/{thread}/runs/stream",
        {
            "assistant_id": "approval",
            "checkpoint": {"checkpoint_id": "{place}", "checkpoint_ns": ""},
            "stream_mode": ["values"],
            "stream_subgraphs": True,
            "stream_resumable": True,
        },
        reads={"values.-1.__interrupt__.0.value": THERE},
    ),
    Call(
        "POST",
        "/threads/{thread}/runs/stream",
        {"assistant_id": "approval", "input": {}, "command": {"goto": "__end__"}, "stream_mode": ["values"]},
        reads={"end": [None]},
    ),
    Call("GET", "/threads/{thread}/state", reads={"next": [], "tasks": []}),
]

INBOX_SEARCH = {"status": "interrupted", "metadata": {"graph_id": "inbox"}, "limit": 10, "offset": 0}
AGENT_INBOX = [
    Call("GET", "/info", reads={"version": THERE}),
    *(
        Call("POST", f"/threads/{{{name}}}/runs/wait", {"assistant_id": "inbox", "input": says(name)})
        for name in ("first", "second", "third")
    ),
    Call(
        "POST",
        "/threads/search",
        INBOX_SEARCH,
        reads={
            "2.thread_id": "{first}",
            "2.interrupts.*.0.value.0.action_request.action": "send_mail",
            "2.interrupts.*.0.value.0.config.allow_accept": True,
            "2.values.messages.0.content": "first",
        },
    ),
    Call("GET", "/threads/{first}", reads={"status": "interrupted", "metadata.graph_id": "inbox"}),
    Call("GET", "/threads/{first}/state", reads={"tasks.-1.interrupts.-1.value.0.description": "Send a mail to Anna"}),
    Call(
        "POST",
        "/threads/{first}/runs/stream",
        {
            "assistant_id": "inbox",
            "command": {"resume": [{"type": "accept", "args": None}]},
            "stream_mode": "events",
        },
        reads={"events.0.event": "on_chain_start", "end": [None]},
    ),
    Call("GET", "/threads/{first}/state", reads={"values.messages.-1.content": "decided: accept", "next": []}),
    Call(
        "POST",
        "/threads/{second}/runs",
        {"assistant_id": "inbox", "command": {"resume": [{"type": "response", "args": "later"}]}},
        reads={"status": "pending"},
        keeps={"run": "run_id"},
    ),
    Call("GET", "/threads/{second}/runs/{run}/join", reads={"messages.-1.content": "decided: response"}),
    Call(
        "POST",
        "/threads/{third}/state",
        {"values": None, "as_node": "__end__"},
        reads={"checkpoint.checkpoint_id": THERE},
    ),
    Call("GET", "/threads/{third}", reads={"interrupts": {}}),
    Call("POST", "/threads/search", INBOX_SEARCH, reads={"$": []}),
]

TEXT = {"Content-Type": "text/plain;charset=UTF-8"}
STUDIO = [
    Call("GET", "/ok", reads={"ok": True}),
    Call("GET", "/info", reads={"flags.assistants": True}),
    Call(
        "POST",
        "/assistants/search",
        {"graph_id": "nested", "metadata": {"created_by": "system"}, "limit": 100, "offset": 0},
        headers=TEXT,
        reads={"0.graph_id": "nested", "0.metadata.created_by": "system"},
        keeps={"assistant": "0.assistant_id"},
    ),
    Call("GET", "/assistants/{assistant}/graph?xray=true", reads={"nodes.0.id": "__start__", "edges.0.source": THERE}),
    Call("GET", "/assistants/{assistant}/schemas", reads={"state_schema.properties.log": THERE, "graph_id": "nested"}),
    Call("GET", "/assistants/{assistant}/subgraphs?recurse=true", reads={"$": THERE}),
    Call("POST", "/assistants/{assistant}/versions", {"limit": 100}, headers=TEXT, reads={"0.version": 1}),
    Call("POST", "/threads", {"metadata": {"graph_id": "nested"}}, headers=TEXT, keeps={"thread": "thread_id"}),
    Call("GET", "/threads/{thread}/state?subgraphs=true", reads={"values": {}, "next": [], "checkpoint": None}),
    Call(
        "POST",
        "/threads/{thread}/runs/stream",
        {
            "assistant_id": "{assistant}",
            "input": {"log": ["in"]},
            "stream_mode": ["debug", "messages"],
            "stream_subgraphs": True,
            "multitask_strategy": "rollback",
            "checkpoint_during": True,
        },
        headers=TEXT,
        reads={"debug.0.payload.checkpoint.checkpoint_id": THERE, "debug.0.type": "checkpoint"},
    ),
    Call(
        "POST",
        "/threads/{thread}/history",
        {"limit": 1000},
        headers=TEXT,
        reads={"0.tasks.0.interrupts.0.value.question": "go on?", "0.parent_checkpoint.checkpoint_id": "{before}"},
        keeps={"before": "1.checkpoint.checkpoint_id"},
    ),
    Call("POST", "/threads/{thread}/state", {"values": {"log": ["edited"]}, "as_node": "after"}, headers=TEXT),
    Call("GET", "/threads/{thread}/state", reads={"values.log": ["in", "before", "edited"], "next": []}),
    Call("POST", "/threads/{thread}/copy", reads={"values.log.-1": "edited"}, keeps={"copy": "thread_id"}),
    Call("POST", "/threads/search", {"limit": 20, "metadata": {"graph_id": "nested"}}, reads={"0.thread_id": THERE}),
    Call("GET", "/threads/{copy}/state", reads={"values.log.-1": "edited"}),
]

USE_STREAM = [
    Call("POST", "/threads", {}, keeps={"thread": "thread_id"}),
    Call("POST", "/threads/{thread}/history", {"limit": 10}, reads={"$": []}),
    Call(
        "POST",
        "/threads/{thread}/runs",
        {
            "assistant_id": "endless",
            "input": {"log": ["in"]},
            "stream_resumable": True,
            "stream_mode": ["values", "updates"],
        },
        keeps={"first": "run_id"},
    ),
    Call(
        "POST",
        "/threads/{thread}/runs",
        {
            "assistant_id": "steps",
            "input": {"log": ["next"]},
            "multitask_strategy": "enqueue",
            "stream_resumable": True,
            "stream_mode": ["values", "updates"],
        },
        reads={"status": "pending"},
        keeps={"second": "run_id"},
    ),
    Call("GET", "/threads/{thread}/runs?limit=10&offset=0", reads={"0.run_id": "{second}", "1.run_id": "{first}"}),
    Call("POST", "/threads/{thread}/runs/{first}/cancel?wait=0&action=interrupt", status=202),
    Call(
        "GET",
        "/threads/{thread}/runs/{second}/stream?cancel_on_disconnect=0",
        headers={"Last-Event-ID": "-1"},
        reads={"values.-1.log.-1": "c", "updates.-1.c.log": ["c"]},
    ),
    Call("GET", "/threads/{thread}/state", reads={"values.log.-1": "c", "checkpoint.thread_id": "{thread}"}),
]

NEW_USE_STREAM = [
    Call("GET", "/threads/{first}/state", status=404, reads={"detail": THERE}),
    Call(
        "POST",
        "/threads/{first}/commands",
        {"id": 1, "method": "run.start", "params": {"assistant_id": "nested", "input": {"log": ["in"]}}},
        reads={"type": "success", "id": 1},
        keeps={"run": "result.run_id"},
    ),
    Call(
        "POST",
        "/threads/{first}/stream/events",
        {"channels": ["values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks"]},
        reads={"input-requested.0.params.data.payload.question": "go on?"},
        keeps={"question": "input-requested.0.params.data.interrupt_id"},
        until="input-requested",
    ),
    Call("POST", "/threads/{first}/history", {"limit": 10}, reads={"0.next": ["inner"]}),
    Call(
        "POST",
        "/threads/{first}/commands",
        {
            "id": 2,
            "method": "input.respond",
            "params": {"interrupt_id": "{question}", "namespace": [], "response": "yes"},
        },
        reads={"type": "success", "id": 2},
        keeps={"answer": "result.run_id"},
    ),
    Call("GET", "/threads/{first}/runs/{answer}/join", reads={"log.-1": "answered yes"}),
    Call("GET", "/threads/{first}/state", reads={"next": [], "values.answer": "yes"}),
]

REMOTE_GRAPH = [
    Call("GET", "/assistants/steps/graph?xray=false", reads={"nodes.1.id": "a"}),
    Call(
        "POST",
        "/threads/{first}/runs/stream",
        {
            "assistant_id": "steps",
            "input": {"log": ["in"]},
            "config": {"configurable": {}, "metadata": {}, "tags": [], "recursion_limit": 25},
            "stream_mode": ["values", "updates"],
            "stream_subgraphs": False,
            "if_not_exists": "create",
        },
        reads={"values.-1.log": ["in", "a", "b", "c"], "updates.0.a.log": ["a"]},
    ),
    Call("GET", "/threads/{first}/state", reads={"next": [], "created_at": THERE}, keeps={"place": "checkpoint"}),
    Call(
        "POST",
        "/threads/{first}/state/checkpoint",
        {"checkpoint": "{place}", "subgraphs": False},
        reads={"checkpoint": "{place}", "parent_checkpoint.checkpoint_id": THERE, "metadata.step": THERE},
    ),
    Call("POST", "/threads/{first}/history", {"limit": 10}, reads={"0.checkpoint": "{place}"}),
    Call(
        "POST",
        "/threads/{first}/state",
        {"values": {"log": ["edited"]}, "checkpoint": "{place}", "as_node": "c"},
        reads={"checkpoint.thread_id": "{first}"},
    ),
]

PAGES = {
    "Agent Chat UI": AGENT_CHAT_UI,
    "Agent Inbox": AGENT_INBOX,
    "Studio": STUDIO,
    "useStream": USE_STREAM,
    "useStream of @langchain/react": NEW_USE_STREAM,
    "RemoteGraph": REMOTE_GRAPH,
}
"""What each page asks, in order."""
