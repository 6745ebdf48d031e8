"""Texts in requests that a record can hold: a NUL or half a character cannot be stored in every database."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator


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
