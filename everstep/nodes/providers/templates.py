"""Values at places of JSON, and JSON put together from them: data, not code.

A place is a JSON Pointer (RFC 6901). In a template a table `{path = "/…"}` stands for what is there, or for its
`default`; `{value = …}` and all else stands for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

MISSING: Any = object()


class NothingThere(LookupError):
    """A place that a template names, and that has no default, is not there; its argument is the pointer."""


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


def is_pointer(text: str) -> bool:
    """Whether a text is a JSON Pointer; the empty one is all there is."""
    escapes = all("~" not in part.replace("~0", "").replace("~1", "") for part in text.split("/"))
    return escapes and (text == "" or text.startswith("/"))


def fits_header(text: str) -> bool:
    """Whether a text can stand in a header: printable ASCII, with no space around it."""
    return text.isascii() and text.isprintable() and text == text.strip()


def is_place(table: dict[str, Any]) -> bool:
    """Whether a table of a template names a place: `path`, and perhaps a `default`."""
    return isinstance(table.get("path"), str) and table.keys() <= {"path", "default"}


def is_constant(table: dict[str, Any]) -> bool:
    """Whether a table of a template stands for the value in it, whatever that looks like: `value` alone."""
    return table.keys() == {"value"}


def filled(template: Any, look: Callable[[str], Any]) -> Any:
    """The template with what is at its places.

    Args:
        template: JSON.
        look: What is at a pointer, or `MISSING`.

    Raises:
        NothingThere: A place without a default is not there.
    """
    if isinstance(template, list):
        return [filled(member, look) for member in cast(list[Any], template)]
    if not isinstance(template, dict):
        return template
    table = cast(dict[str, Any], template)
    if is_constant(table):
        return table["value"]
    if not is_place(table):
        return {name: filled(member, look) for name, member in table.items()}
    found = look(table["path"])
    if found is not MISSING:
        return found
    if "default" in table:
        return table["default"]
    raise NothingThere(table["path"])
