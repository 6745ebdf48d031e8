"""Alembic's entry: runs the migrations on the connection that `database` holds the write lock with."""

from __future__ import annotations

from alembic import context

from everstep.checkpoints.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=False,
    render_as_batch=True,
)
context.run_migrations()
