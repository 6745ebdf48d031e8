"""How a job runs that a client started: what its graph is configured with, where it stops, and what of it is told."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from langgraph.constants import END, START

from everstep.checkpoints.job import Job
from everstep.errors import PayloadInvalid

_OURS = frozenset({"thread_id", "run_id", "checkpoint_id", "checkpoint_ns", "checkpoint_map", "graph_id"})
"""What of `configurable` a client cannot choose: it says where the run is."""


def goes_to(command: Mapping[str, Any] | None) -> list[str]:
    """The nodes that a command goes to.

    Raises:
        PayloadInvalid: `goto` is not what the clients send: a name, `{"node": …, "input": …}`, or a list of these.
    """
    goto: Any = (command or {}).get("goto") or ()
    places: list[Any] = [*cast("list[Any]", goto)] if isinstance(goto, list | tuple) else [goto]
    names: list[str] = []
    for place in places:
        name: Any = cast("dict[str, Any]", place).get("node") if isinstance(place, dict) else place
        if not isinstance(name, str):
            raise PayloadInvalid(
                "command.goto names no node", next_step='give a name, {"node": …, "input": …}, or a list of these'
            )
        names.append(name)
    return names


def require_nodes(graph: str, nodes: Iterable[str], wanted: Iterable[str]) -> None:
    """Refuse a step to a node that is not there: LangGraph would begin from the start, without a word.

    Args:
        graph: The graph's name.
        nodes: Its nodes.
        wanted: Where a command goes to.

    Raises:
        PayloadInvalid: Names the first that is not there, and those that are.
    """
    there = [name for name in nodes if name != START]
    if unknown := [name for name in wanted if name not in (*there, START, END)]:
        raise PayloadInvalid(
            f"command.goto names {unknown[0]!r}, which is no node of graph {graph}",
            next_step=f"its nodes: {', '.join(there)}",
        )


@dataclass(frozen=True)
class RunOptions:
    """What a job's `run_json` says; of a job without one, nothing.

    Attributes:
        run_id: The run that is under way; None for a job that no client started.
        assistant_id: Its assistant.
        config: `tags`, `recursion_limit`, `metadata` and `configurable`.
        context: The run's static context.
        command: What steers the graph in place of an input: `update` and `goto`.
        checkpoint: Where to fork the thread.
        interrupt_before: Nodes to pause before, or `*`; None: as the graph was compiled.
        interrupt_after: Nodes to pause after, or `*`.
        stream_mode: What is written to the event log.
        stream_subgraphs: Whether what subgraphs emit is, too.
        slow_client: For how many seconds the agent waits for clients that read slowly; None: it never waits.
    """

    run_id: str | None = None
    assistant_id: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context: Any = None
    command: Mapping[str, Any] | None = None
    checkpoint: Mapping[str, Any] | None = None
    interrupt_before: Sequence[str] | str | None = None
    interrupt_after: Sequence[str] | str | None = None
    stream_mode: tuple[str, ...] = ()
    stream_subgraphs: bool = False
    slow_client: float | None = None

    @classmethod
    def of(cls, job: Job) -> RunOptions:
        """Those of a job."""
        if job.run_json is None:
            return cls()
        how: dict[str, Any] = json.loads(job.run_json)
        known: dict[str, Any] = {name: how[name] for name in cls.__dataclass_fields__ if how.get(name) is not None}
        known["stream_mode"] = tuple(known.get("stream_mode", ()))
        return cls(**known)

    def configurable(self, job: Job) -> dict[str, Any]:
        """What the graph finds under `configurable`."""
        own = {name: value for name, value in self.config.get("configurable", {}).items() if name not in _OURS}
        own |= {"thread_id": job.thread_id, "run_id": self.run_id or job.public_id}
        if self.run_id is not None:
            own |= {"graph_id": job.graph, "assistant_id": self.assistant_id}
        return own

    @property
    def resolves(self) -> bool:
        """Whether the command is that the graph ends where it is (`goto: "__end__"`), whatever waits there.

        LangGraph itself takes no step to its end, and asks again what was asked.
        """
        command = self.command or {}
        return command.get("goto") in ("__end__", ["__end__"]) and not command.get("update")

    def stops(self) -> dict[str, Any]:
        """The graph's attributes that say where it pauses, as far as the run says otherwise."""
        given = {"interrupt_before_nodes": self.interrupt_before, "interrupt_after_nodes": self.interrupt_after}
        return {name: value for name, value in given.items() if value is not None}

    def forks_at(self) -> dict[str, Any]:
        """The checkpoint it starts from, as part of `configurable`; empty for the newest."""
        if not self.checkpoint or not self.checkpoint.get("checkpoint_id"):
            return {}
        place = {"checkpoint_ns": self.checkpoint.get("checkpoint_ns") or ""}
        return {**place, "checkpoint_id": self.checkpoint["checkpoint_id"]}
