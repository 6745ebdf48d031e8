"""What a saver knows of its thread without looking: that nothing is in it yet, or what was read a moment ago."""

from __future__ import annotations

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from everstep.checkpoints.recorder import Place, place_of

INPUT, START = "__input__", "__start__"
"""What LangGraph calls that which comes before a graph's own nodes."""


_GOES_ON = ("branch:", "join:", "__")
"""How the names of the channels begin by which LangGraph starts nodes."""


def as_read(
    serializer: SerializerProtocol, saved: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
) -> CheckpointTuple | None:
    """What is read of a checkpoint once it is stored, for whoever looks what a run came to; None unless it ends one."""
    if place_of(saved)[1] or any(name.startswith(_GOES_ON) for name in checkpoint["channel_values"]):
        return None
    stored = serializer.loads_typed(serializer.dumps_typed(checkpoint))
    return CheckpointTuple(saved, stored, {**metadata}, None, [])


class Foreknown:
    """For the saver of one leg, to which alone the thread belongs meanwhile."""

    def __init__(self) -> None:
        self._empty: str | None = None
        self._begun: str | None = None
        self._before: frozenset[str] = frozenset()
        self._ahead: tuple[tuple[Place, str | None], CheckpointTuple | None] | None = None

    def begin_empty(self, thread_id: str, *, routed: bool) -> None:
        """The thread has no checkpoint yet; see `StepSaver.begin_empty`."""
        self._empty = self._begun = thread_id
        self._before = frozenset({INPUT} if routed else {INPUT, START})

    def is_beginning(self, config: RunnableConfig, checkpoint: Checkpoint) -> bool:
        """Whether a checkpoint of the thread that was empty is from before any of its graph's own code ran."""
        return place_of(config) == (self._begun, "") and self._before.issuperset(checkpoint["versions_seen"])

    def is_empty(self, config: RunnableConfig) -> bool:
        """Whether nothing is stored there for certain."""
        return self._empty is not None and place_of(config)[0] == self._empty

    def written(self) -> None:
        """Something is on its way into the thread: nothing is known of it any more."""
        self._empty = self._ahead = None

    def keep(self, config: RunnableConfig, found: CheckpointTuple | None) -> None:
        """What was read ahead; it is given once."""
        self._ahead = _where(config), found

    def keep_newest(self, found: CheckpointTuple | None) -> None:
        """What was written last, as it is read, if that is known."""
        self._ahead = None if found is None else ((place_of(found.config), None), found)

    def knows(self, config: RunnableConfig) -> bool:
        """Whether `take` gives something."""
        return self.is_empty(config) or (self._ahead is not None and self._ahead[0] == _where(config))

    def take(self, config: RunnableConfig) -> tuple[bool, CheckpointTuple | None]:
        """Whether it is known what is read there, and what that is."""
        if self.is_empty(config):
            return True, None
        ahead, self._ahead = self._ahead, None
        return (False, None) if ahead is None or ahead[0] != _where(config) else (True, ahead[1])


def _where(config: RunnableConfig) -> tuple[Place, str | None]:
    return place_of(config), config.get("configurable", {}).get("checkpoint_id")
