"""What a `DeltaChannel` is rebuilt from: LangGraph looks for what was written to it by the channel's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, DeltaChannelHistory

from everstep.checkpoints.history import Grown
from everstep.checkpoints.recorder import place_of
from everstep.checkpoints.task_writes import channels_of, whole
from everstep.checkpoints.thread_operations import ThreadOperations


class DeltaHistory(ThreadOperations):
    """See `StepSaver`, whose lists, and what tasks wrote, may not stand where LangGraph looks."""

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What a `DeltaChannel` is rebuilt from."""
        self._store.flush()
        place = place_of(config)
        if any(channel in channels for stored in self._stored_together(place) for channel in channels_of(stored)):
            # Another graph of this saver had such a channel as a plain one.
            found = BaseCheckpointSaver[str].get_delta_channel_history(self, config=config, channels=channels)
        else:
            found = super().get_delta_channel_history(config=config, channels=channels)
        for each in found.values():
            each["writes"] = whole(each["writes"], self.serde, partial(self._lists.chunk_of, place))
            seed = each.get("seed")
            if isinstance(seed, Grown):  # it was a plain list then
                each["seed"], _ = self._lists.read(self.serde, place, seed)
        return found

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `get_delta_channel_history`."""
        return await self._store.in_thread(lambda: self.get_delta_channel_history(config=config, channels=channels))
