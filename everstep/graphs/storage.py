"""What `langgraph.json` says about what is kept: `checkpointer.ttl` for threads, `store` for the key-value store."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from everstep.checkpoints.thread import Ttl
from everstep.errors import ConfigInvalid

SWEEP_MINUTES, SWEEP_LIMIT = 5.0, 1000
MOST_MINUTES = 60 * 24 * 366 * 100
_THREAD_TTL = {"strategy", "default_ttl", "sweep_interval_minutes", "sweep_limit"}
_ITEM_TTL = {"refresh_on_read", "default_ttl", "sweep_interval_minutes"}
_INDEX = {"dims", "embed", "fields"}


@dataclass(frozen=True)
class ItemTtl:
    """How long items of the store are kept.

    Attributes:
        default_minutes: After they were written, unless they say otherwise; None: for ever.
        refresh_on_read: Whether a read begins that anew.
    """

    default_minutes: float | None = None
    refresh_on_read: bool = True


@dataclass(frozen=True)
class ItemIndex:
    """By what items of the store can be found by meaning.

    Attributes:
        dims: How many numbers an embedding has.
        embed: What makes them: `provider:model`, or `./file.py:variable`.
        fields: Which parts of an item are embedded.
    """

    dims: int
    embed: str
    fields: tuple[str, ...] = ("$",)


@dataclass(frozen=True)
class Storage:
    """What is kept, and for how long.

    Attributes:
        thread_ttl: How long threads are kept that do not say otherwise; None: for ever.
        item_ttl: How long items are.
        item_index: By what items are found by meaning; None: they are not.
        sweep_minutes: How often what is over is deleted.
        sweep_limit: How many threads at most each time.
    """

    thread_ttl: Ttl | None = None
    item_ttl: ItemTtl = field(default_factory=ItemTtl)
    item_index: ItemIndex | None = None
    sweep_minutes: float = SWEEP_MINUTES
    sweep_limit: int = SWEEP_LIMIT


def read_storage(content: Mapping[str, Any]) -> Storage:
    """What the file says.

    Args:
        content: All of `langgraph.json`.

    Raises:
        ConfigInvalid: An entry is not what the format allows.
    """
    threads = _part(_part(content, "checkpointer", None), "ttl", _THREAD_TTL, "checkpointer.")
    store = _part(content, "store", {"index", "ttl"})
    items = _part(store, "ttl", _ITEM_TTL, "store.")
    minutes = _number(threads, "default_ttl", "checkpointer.ttl.")
    strategy = threads.get("strategy", "delete")
    if strategy not in ("delete", "keep_latest"):
        raise _invalid(f"checkpointer.ttl.strategy is {strategy!r}", 'Write "delete" or "keep_latest".')
    sweeps = [
        _number(part, "sweep_interval_minutes", name)
        for part, name in ((threads, "checkpointer.ttl."), (items, "store.ttl."))
    ]
    limit = _number(threads, "sweep_limit", "checkpointer.ttl.")
    refresh = items.get("refresh_on_read", True)
    if not isinstance(refresh, bool):
        raise _invalid("store.ttl.refresh_on_read is no truth value", "Write true or false.")
    return Storage(
        thread_ttl=None if minutes is None else Ttl(minutes, strategy),
        item_ttl=ItemTtl(_number(items, "default_ttl", "store.ttl."), refresh),
        item_index=_index(store),
        sweep_minutes=min((each for each in sweeps if each is not None), default=SWEEP_MINUTES),
        sweep_limit=SWEEP_LIMIT if limit is None else max(int(limit), 1),
    )


def _index(store: Mapping[str, Any]) -> ItemIndex | None:
    if "index" not in store:
        return None
    index = _part(store, "index", _INDEX, "store.")
    dims, embed = index.get("dims"), index.get("embed")
    fields: Any = index.get("fields", ["$"])
    if not isinstance(dims, int) or isinstance(dims, bool) or dims < 1:
        raise _invalid("store.index.dims is no number of dimensions", 'Write "dims": 1536, or what your model gives.')
    if not isinstance(embed, str) or ":" not in embed:
        raise _invalid("store.index.embed names nothing that embeds", 'Write "provider:model" or "./file.py:function".')
    if not isinstance(fields, list) or not all(isinstance(one, str) for one in cast("list[Any]", fields)):
        raise _invalid("store.index.fields is no list of paths", 'Write "fields": ["$"].')
    return ItemIndex(dims, embed, tuple(cast("list[str]", fields)))


def _part(content: Mapping[str, Any], name: str, known: set[str] | None, prefix: str = "") -> Mapping[str, Any]:
    part: Any = content.get(name, {})
    if not isinstance(part, Mapping):
        raise _invalid(f"{prefix}{name} is no object", "Correct it there.")
    unknown = sorted(set(cast("Mapping[str, Any]", part)) - known) if known is not None else []
    if unknown:
        raise _invalid(f"{prefix}{name} has {unknown[0]!r}, which Everstep cannot honour", "Leave it out.")
    return cast("Mapping[str, Any]", part)


def _number(part: Mapping[str, Any], name: str, prefix: str) -> float | None:
    value = part.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_MINUTES:
        raise _invalid(f"{prefix}{name} is no number above 0", "Correct it there.")
    return float(value) if math.isfinite(value) else None


def _invalid(what: str, next_step: str) -> ConfigInvalid:
    return ConfigInvalid(f"langgraph.json: {what}.", next_step=next_step)
