"""What is wrong with an entry of a file that people write, in plain words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

_SAID = {
    "missing": "it is missing",
    "extra_forbidden": "there is no such field",
    "string_type": "it is no text",
    "bool_type": "it is neither true nor false",
    "int_type": "it is no whole number",
    "int_from_float": "it is no whole number",
    "float_type": "it is no number",
    "finite_number": "it is no finite number",
    "list_type": "it is no list",
    "dict_type": "it is no table",
    "model_type": "it is no table",
    "model_attributes_type": "it is no table",
    "literal_error": "it may be {expected}",
    "union_tag_not_found": "it has to say {discriminator}",
    "union_tag_invalid": "{discriminator} may be {expected_tags}",
    "greater_than": "it has to be more than {gt}",
    "greater_than_equal": "it has to be {ge} or more",
    "less_than": "it has to be less than {lt}",
    "less_than_equal": "it has to be {le} or less",
    "string_too_short": "it has to have {min_length} characters or more",
    "string_too_long": "it has more than {max_length} characters",
    "too_short": "it has to have {min_length} entries or more",
    "too_long": "it has more than {max_length} entries",
    "string_pattern_mismatch": "it is not spelled as {pattern}",
    "timezone_aware": "it has no time zone, such as Z or +01:00",
}


def told(mistake: Mapping[str, Any]) -> str:
    """What is wrong, in plain words.

    Args:
        mistake: One of `ValidationError.errors()`.
    """
    kind: str = mistake["type"]
    context: dict[str, Any] = mistake.get("ctx") or {}
    if kind in ("string_too_short", "too_short") and context.get("min_length") == 1:
        return "it is empty"
    if kind in _SAID:
        return _SAID[kind].format(**context)
    return str(mistake["msg"]).removeprefix("Value error, ")


def first_of(error: ValidationError) -> tuple[str, str]:
    """The place and the words of the first mistake; the place of the whole file is empty."""
    first = error.errors()[0]
    return ".".join(str(part) for part in first["loc"] if part != "[key]"), told(first)


def spelled(pattern: str, words: str) -> Callable[[str], str]:
    """A check that a text has a form.

    Args:
        pattern: The form, a regular expression for all of the text.
        words: What the form is, such as "a name is small letters".
    """
    form = re.compile(pattern)

    def check(given: str) -> str:
        if form.fullmatch(given) is None:
            raise ValueError(words)
        return given

    return check


def unreadable(error: Exception) -> str:
    """Why a file cannot be read, in plain words."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, IsADirectoryError):
        return "it is a folder, and should be a file"
    if isinstance(error, UnicodeDecodeError):
        return "it is no UTF-8 text"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
