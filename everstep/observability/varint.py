"""Protobuf's way to write a length: seven bits a byte, the lowest first."""

from __future__ import annotations

from typing import Final


def _digits(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


_SMALL: Final = tuple(_digits(number) for number in range(4_096))


def varint(number: int) -> bytes:
    """The number, not negative, as protobuf writes it."""
    return _SMALL[number] if number < 4_096 else _digits(number)
