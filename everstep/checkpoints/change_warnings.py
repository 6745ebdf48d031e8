"""`ChangeWarnings`: says once for each channel what of its values would come back changed after a crash."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from everstep.checkpoints import history, serialization

logger = logging.getLogger("everstep.state")

NEXT_NODE = "branch:to:"
"""How the names of channels begin that LangGraph routes with."""


def is_routing(channel: str) -> bool:
    """Whether LangGraph routes with a channel."""
    return channel.startswith(NEXT_NODE)


class ChangeWarnings:
    """Looks at what the nodes write, and of each checkpoint at the channels that no earlier one had.

    So the effort grows with what is written, not with the state.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._warned: set[str] = set()

    def known(self, channels: Iterable[str]) -> None:
        """The values of these were read from the record: they are what comes back."""
        self._seen.update(channels)

    def look_at_first(self, serializer: SerializerProtocol, values: Mapping[str, Any]) -> None:
        """Look at the values of channels that no earlier call had."""
        first = {name: value for name, value in values.items() if name not in self._seen}
        self._seen.update(first)
        self.look_at(serializer, first.items())

    def look_at(self, serializer: SerializerProtocol, values: Iterable[tuple[str, Any]]) -> None:
        """Look at values, each with its channel."""
        for name, value in values:
            if name in self._warned or name.startswith((NEXT_NODE, "__")) or history.is_exact(value):
                continue
            try:
                changed = serialization.changes(serializer, name, value)
            except Exception:  # the write itself reports what cannot be stored
                continue
            for line in changed:
                self._warned.add(name)
                logger.warning("state is not stored exactly: %s", line)
