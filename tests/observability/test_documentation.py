"""The documentation of traces names only what exists, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

from everstep.observability import names

TRACING = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text(encoding="utf-8")


def test_every_attribute_in_the_documentation_is_one_we_export():
    """Each attribute key in docs/tracing.md is in the one module of names."""
    told = set(re.findall(r"`((?:everstep|gen_ai|langfuse|session)\.[a-z_.]+)`", TRACING))
    exported = {value for value in vars(names).values() if isinstance(value, str)}
    assert len(told) > 15
    assert told <= exported
