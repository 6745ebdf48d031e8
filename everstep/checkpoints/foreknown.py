"""What a saver knows of its thread without looking: that nothing is in it yet, or what was read a moment ago."""

from __future__ import annotations

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple

from everstep.checkpoints.recorder import Place, place_of

INPUT, START = "__input__", "__start__"
"""What LangGraph calls that which comes before a graph's own nodes."""


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

    def take(self, config: RunnableConfig) -> tuple[bool, CheckpointTuple | None]:
        """Whether it is known what is read there, and what that is."""
        if self.is_empty(config):
            return True, None
        ahead, self._ahead = self._ahead, None
        return (False, None) if ahead is None or ahead[0] != _where(config) else (True, ahead[1])


def _where(config: RunnableConfig) -> tuple[Place, str | None]:
    return place_of(config), config.get("configurable", {}).get("checkpoint_id")
