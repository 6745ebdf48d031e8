"""What a client asks of a run (LangGraph's `RunCreate`), checked and put into the record's words.

Each field is honoured or refused by its name. Taken and without effect are those that only concern LangSmith
(`langsmith_tracer`, `feedback_keys`), and those that ask for less than is always given: events can be read again
whether or not `stream_resumable` is set, and steps are durable before the next one begins whatever `durability` and
`checkpoint_during` say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from everstep.checkpoints import payload
from everstep.checkpoints.assistants import Assistant
from everstep.checkpoints.json_filters import check_json
from everstep.checkpoints.laid_over import laid_over
from everstep.checkpoints.runs import RunRequest
from everstep.errors import RequestInvalid
from everstep.server.texts import Text

StreamMode = Literal[
    "values", "updates", "messages", "messages-tuple", "custom", "events", "debug", "tasks", "checkpoints", "tools"
]
Nodes = list[str] | Literal["*"]
_MOST_S = 366 * 86_400
_INNER_CAPITAL = re.compile(r"(?<=[a-z])([A-Z])")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class CommandBody(BaseModel):
    """LangGraph's `Command`, as its clients send it."""

    model_config = ConfigDict(extra="forbid")

    lg_name: Literal["Command"] = Field("Command", description="As the JavaScript client's Command says of itself.")
    graph: None = None
    update: dict[str, Any] | list[tuple[str, Any]] | None = None
    resume: Any = None
    goto: Any = None

    def said(self) -> dict[str, Any]:
        """What of it says anything: `Command` objects of the clients have every field, most of them empty."""
        said = {"update": self.update, "resume": self.resume, "goto": self.goto or None}
        return {name: value for name, value in said.items() if value is not None}


class CheckpointBody(BaseModel):
    """A place in a thread's history."""

    model_config = ConfigDict(extra="forbid")

    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    checkpoint_map: dict[str, Any] | None = None


class ConfigBody(BaseModel):
    """What a run is configured with."""

    model_config = ConfigDict(extra="forbid")

    tags: list[str] | None = None
    recursion_limit: int | None = Field(None, ge=1)
    configurable: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class RunCreate(BaseModel):
    """A run to start."""

    model_config = ConfigDict(extra="forbid")

    assistant_id: Text
    input: Any = None
    command: CommandBody | None = None
    config: ConfigBody | None = None
    context: Any = None
    metadata: dict[str, Any] | None = None
    checkpoint: CheckpointBody | None = None
    checkpoint_id: str | None = None
    interrupt_before: Nodes | None = None
    interrupt_after: Nodes | None = None
    stream_mode: Annotated[list[StreamMode], BeforeValidator(_listed)] = Field(default_factory=lambda: ["values"])
    stream_subgraphs: bool = False
    stream_resumable: bool = False
    multitask_strategy: Literal["enqueue", "reject", "interrupt", "rollback"] = "enqueue"
    if_not_exists: Literal["reject", "create"] = "reject"
    on_disconnect: Literal["continue", "cancel"] = "continue"
    on_completion: Literal["delete", "keep"] = "delete"
    after_seconds: float | None = Field(None, ge=0, le=_MOST_S)
    durability: Literal["sync", "async", "exit"] | None = None
    checkpoint_during: bool | None = None
    webhook: str | None = None
    strict_resume: bool | None = None
    feedback_keys: list[str] | None = None
    langsmith_tracer: dict[str, Any] | None = None

    def as_request(self, assistant: Assistant, told: Mapping[str, Any], *, stateless: bool) -> RunRequest:
        """In the record's words.

        Args:
            assistant: Whose configuration it is laid over.
            told: What the request itself tells (`server.configurable`), under `configurable`.
            stateless: Whether its thread is made for it alone.

        Raises:
            RequestInvalid: Two fields contradict each other, or one cannot be honoured or stored.
            SecretInPayload: A field seems to hold a credential.
        """
        given = self.model_dump(exclude_unset=True)
        for name in ("input", "command", "config", "context", "metadata"):
            payload.check_payload({name: given.get(name)})
            check_json(given.get(name), name)
        command = self.command and self.command.said()
        if command is not None and not command:
            raise RequestInvalid("command holds nothing", next_step="give update, goto or resume")
        if stateless and command is not None:
            raise RequestInvalid("command is for a thread that exists", next_step="POST it to /threads/{id}/runs")
        checkpoint = self.checkpoint.model_dump(exclude_none=True) if self.checkpoint else {}
        place = (self.config.configurable if self.config else None) or {}
        for name in ("checkpoint_id", "checkpoint_ns"):  # some clients say it there
            if place.get(name) and not checkpoint.get(name):
                checkpoint[name] = str(place[name])
        if self.checkpoint_id is not None:
            if checkpoint.get("checkpoint_id", self.checkpoint_id) != self.checkpoint_id:
                raise RequestInvalid("checkpoint and checkpoint_id name two places", next_step="give one of them")
            checkpoint["checkpoint_id"] = self.checkpoint_id
        forks = bool(checkpoint.get("checkpoint_id"))
        if forks and command is not None:
            raise RequestInvalid(
                "a command at an earlier checkpoint is not supported",
                next_step="update the state there (POST /threads/{id}/state), then run the thread",
            )
        if forks and checkpoint.get("checkpoint_ns"):
            raise RequestInvalid("checkpoint.checkpoint_ns is not supported: only whole threads are forked")
        if self.webhook is not None and not self.webhook.startswith(("http://", "https://")):
            raise RequestInvalid("webhook is no URL", next_step="give one that begins with https://")
        config = laid_over(assistant.config, given.get("config") or {}, {"configurable": dict(told)} if told else {})
        own, context = assistant.context, self.context
        if isinstance(own, dict) and isinstance(context, dict):
            context = laid_over(cast("dict[str, Any]", own), cast("dict[str, Any]", context))
        return RunRequest(
            graph=assistant.graph,
            assistant_id=assistant.assistant_id,
            input=None if command is not None else self.input,
            command=command,
            config=config,
            context=context if context is not None else (own or None),
            checkpoint=checkpoint if forks else None,
            interrupt_before=self.interrupt_before,
            interrupt_after=self.interrupt_after,
            stream_mode=self.stream_mode,
            stream_subgraphs=self.stream_subgraphs,
            metadata=self.metadata or {},
            strategy=self.multitask_strategy,
            delay_s=self.after_seconds or 0.0,
            webhook=self.webhook,
            delete_thread=stateless and self.on_completion == "delete",
            kwargs={**given, "stream_mode": self.stream_mode, "config": config, "context": context},
        )


class BatchedRun(RunCreate):
    """A run of several; the JavaScript client names its fields both by its own names and by the interface's."""

    @model_validator(mode="before")
    @classmethod
    def _named_alike(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        named = cast("dict[str, Any]", given)
        return {_INNER_CAPITAL.sub(r"_\1", name).lower(): value for name, value in named.items()}
