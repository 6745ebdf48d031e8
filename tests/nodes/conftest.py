"""What tests of nodes share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def world() -> list[Any]:
    """What was done to the world outside, which no checkpoint can undo."""
    return []
