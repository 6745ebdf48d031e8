"""A trigger's filter and mapping, applied to an event: values at places of it, compared or put together; no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from everstep.errors import EventInvalid
from everstep.graphs.event_sections import Condition, Trigger
from everstep.nodes.providers.templates import MISSING, NothingThere, at, filled


def wants(trigger: Trigger, document: Mapping[str, Any]) -> bool:
    """Whether all conditions of a trigger's filter hold."""
    return all(holds(condition, document) for condition in trigger.filter)


def holds(condition: Condition, document: Mapping[str, Any]) -> bool:
    """Whether a condition holds. Values are equal if they are the same JSON: `1` is `1.0`, and neither is `true`."""
    found = _at(document, condition.path)
    if condition.exists is not None:
        return (found is not MISSING) == condition.exists
    if found is MISSING:
        return False
    asked = [condition.equals] if condition.one_of is None else condition.one_of
    return any(_same(found, one) for one in asked)


def input_of(trigger: Trigger, document: Mapping[str, Any]) -> Any:
    """The job's input.

    Raises:
        EventInvalid: The event has nothing at a place the mapping names, which has no default.
    """
    try:
        return filled(trigger.input, lambda pointer: _at(document, pointer))
    except NothingThere as nothing:
        raise _nothing_at(str(nothing)) from None


def key_of(trigger: Trigger, document: Mapping[str, Any]) -> str:
    """What of the event tells the job from others of the trigger.

    Raises:
        EventInvalid: The event has nothing at a place the key names.
    """
    pointers = trigger.keys()
    if not pointers:
        return str(document["event"]["key"])
    values = [_required(document, pointer) for pointer in pointers]
    texts = [value if isinstance(value, str) else json.dumps(value, sort_keys=True) for value in values]
    return texts[0] if len(texts) == 1 else json.dumps(texts, ensure_ascii=False)


def _required(document: Mapping[str, Any], pointer: str) -> Any:
    found = _at(document, pointer)
    if found is MISSING:
        raise _nothing_at(pointer)
    return found


def _nothing_at(pointer: str) -> EventInvalid:
    return EventInvalid(
        f"the event has nothing at {pointer}",
        next_step="mend the mapping in everstep.toml, or give it a default; then: everstep triggers replay EVENT",
        path=pointer,
    )


def _at(document: Mapping[str, Any], pointer: str) -> Any:
    return at(document, _header_in_small_letters(pointer))


def _header_in_small_letters(pointer: str) -> str:
    return pointer.lower() if pointer.lower().startswith("/headers/") else pointer


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        left, right = cast(dict[str, Any], one), cast(dict[str, Any], other)
        return left.keys() == right.keys() and all(_same(left[name], right[name]) for name in left)
    if isinstance(one, list) and isinstance(other, list):
        first, second = cast(list[Any], one), cast(list[Any], other)
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(one == other)
