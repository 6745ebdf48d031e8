"""The canonical form of an effect's arguments, and the key made of it.

The key is what makes a replayed call the same call: job key, effect name, arguments, the LangGraph task that makes the
call (it has the same id in every replay from one checkpoint), and how often this task made this very call before.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from datetime import date, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, cast
from uuid import UUID

from langchain_core.messages import BaseMessage
from langgraph.config import get_config

from everstep.checkpoints import payload
from everstep.checkpoints.jobs import loose_digest
from everstep.checkpoints.saver import StepSaver
from everstep.errors import EffectInvalid

PREVIEW_BYTES = 4096
_INJECTED = frozenset({"config", "runtime", "run_manager", "callbacks", "store", "writer", "previous"})
_RUN_CONFIG = frozenset({"configurable", "callbacks", "metadata", "recursion_limit", "run_id"})


def bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by parameter name, defaults included, without what LangGraph or Everstep injects.

    What has the name of something injected but is plain data (a `config` of the user's own, the name of a `store`) is
    an argument like any other.
    """
    call = inspect.signature(function).bind(*args, **kwargs)
    call.apply_defaults()
    return {name: value for name, value in call.arguments.items() if not _is_injected(name, value)}


def _is_injected(name: str, value: Any) -> bool:
    if name in ("self", "idempotency_key"):
        return True
    if name not in _INJECTED:
        return False
    if isinstance(value, Mapping):
        return not _RUN_CONFIG.isdisjoint(cast("Mapping[Any, Any]", value))
    return not isinstance(value, (str, int, float, list, tuple, type(None)))


def canonical(effect_name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as JSON data that is the same in every replay.

    Raises:
        EffectInvalid: An argument has no such form.
    """
    return {name: _plain(value, name, effect_name) for name, value in arguments.items()}


def _plain(value: Any, path: str, effect_name: str) -> Any:
    if value is None or (isinstance(value, (str, bool, int, float)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, path, effect_name)
    if isinstance(value, (PurePath, UUID, Decimal)):
        return str(value)
    if isinstance(value, (date, time)):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, BaseMessage):
        return {"type": value.type, "content": _plain(value.content, path, effect_name), "id": value.id}
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {_key(key, path, effect_name): _plain(item, f"{path}.{key}", effect_name) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{i}]", effect_name) for i, item in enumerate(cast("list[Any]", value))]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item, path, effect_name) for item in cast("set[Any]", value)), key=repr)
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(mode="json"), path, effect_name)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: _plain(getattr(value, field.name), f"{path}.{field.name}", effect_name) for field in fields}
    raise EffectInvalid(
        f"effect {effect_name}: the argument {path} is a {type(value).__qualname__},"
        " which is not the same in every replay",
        next_step="pass plain data, or give the effect a key: @effect(name, key=lambda …: …)",
        effect=effect_name,
    )


def _key(key: Any, path: str, effect_name: str) -> str:
    """A key of a mapping as text; 1 and "1" are two keys."""
    if isinstance(key, str):
        return key
    return f"{_plain(key, f'{path} (a key of it)', effect_name)!r} ({type(key).__qualname__})"


def preview(arguments: Mapping[str, Any]) -> str:
    """What a person may see of the arguments: JSON, bounded, without what looks like a credential."""
    text = json.dumps(without_credentials(arguments))
    if len(text) > PREVIEW_BYTES:
        return json.dumps({"shortened": text[:PREVIEW_BYTES], "length": len(text)})
    return text


def without_credentials(value: Any) -> Any:
    """Canonical arguments, or a part of them, with what looks like a credential blacked out."""
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        named = payload.names_secret
        return {key: payload.REDACTED if named(key) else without_credentials(item) for key, item in items}
    if isinstance(value, list):
        return [without_credentials(item) for item in cast("list[Any]", value)]
    if isinstance(value, str) and payload.holds_secret(value):
        return payload.REDACTED
    return value


def subgraph_run(place: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A place without what differs between runs of a subgraph in one task, and the numbers that tell these runs apart.

    LangGraph puts a number into the namespace when a task runs a subgraph again: because its node calls it twice, or
    because a `retry_policy` repeats the node.
    """
    first, *inner = place.split("|")
    names = tuple(part.partition(":")[0] for part in inner if not part.isdigit())
    return (first, *names), tuple(part for part in inner if part.isdigit())


@dataclasses.dataclass(frozen=True)
class Position:
    """Where in the graph a call is made.

    Attributes:
        place: The task's namespace; its id is part of it, and is the same in every replay from one checkpoint.
        body: LangGraph's scratchpad: an object of its own for each time the task is prepared.
        node_attempt: Which try at the node this is, where LangGraph retries it.
        stable: Whether `place` means the same after a crash; not in a graph that keeps its checkpoints elsewhere.
    """

    place: str = ""
    body: Any = None
    node_attempt: str = ""
    stable: bool = True


def position() -> Position:
    """Where in the graph the caller runs."""
    try:
        configurable = get_config().get("configurable", {})
    except RuntimeError:
        return Position()
    info = getattr(configurable.get("__pregel_runtime"), "execution_info", None)
    return Position(
        place=str(configurable.get("checkpoint_ns", "")),
        body=configurable.get("__pregel_scratchpad"),
        node_attempt=str(getattr(info, "node_attempt", 1)),
        stable=isinstance(configurable.get("__pregel_checkpointer"), StepSaver),
    )


def effect_key(*parts: str | int) -> str:
    """The key of an effect: SHA-256, hexadecimal."""
    return loose_digest(list(parts))
