"""Deflated checkpoints told by their differences, spans as JSON: no table changes, but what older versions can read.

The revision itself is what matters: a process of a version before refuses the record, instead of misreading its rows.
"""

from __future__ import annotations

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing: rows of older versions are read as they are."""
