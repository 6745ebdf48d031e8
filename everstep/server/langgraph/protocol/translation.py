"""The event log in the protocol's form: values, updates, messages, tools, lifecycle, input, checkpoints, tasks, custom.

One row of the log is none, one or several of the protocol's events. The number of an event (`seq`) is the row's id
times `WITHIN`, plus its place among those of the row, and its `event_id` is the same: both are a thread's own, grow
along it, and are alike for every reader in every process. So an event's place must not depend on which channels
somebody reads: those that tell of messages come first and have room of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from everstep.checkpoints import events
from everstep.checkpoints.events import Event
from everstep.runtime.streams import checkpoint_ids
from everstep.server.langgraph.protocol.messages import Messages, Told
from everstep.server.langgraph.protocol.namespaces import Namespace, Namespaces, namespace_of

WITHIN = 4096
_AFTER_MESSAGES = 2048
_LAST = WITHIN - 1
INTERRUPT = "__interrupt__"
AS_TOLD = frozenset({"tools", "tasks", "custom"})
STATUSES = {"success": "completed", "error": "failed", "timeout": "failed", "interrupted": "failed"}
"""What a run came to, in the protocol's words; one that waits for a person is `interrupted` instead.

One that was cancelled is `failed`: after anything else the Python client waits on for ever.
"""
CANCELLED = "the run was cancelled"


def through(row: int) -> int:
    """The number up to which everything is told when a row of the log is."""
    return row * WITHIN + _LAST if row else 0


def row_of(number: int) -> int:
    """The row of the log that an event's number belongs to."""
    return number // WITHIN


@dataclass(frozen=True)
class ProtocolEvent:
    """An event of the protocol.

    Attributes:
        number: Its place in the thread.
        method: What it tells of: a channel, or `input.requested`.
        namespace: The graph it comes from.
        at: UTC milliseconds.
        data_json: What it tells, as JSON.
        node: The node it comes from, where that is known.
        interrupts_json: What waits for an answer with these values, as JSON.
    """

    number: int
    method: str
    namespace: Namespace
    at: int
    data_json: str
    node: str | None = None
    interrupts_json: str | None = None

    @property
    def channel(self) -> str:
        """The channel it is for; of `custom`, with the name that its data gives."""
        if self.method == "input.requested":
            return "input"
        if self.method != "custom":
            return self.method
        name = _object(self.data).get("name")
        return f"custom:{name}" if name else "custom"

    @property
    def data(self) -> Any:
        """What it tells."""
        return json.loads(self.data_json)

    def text(self) -> str:
        """All of it, as JSON."""
        more = "" if self.node is None else f', "node": {json.dumps(self.node)}'
        more += "" if self.interrupts_json is None else f', "interrupts": {self.interrupts_json}'
        params = f'"namespace": {json.dumps(self.namespace)}, "timestamp": {self.at}, "data": {self.data_json}{more}'
        place = f'"seq": {self.number}, "event_id": "{self.number}"'
        return f'{{"type": "event", "method": "{self.method}", "params": {{{params}}}, {place}}}'


@dataclass
class _Run:
    """What is known of a run that is being told."""

    messages: Messages = field(default_factory=Messages)
    namespaces: Namespaces = field(default_factory=Namespaces)
    begun: bool = False
    error: str | None = None


class Translation:
    """Translates a thread's events, in order, from the first of a run; `close` it in the end.

    Args:
        channels: Those that somebody reads; the others are not made.

    Attributes:
        graphs: Names of the graphs of the runs that come, by run id.
    """

    def __init__(self, channels: frozenset[str]) -> None:
        self.graphs: dict[str, str] = {}
        self._channels = {channel.partition(":")[0] for channel in channels}
        self._runs: dict[str, _Run] = {}

    def of(self, event: Event) -> list[ProtocolEvent]:
        """The protocol's events of one row of the log."""
        run = self._runs.setdefault(event.run_id, _Run())
        row = _Row(event, self._channels)
        if event.method == events.METADATA:
            row.messages(run.messages.close("the run begins this step anew") if run.begun else [])
            name = self.graphs.get(event.run_id, "")
            row.lifecycle((), [] if run.begun else [{"event": "started", "graph_name": name}])
            row.lifecycle((), [{"event": "running", "graph_name": name}])
            run.begun = True
        elif event.method == events.ERROR:
            run.error = event.data.get("message") or event.data.get("error")
        elif event.method == events.END:
            self._end(row, run, event)
            del self._runs[event.run_id]
        elif event.method == "messages":
            if "messages" in self._channels:
                row.messages(run.messages.of(event.namespace, event.data))
            row.namespaces(run.namespaces.begun(row.namespace))
        else:
            _graph(row, run, event)
        return row.made

    def close(self) -> None:
        """Nothing more is translated."""
        for run in self._runs.values():
            run.messages.close()

    def _end(self, row: _Row, run: _Run, event: Event) -> None:
        over: dict[str, Any] = event.data
        asks: list[dict[str, Any]] = over.get("asks") or []
        status = "interrupted" if "asks" in over else STATUSES.get(over["status"], "failed")
        why = CANCELLED if over["status"] == "interrupted" else run.error or over["status"]
        row.messages(run.messages.close(None if "asks" in over or status == "completed" else why))
        for one in asks:
            told = {"interrupt_id": one["id"], "payload": one["value"], "value": one["value"]}
            row.tell("input.requested", run.namespaces.asking(one["id"]), told)
        row.namespaces(run.namespaces.end(status))
        data = {"event": status, "graph_name": self.graphs.get(event.run_id, "")}
        row.lifecycle((), [data if status != "failed" else {**data, "error": why}])


def _graph(row: _Row, run: _Run, event: Event) -> None:
    """What a graph itself emitted."""
    about_tasks = event.method == "tasks" and row.reads("tasks", "lifecycle", "input")
    task: dict[str, Any] = event.data if about_tasks else {}
    if about_tasks:
        run.namespaces.name(row.namespace, task)
    row.namespaces(run.namespaces.begun(row.namespace))
    if event.method in AS_TOLD:
        row.tell_text(event.method, event.data_json)
    elif event.method == "values":
        _values(row, event)
    elif event.method == "updates":
        _updates(row, event)
    elif event.method == events.CHECKPOINT_IDS:
        row.tell_text("checkpoints", event.data_json)
    elif event.method == "checkpoints":
        row.tell("checkpoints", row.namespace, checkpoint_ids(event.data) if row.reads("checkpoints") else None)
    if about_tasks:
        row.namespaces(run.namespaces.task(row.namespace, task))


def _values(row: _Row, event: Event) -> None:
    if INTERRUPT not in event.data_json or not row.reads("values"):
        row.tell_text("values", event.data_json)
        return
    values = dict(_object(event.data))
    asked: Any = values.pop(INTERRUPT, None)
    if asked is None:
        row.tell_text("values", event.data_json)
    elif values:
        row.tell_text("values", json.dumps(values), interrupts_json=json.dumps(asked))
    else:
        row.skip()


def _updates(row: _Row, event: Event) -> None:
    if not row.reads("updates"):
        row.skip()
        return
    nodes = list(_object(event.data))
    if nodes == [INTERRUPT]:
        row.skip()
    else:
        row.tell_text("updates", event.data_json, node=nodes[0] if len(nodes) == 1 else None)


def _object(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


class _Row:
    """The protocol's events of one row of the log."""

    def __init__(self, event: Event, channels: Iterable[str]) -> None:
        self.made: list[ProtocolEvent] = []
        self.namespace = namespace_of(event.namespace)
        self._event = event
        self._channels = channels
        self._place = _AFTER_MESSAGES

    def reads(self, *channels: str) -> bool:
        return any(channel in self._channels for channel in channels)

    def messages(self, told: list[Told]) -> None:
        for place, one in enumerate(told):
            self._add(min(place, _AFTER_MESSAGES - 1), "messages", self.namespace, json.dumps(one.data), node=one.node)

    def namespaces(self, told: list[tuple[Namespace, dict[str, Any]]]) -> None:
        for namespace, data in told:
            self.tell("lifecycle", namespace, data)

    def lifecycle(self, namespace: Namespace, told: list[dict[str, Any]]) -> None:
        self.namespaces([(namespace, data) for data in told])

    def tell(self, method: str, namespace: Namespace, data: Any) -> None:
        channel = "input" if method == "input.requested" else method
        if channel in self._channels:
            self._add(min(self._place, _LAST), method, namespace, json.dumps(data))
        self.skip()

    def tell_text(
        self, method: str, data_json: str, *, node: str | None = None, interrupts_json: str | None = None
    ) -> None:
        if method in self._channels:
            place = min(self._place, _LAST)
            self._add(place, method, self.namespace, data_json, node=node, interrupts_json=interrupts_json)
        self.skip()

    def skip(self) -> None:
        self._place += 1

    def _add(self, place: int, method: str, namespace: Namespace, data_json: str, **more: Any) -> None:
        number = self._event.id * WITHIN + place
        self.made.append(ProtocolEvent(number, method, namespace, self._event.at, data_json, **more))
