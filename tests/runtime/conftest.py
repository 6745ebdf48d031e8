"""What tests of workers share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the agent works."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"
