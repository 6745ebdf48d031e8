"""Texts and times in requests that a record can hold.

A NUL or half a character cannot be stored in every database, and a time that is in no year of UTC cannot be shown.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime


def _storable(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half a character (a lone surrogate)") from None
    return text


Text = Annotated[str, AfterValidator(_storable)]
"""As the type of a field or parameter: a text that can be stored and looked for."""


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is in no year of UTC") from None


Instant = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""As the type of a field or parameter: a moment, by RFC 3339 with `Z` or an offset."""
