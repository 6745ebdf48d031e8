"""What the thread protocol's clients send: commands with their parameters, and which events they want."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from everstep.server.langgraph.protocol.translation import ProtocolEvent
from everstep.server.langgraph.run_requests import ConfigBody

MOST_NAMESPACES = 1000
Name = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
Namespace = Annotated[list[Name], Field(max_length=100)]
Namespaces = Annotated[list[Namespace], Field(max_length=MOST_NAMESPACES)]
Channel = Annotated[
    str,
    StringConstraints(
        pattern=r"^(values|updates|messages|tools|lifecycle|input|checkpoints|tasks|custom(:[^\x00]+)?)$",
        max_length=1000,
    ),
]
Limit = Annotated[int, Field(ge=1, le=1000)]


class Params(BaseModel):
    """Parameters; one that is not known is refused by its name."""

    model_config = ConfigDict(extra="forbid")


class Command(BaseModel):
    """A command; its parameters are checked by its method."""

    model_config = ConfigDict(extra="forbid")

    id: int = Field(ge=0)
    method: str = Field(max_length=100)
    params: dict[str, Any] = Field(default_factory=dict)


class RunStart(Params):
    """`run.start`: run an assistant on the thread, or answer what the thread waits for."""

    assistant_id: str
    input: Any = None
    config: ConfigBody | None = None
    metadata: dict[str, Any] | None = None
    multitask_strategy: Literal["enqueue", "reject", "interrupt", "rollback"] = Field(
        "enqueue", alias="multitaskStrategy"
    )
    langsmith_tracer: dict[str, Any] | None = None


class Answer(Params):
    """An answer to one question."""

    interrupt_id: str
    response: Any
    namespace: Namespace = []


class InputRespond(Params):
    """`input.respond`: answer one question, or several at once."""

    interrupt_id: str | None = None
    response: Any = None
    namespace: Namespace = []
    responses: Annotated[list[Answer], Field(min_length=1, max_length=1000)] | None = None
    update: dict[str, Any] | list[tuple[str, Any]] | None = None
    goto: Any = None
    config: ConfigBody | None = None
    metadata: dict[str, Any] | None = None


class StateGet(Params):
    """`state.get`: the state of the thread, or of a graph below it."""

    namespace: Namespace = []
    keys: list[str] | None = None


class ListCheckpoints(Params):
    """`state.listCheckpoints`: the thread's history, newest first."""

    namespace: Namespace = []
    limit: Limit = 10
    before: str | None = None


class StateFork(Params):
    """`state.fork`: go on from an earlier checkpoint."""

    checkpoint_id: str
    input: Any = None
    config: ConfigBody | None = None


class GetTree(Params):
    """`agent.getTree`: a run's graph and those below it; without an id the newest run's."""

    run_id: str | None = None


class Reconnect(Params):
    """`subscription.reconnect`: what was missed since an event."""

    run_id: str
    last_event_id: str | None = None
    subscriptions: list[str] | None = None


class Unsubscribe(Params):
    """`subscription.unsubscribe`."""

    subscription_id: str


class Wanted(Params):
    """Which events are wanted: by channel, and by the graphs they come from.

    Attributes:
        channels: What they tell of; `custom:NAME` for custom events of that name.
        namespaces: Where they come from: graphs that begin so. A part without a `:` fits any task of its node.
        depth: How far below those graphs, at most.
    """

    channels: Annotated[list[Channel], Field(min_length=1, max_length=1000)]
    namespaces: Namespaces | None = None
    depth: Annotated[int, Field(ge=0)] | None = None

    def takes(self, event: ProtocolEvent) -> bool:
        """Whether an event is wanted."""
        channel = event.channel
        if channel not in self.channels and not (channel.startswith("custom:") and "custom" in self.channels):
            return False
        if not self.namespaces:
            return True
        return any(
            _begins(event.namespace, prefix)
            and (self.depth is None or len(event.namespace) - len(prefix) <= self.depth)
            for prefix in self.namespaces
        )


class EventsWanted(Wanted):
    """Which events are streamed.

    Attributes:
        since: The number (`seq`) of the last event that was seen; 0 for all that are kept. Without it the stream begins
            with what is under way, or else with the last run.
    """

    since: Annotated[int, Field(ge=0, lt=2**62)] | None = None


def _begins(namespace: tuple[str, ...], prefix: list[str]) -> bool:
    return len(prefix) <= len(namespace) and all(
        part == wanted or (":" not in wanted and part.partition(":")[0] == wanted)
        for part, wanted in zip(namespace, prefix, strict=False)
    )
