"""What a job may use and must pass, which services it needs, and what is left of one that was pruned."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

LEVEL_MS = 600_000
KINDS = "kind IN ('interrupt', 'breakpoint', 'effect', 'error', 'fingerprint', 'policy', 'budget')"


def upgrade() -> None:
    """Add the columns and tables, and two kinds of reviews."""
    for name in ("concurrency_key", "budget_json", "acceptance_json", "next_input_json"):
        op.add_column("agent_jobs", sa.Column(name, sa.String() if name == "concurrency_key" else sa.Text()))
    for name in ("due_rank", "run_ms", "cost_micros"):
        op.add_column("agent_jobs", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    for name in ("returns", "worker_deaths", "suspect"):
        op.add_column("agent_jobs", sa.Column(name, sa.Integer(), nullable=False, server_default="0"))
    op.add_column("agent_jobs", sa.Column("parent_id", sa.Integer()))
    op.add_column("agent_jobs", sa.Column("announced_at", sa.BigInteger()))
    op.execute(f"UPDATE agent_jobs SET due_rank = next_run_at - priority * {LEVEL_MS}")
    op.execute("UPDATE agent_jobs SET announced_at = updated_at WHERE status = 'failed'")  # old news
    op.create_index("idx_agent_jobs_rank", "agent_jobs", ["status", "due_rank"])
    op.create_index("idx_agent_jobs_parent", "agent_jobs", ["parent_id"])
    op.create_index("idx_agent_jobs_listed", "agent_jobs", ["status", "id"])
    keyed = sa.text("concurrency_key IS NOT NULL")
    op.create_index("idx_agent_jobs_keyed", "agent_jobs", ["status"], sqlite_where=keyed, postgresql_where=keyed)
    with op.batch_alter_table("reviews", table_kwargs={"sqlite_autoincrement": True}) as reviews:
        reviews.drop_constraint("ck_reviews_kind", type_="check")
        reviews.create_check_constraint("ck_reviews_kind", KINDS)
    _services()
    op.create_table(
        "tombstones",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=False),
        sa.Column("public_id", sa.String(), nullable=False),
        sa.Column("graph", sa.String(), nullable=False),
        sa.Column("payload_digest", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("result_digest", sa.String(), nullable=True),
        sa.Column("pruned_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_tombstones_expires_at", "tombstones", ["expires_at"])


def _services() -> None:
    op.create_table(
        "services",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("gate", sa.String(), nullable=False),
        sa.Column("symptom", sa.String(), nullable=True),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.Column("opens_at", sa.BigInteger(), nullable=True),
        sa.Column("outages", sa.Integer(), server_default="0", nullable=False),
        sa.Column("trial_job_id", sa.Integer(), nullable=True),
        sa.Column("trial_claim_no", sa.Integer(), nullable=True),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("gate IN ('open', 'closed')", name="ck_services_gate"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "job_services",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("service", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["agent_jobs.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "service", name="uq_job_services"),
        sqlite_autoincrement=True,
    )
    op.create_index("idx_job_services_service", "job_services", ["service"])
    op.create_table(
        "upstream_events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("service", sa.String(), nullable=False),
        sa.Column("symptom", sa.String(), nullable=False),
        sa.Column("check_time", sa.BigInteger(), nullable=False),
        sa.Column("account_tier_expected", sa.String(), nullable=True),
        sa.Column("job_id", sa.Integer(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_upstream_events_service", "upstream_events", ["service"])
