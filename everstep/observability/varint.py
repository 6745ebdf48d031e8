"""Protobuf's way to write a length: seven bits a byte, the lowest first."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """The number, not negative, as protobuf writes it."""
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])
