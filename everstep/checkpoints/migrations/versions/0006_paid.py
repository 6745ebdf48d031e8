"""Waiting and paying: signals, waits, provider tasks and their events, credit, used approvals, shared rates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "signals",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("public_id", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), server_default="default", nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("payload_json", sa.Text(), nullable=False),
        sa.Column("emitted_by", sa.String(), nullable=False),
        sa.Column("emitted_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("owner", "name", name="uq_signals"),
        sa.UniqueConstraint("public_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_signals_emitted_at", "signals", ["emitted_at"])
    op.create_table(
        "waits",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("signal", sa.String(), nullable=True),
        sa.Column("until_at", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.String(), server_default="open", nullable=False),
        sa.Column("value_json", sa.Text(), nullable=True),
        sa.Column("node", sa.String(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("decided_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('open', 'met', 'over')", name="ck_waits_state"),
        sa.ForeignKeyConstraint(["job_id"], ["agent_jobs.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "key", name="uq_waits"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "idx_waits_signal",
        "waits",
        ["signal", "owner"],
        sqlite_where=sa.text("state = 'open'"),
        postgresql_where=sa.text("state = 'open'"),
    )
    op.create_table(
        "provider_tasks",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("public_id", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("submission_key", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("provider_key", sa.String(), nullable=False),
        sa.Column("provider_task_id", sa.String(), nullable=True),
        sa.Column("request_json", sa.Text(), nullable=False),
        sa.Column("request_digest", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("amount", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("currency", sa.String(), nullable=True),
        sa.Column("quote_json", sa.Text(), nullable=True),
        sa.Column("result_json", sa.Text(), nullable=True),
        sa.Column("result_digest", sa.String(), nullable=True),
        sa.Column("error_json", sa.Text(), nullable=True),
        sa.Column("progress", sa.Integer(), nullable=True),
        sa.Column("settled_by", sa.String(), nullable=True),
        sa.Column("next_poll_at", sa.BigInteger(), nullable=True),
        sa.Column("polls", sa.Integer(), server_default="0", nullable=False),
        sa.Column("poll_failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("poll_error", sa.Text(), nullable=True),
        sa.Column("leased_by", sa.String(), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("submitted_at", sa.BigInteger(), nullable=True),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "state IN ('created', 'submitting', 'submission_unknown', 'pending', 'succeeded', 'failed')",
            name="ck_provider_tasks_state",
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("owner", "submission_key", "generation", name="uq_provider_tasks_submission"),
        sa.UniqueConstraint("provider", "provider_task_id", name="uq_provider_tasks_provider"),
        sa.UniqueConstraint("provider_key"),
        sa.UniqueConstraint("public_id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "idx_provider_tasks_polled",
        "provider_tasks",
        ["provider", "next_poll_at"],
        sqlite_where=sa.text("next_poll_at IS NOT NULL"),
        postgresql_where=sa.text("next_poll_at IS NOT NULL"),
    )
    op.create_index("idx_provider_tasks_state", "provider_tasks", ["state", "id"])
    op.create_index("ix_provider_tasks_job", "provider_tasks", ["job"])
    op.create_table(
        "provider_events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("public_id", sa.String(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("provider_task_id", sa.String(), nullable=True),
        sa.Column("provider_key", sa.String(), nullable=True),
        sa.Column("task_id", sa.Integer(), nullable=True),
        sa.Column("status_json", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("occurred_at", sa.BigInteger(), nullable=True),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("handled_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('parked', 'applied', 'ignored')", name="ck_provider_events_state"),
        sa.ForeignKeyConstraint(["task_id"], ["provider_tasks.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("provider", "event_id", name="uq_provider_events"),
        sa.UniqueConstraint("public_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("idx_provider_events_key", "provider_events", ["provider_key"])
    op.create_index("idx_provider_events_state", "provider_events", ["state", "id"])
    op.create_index("idx_provider_events_task", "provider_events", ["provider", "provider_task_id"])
    op.create_index("ix_provider_events_task_id", "provider_events", ["task_id"])
    op.create_table(
        "credit_accounts",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("currency", sa.String(), nullable=False),
        sa.Column("balance", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("owner", "currency", name="uq_credit_accounts"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "ledger",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("public_id", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("currency", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("amount", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.Integer(), nullable=True),
        sa.Column("refund_of", sa.Integer(), nullable=True),
        sa.Column("key", sa.String(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("actor", sa.String(), nullable=False),
        sa.Column("detail_json", sa.Text(), nullable=True),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("(kind = 'refund') = (refund_of IS NOT NULL)", name="ck_ledger_refund"),
        sa.CheckConstraint(
            "(kind = 'charge' AND amount < 0) OR (kind <> 'charge' AND amount > 0)", name="ck_ledger_amount"
        ),
        sa.CheckConstraint("(kind = 'grant') = (task_id IS NULL)", name="ck_ledger_task"),
        sa.CheckConstraint("kind IN ('grant', 'charge', 'refund')", name="ck_ledger_kind"),
        sa.ForeignKeyConstraint(["refund_of"], ["ledger.id"]),
        sa.ForeignKeyConstraint(["task_id"], ["provider_tasks.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("owner", "key", name="uq_ledger_key"),
        sa.UniqueConstraint("public_id"),
        sa.UniqueConstraint("refund_of"),
        sqlite_autoincrement=True,
    )
    op.create_index("idx_ledger_owner", "ledger", ["owner", "id"])
    op.create_index("ix_ledger_task_id", "ledger", ["task_id"])
    op.create_index(
        "uq_ledger_charge",
        "ledger",
        ["task_id"],
        unique=True,
        sqlite_where=sa.text("kind = 'charge'"),
        postgresql_where=sa.text("kind = 'charge'"),
    )
    op.create_table(
        "approvals",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("review_id", sa.Integer(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("argument_digest", sa.String(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("effect_key", sa.String(), nullable=False),
        sa.Column("reserved_at", sa.BigInteger(), nullable=False),
        sa.Column("consumed_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('reserved', 'consumed')", name="ck_approvals_state"),
        sa.ForeignKeyConstraint(["job_id"], ["agent_jobs.id"]),
        sa.ForeignKeyConstraint(["review_id"], ["reviews.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("review_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_approvals_job_id", "approvals", ["job_id"])
    op.create_table(
        "rate_limits",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("free_at_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "text_parts",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("thread_id", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("thread_id", "digest", name="uq_text_parts"),
        sqlite_autoincrement=True,
    )
