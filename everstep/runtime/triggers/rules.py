"""A trigger's filter and mapping, applied to an event: values at places of it, compared or put together; no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from everstep.errors import EventInvalid
from everstep.graphs.event_sections import Condition, Trigger, is_constant, is_place

MISSING: Any = object()


def at(document: Any, pointer: str) -> Any:
    """The value at a JSON Pointer (RFC 6901), or `MISSING`."""
    found = document
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            members = cast(dict[str, Any], found)
            if name not in members:
                return MISSING
            found = members[name]
        elif isinstance(found, list):
            items = cast(list[Any], found)
            if not name.isascii() or not name.isdigit() or (name[0] == "0" and name != "0") or int(name) >= len(items):
                return MISSING
            found = items[int(name)]
        else:
            return MISSING
    return found


def wants(trigger: Trigger, document: Mapping[str, Any]) -> bool:
    """Whether all conditions of a trigger's filter hold."""
    return all(holds(condition, document) for condition in trigger.filter)


def holds(condition: Condition, document: Mapping[str, Any]) -> bool:
    """Whether a condition holds. Values are equal if they are the same JSON: `1` is `1.0`, and neither is `true`."""
    found = at(document, _header_in_small_letters(condition.path))
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
    return _filled(trigger.input, document)


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


def _filled(mapping: Any, document: Mapping[str, Any]) -> Any:
    if isinstance(mapping, list):
        return [_filled(member, document) for member in cast(list[Any], mapping)]
    if not isinstance(mapping, dict):
        return mapping
    table = cast(dict[str, Any], mapping)
    if is_constant(table):
        return table["value"]
    if not is_place(table):
        return {name: _filled(member, document) for name, member in table.items()}
    if "default" in table:
        found = at(document, _header_in_small_letters(table["path"]))
        return table["default"] if found is MISSING else found
    return _required(document, table["path"])


def _required(document: Mapping[str, Any], pointer: str) -> Any:
    found = at(document, _header_in_small_letters(pointer))
    if found is MISSING:
        raise EventInvalid(
            f"the event has nothing at {pointer}",
            next_step="mend the mapping in everstep.toml, or give it a default; then: everstep triggers replay EVENT",
            path=pointer,
        )
    return found


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
