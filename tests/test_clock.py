"""Ids that tell their time."""

from __future__ import annotations

import random
from uuid import RFC_4122, UUID

from everstep.clock import uuid7


def test_an_id_is_a_uuid_of_version_7_that_tells_its_time() -> None:
    """RFC 9562, section 5.7: 48 bits of milliseconds, the version, the variant; the rest is drawn."""
    now = 0x017F22E279B0  # the time of the standard's own example
    for seed in range(64):
        text = uuid7(now, random.Random(seed))
        known = UUID(text)
        assert (str(known), known.version, known.variant) == (text, 7, RFC_4122)
        assert known.int >> 80 == now
    assert len({uuid7(now) for _ in range(64)}) == 64
    assert uuid7(now) < uuid7(now + 1)
