"""What may be the name of an owner: whose jobs, threads, signals and credit something is."""

from __future__ import annotations

from typing import Final

from everstep.errors import PayloadInvalid

LONGEST: Final = 200
"""Most characters of an owner's name."""


def problem_of(owner: str) -> str | None:
    """What is wrong with an owner's name; None: nothing.

    Args:
        owner: The name.
    """
    if not owner.strip():
        return "is empty"
    if len(owner) > LONGEST:
        return f"has {len(owner)} characters; {LONGEST} are the most"
    return None if owner.isprintable() else "holds characters that cannot be printed"


def require_owner(owner: str) -> str:
    """The name, if it can be an owner's.

    Raises:
        PayloadInvalid: It is empty, too long, or not printable.
    """
    if (problem := problem_of(owner)) is not None:
        raise PayloadInvalid(f"the owner {owner[:LONGEST]!r} {problem}", next_step="give one such as default, or ann")
    return owner
