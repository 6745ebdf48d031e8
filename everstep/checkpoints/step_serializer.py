"""`StepSerializer`: LangGraph's serializer, and the forms that only a `StepSaver` stores and reads.

Their types begin with `everstep`. A stock saver does not know them: it refuses such a value instead of taking a list
for empty.
"""

from __future__ import annotations

import zlib
from typing import Any, cast

import ormsgpack
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from everstep.checkpoints import compression
from everstep.checkpoints.history import Grown
from everstep.checkpoints.lean import full, lean
from everstep.checkpoints.task_writes import CHUNK, PART, PARTS, TOGETHER, Part, Together, chunk_value, parts_of

LIST = "everstep-list"
STEP, CHECKPOINT, PACKED = "everstep-s", "everstep-checkpoint", "everstep-checkpoint-zlib"
"""A checkpoint with `Grown` lists; one that is large, or unlike LangGraph's own; one as it was packed formerly."""


class StepSerializer(JsonPlusSerializer):
    """LangGraph's serializer, which also knows checkpoints with lists that are stored elsewhere, and their parts."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """As the stock serializer; `Grown`, and a checkpoint with such values, as types of their own."""
        if type(obj) is Grown:
            return LIST, ormsgpack.packb([obj.lines, obj.items])
        if type(obj) is dict and type(values := cast("dict[str, Any]", obj).get("channel_values")) is dict:
            values = cast("dict[str, Any]", values)
            lists = {name: [value.lines, value.items] for name, value in values.items() if type(value) is Grown}
            if lists:
                return self._checkpoint({**obj, "channel_values": {**values, **dict.fromkeys(lists)}}, lists)
        return super().dumps_typed(obj)

    def _checkpoint(self, checkpoint: dict[str, Any], lists: dict[str, Any]) -> tuple[str, bytes]:
        short = lean(checkpoint)
        if short is not None:
            _, data = super().dumps_typed([short, lists])
            if len(data) <= compression.MOST:
                return STEP, compression.deflated(data, compression.CHECKPOINTS)
        return CHECKPOINT, super().dumps_typed([checkpoint, lists])[1]

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """The reverse; of what a task wrote, where it has to be looked for (`task_writes`)."""
        kind, content = data
        if not kind.startswith("everstep"):
            return super().loads_typed(data)
        if kind == LIST:
            return _grown(ormsgpack.unpackb(content))
        if kind == CHUNK:
            return super().loads_typed(chunk_value(kind, content))
        if kind == PART:
            return Part(*ormsgpack.unpackb(content))
        if kind in (TOGETHER, PARTS):
            return Together(parts_of(content))
        if kind == STEP:
            content = compression.inflated(content, compression.CHECKPOINTS)
        elif kind == PACKED:
            content = zlib.decompress(content)
        elif kind != CHECKPOINT:
            return super().loads_typed(data)
        checkpoint, lists = super().loads_typed(("msgpack", content))
        checkpoint["channel_values"].update({name: _grown(given) for name, given in lists.items()})
        return full(checkpoint) if kind == STEP else checkpoint


def _grown(given: Any) -> Grown:
    lines, items = given
    return Grown(tuple((line, count) for line, count in lines), items)
