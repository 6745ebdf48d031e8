"""`RunRequest`: one run, as a client asked for it, in the record's words; see `runs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from everstep.checkpoints.jobs import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY

Strategy = Literal["enqueue", "reject", "interrupt", "rollback"]


@dataclass(frozen=True)
class RunRequest:
    """One run, as it was asked for; everything is JSON data.

    Attributes:
        graph: Name of the graph.
        assistant_id: The assistant it is of.
        input: What the graph starts with; None: go on from where the thread stands.
        command: `update`, `goto` and `resume`, as of LangGraph's `Command`; it wins over `input`.
        config: `tags`, `recursion_limit` and `configurable`.
        context: The run's static context.
        checkpoint: Where to fork the thread: `checkpoint_id` and `checkpoint_ns`.
        interrupt_before: Nodes to pause before, or `*`.
        interrupt_after: Nodes to pause after, or `*`.
        stream_mode: What is written to the event log.
        stream_subgraphs: Whether what subgraphs emit is, too.
        metadata: What the caller wants to find it by.
        strategy: What happens if the thread is busy.
        delay_s: Seconds before which it does not start.
        webhook: Where its end is told.
        delete_thread: Whether the thread goes when it is over.
        priority: 0 (can wait) to 10 (urgent).
        max_attempts: Failures in a row, without progress between them, after which it has failed.
        slow_client: For how many seconds its agent waits for clients that read slowly; None: it never waits.
        kwargs: The request as its caller sees it again.
    """

    graph: str
    assistant_id: str
    input: Any = None
    command: Mapping[str, Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context: Any = None
    checkpoint: Mapping[str, Any] | None = None
    interrupt_before: Sequence[str] | str | None = None
    interrupt_after: Sequence[str] | str | None = None
    stream_mode: Sequence[str] = ("values",)
    stream_subgraphs: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    strategy: Strategy = "enqueue"
    delay_s: float = 0.0
    webhook: str | None = None
    delete_thread: bool = False
    priority: int = DEFAULT_PRIORITY
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    slow_client: float | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def how(self, run_id: str, now: int) -> dict[str, Any]:
        """What is stored of it with its job (`run_json`), for whoever runs it."""
        how: dict[str, Any] = {
            "run_id": run_id,
            "assistant_id": self.assistant_id,
            "config": dict(self.config),
            "context": self.context,
            "checkpoint": self.checkpoint,
            "interrupt_before": self.interrupt_before,
            "interrupt_after": self.interrupt_after,
            "stream_mode": list(self.stream_mode),
            "stream_subgraphs": self.stream_subgraphs,
        }
        if self.slow_client is not None:
            how["slow_client"] = self.slow_client
        if self.delay_s:
            how["not_before"] = now + int(self.delay_s * 1000)
        steering = {name: value for name, value in (self.command or {}).items() if name in ("update", "goto")}
        if steering:
            how["command"] = steering
        return how
