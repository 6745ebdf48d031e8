"""Objects of JSON in which no name comes twice: RFC 8259 leaves open what such an object means, and readers differ."""

from __future__ import annotations

from typing import Any


class DuplicateName(ValueError):
    """A name comes twice in one object.

    Args:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} comes twice in one object")
        self.name = name


def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these members; as `object_pairs_hook` of `json.loads`.

    Raises:
        DuplicateName: Two of them have one name.
    """
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    names = [name for name, _ in pairs]
    raise DuplicateName(next(name for at, name in enumerate(names) if name in names[:at]))
