"""A number with the word for what is counted, for texts that people read."""

from __future__ import annotations


def counted(number: int, one: str, several: str = "") -> str:
    """`1 job`, `2 jobs`, `0 jobs`, `1,000 jobs`.

    Args:
        number: How many there are.
        one: The word for one of them.
        several: The word for more; the first with an s without it.
    """
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
