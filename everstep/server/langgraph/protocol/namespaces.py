"""The graphs below a run's own: when each begins and ends, by what the log tells of their tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from everstep.checkpoints import events

Namespace = tuple[str, ...]
_ROOT: Namespace = ()


def namespace_of(place: str) -> Namespace:
    """A namespace of the log in its parts, each a node's name and its task's id (`node:id`); empty for the graph."""
    return tuple(place.split(events.SEPARATOR)) if place else _ROOT


class Namespaces:
    """Those of one run."""

    def __init__(self) -> None:
        self._open: dict[Namespace, str] = {}
        self._seen: set[Namespace] = set()
        self._named: dict[Namespace, str] = {}
        self._calls: dict[str, str] = {}
        self._asking: dict[str, Namespace] = {}

    def begun(self, namespace: Namespace) -> list[tuple[Namespace, dict[str, Any]]]:
        """Something was told of a graph: it and those around it have begun, if they had not."""
        told: list[tuple[Namespace, dict[str, Any]]] = []
        for length in range(1, len(namespace) + 1):
            part = namespace[:length]
            if part in self._seen:
                continue
            self._seen.add(part)
            node, _, task = part[-1].partition(":")
            self._open[part] = task
            data: dict[str, Any] = {"event": "started", "graph_name": self._named.get(part, node)}
            if task in self._calls:
                data["cause"] = {"type": "toolCall", "tool_call_id": self._calls[task]}
            told.append((part, data))
        return told

    def task(self, namespace: Namespace, told: Mapping[str, Any]) -> list[tuple[Namespace, dict[str, Any]]]:
        """A task began or ended: with it, the graphs that ran in it."""
        task = str(told.get("id"))
        if "result" not in told:
            self._note(namespace, task, told)
            return []
        for interrupt in told.get("interrupts") or ():
            known = self._asking.get(interrupt.get("id"), _ROOT)
            self._asking[interrupt.get("id")] = max(known, namespace, key=len)
        ended = [part for part, within in self._open.items() if part[:-1] == namespace and within == task]
        status, error = "completed", None
        if told.get("interrupts"):
            status = "interrupted"
        elif told.get("error"):
            status, error = "failed", str(told["error"])
        return self._end(ended, status, error)

    def name(self, namespace: Namespace, told: Mapping[str, Any]) -> None:
        """An agent's own name, which its first task tells."""
        metadata: Mapping[str, Any] = told.get("metadata") or {}
        if namespace and metadata.get("lc_agent_name"):
            self._named.setdefault(namespace, str(metadata["lc_agent_name"]))

    def end(self, status: str) -> list[tuple[Namespace, dict[str, Any]]]:
        """The run ended so, and with it what is left, the innermost first."""
        return self._end(sorted(self._open, key=len, reverse=True), status, None)

    def asking(self, interrupt_id: str) -> Namespace:
        """The graph in which a question was asked."""
        return self._asking.get(interrupt_id, _ROOT)

    def _note(self, namespace: Namespace, task: str, told: Mapping[str, Any]) -> None:
        """The call of a tool that a task carries out."""
        given: Any = told.get("input")
        calls = cast("Sequence[Any]", given if isinstance(given, list) else [_part(given, "tool_call")])
        called = next((call for one in calls if (call := _part(one, "id"))), None)
        if isinstance(called, str):
            self._calls[task] = called

    def _end(
        self, ended: Sequence[Namespace], status: str, error: str | None
    ) -> list[tuple[Namespace, dict[str, Any]]]:
        for part in ended:
            del self._open[part]
        data = {"event": status} if error is None else {"event": status, "error": error}
        return [(part, {**data, "graph_name": self._named.get(part, part[-1].partition(":")[0])}) for part in ended]


def _part(value: Any, name: str) -> Any:
    return cast("Mapping[str, Any]", value).get(name) if isinstance(value, Mapping) else None
