"""A checkpoint without what it repeats: its id as bytes, its time as a number, the versions of its channels as numbers.

Text does all three in LangGraph. Of a checkpoint without its values that is two thirds of what deflate cannot shorten.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS = 32
_SMALL = "0" * 16
"""How a version begins that is a number of 64 bits."""


def lean(checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same in fewer words; None if not all of it would come back as it is."""
    try:
        short: dict[str, Any] = {
            **checkpoint,
            "id": _bytes_of(checkpoint["id"]),
            "ts": _microseconds_of(checkpoint["ts"]),
            "channel_versions": _numbers(checkpoint["channel_versions"]),
            "versions_seen": {node: _numbers(seen) for node, seen in checkpoint["versions_seen"].items()},
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return short


def full(short: dict[str, Any]) -> dict[str, Any]:
    """The reverse."""
    return {
        **short,
        "id": _id_of(short["id"]),
        "ts": _time_of(short["ts"]),
        "channel_versions": _versions(short["channel_versions"]),
        "versions_seen": {node: _versions(seen) for node, seen in short["versions_seen"].items()},
    }


def _bytes_of(name: str) -> bytes:
    found = bytes.fromhex(name.replace("-", ""))
    if _id_of(found) != name:
        raise ValueError(name)
    return found


def _id_of(given: bytes) -> str:
    text = given.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _microseconds_of(text: str) -> int:
    number = (datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1)
    if _time_of(number) != text:
        raise ValueError(text)
    return number


def _time_of(number: int) -> str:
    return (_EPOCH + timedelta(microseconds=number)).isoformat()


def _numbers(versions: Mapping[str, str]) -> dict[str, str | int]:
    return {name: _number(version) for name, version in versions.items()}


def _number(version: str) -> str | int:
    if type(version) is not str:
        raise TypeError(version)
    small = len(version) == _DIGITS and version.startswith(_SMALL) and version.isascii() and version.isdigit()
    return int(version) if small else version


def _versions(numbers: Mapping[str, str | int]) -> dict[str, str]:
    return {name: number if isinstance(number, str) else f"{number:0{_DIGITS}}" for name, number in numbers.items()}
