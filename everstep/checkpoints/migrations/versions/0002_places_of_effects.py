"""Where in the graph an effect was called, so that a run that takes another way is seen."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and the indexes it is looked up by."""
    op.add_column("effects", sa.Column("place", sa.Text(), nullable=True))
    op.create_index("idx_effects_place", "effects", ["job_id", "place"])
    op.create_index("idx_effects_arguments", "effects", ["job_id", "arguments_digest"])
