"""Several jobs on one thread, and what the server keeps: threads, runs, their events, schedules, triggers, keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Let jobs share a thread, and add the tables."""
    _share_threads()
    op.create_table(
        "threads",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("thread_id", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), server_default="default", nullable=False),
        sa.Column("graph", sa.String(), nullable=True),
        sa.Column("assistant_id", sa.String(), nullable=True),
        sa.Column("status", sa.String(), server_default="idle", nullable=False),
        sa.Column("metadata_json", sa.Text(), server_default="{}", nullable=False),
        sa.Column("config_json", sa.Text(), server_default="{}", nullable=False),
        sa.Column("values_json", sa.Text(), nullable=True),
        sa.Column("interrupts_json", sa.Text(), server_default="{}", nullable=False),
        sa.Column("error_json", sa.Text(), nullable=True),
        sa.Column("ttl_json", sa.Text(), nullable=True),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("state_updated_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("status IN ('idle', 'busy', 'interrupted', 'error')", name="ck_threads_status"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("thread_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("idx_threads_owner", "threads", ["owner", "status", "updated_at"])
    op.create_index("ix_threads_expires_at", "threads", ["expires_at"])
    op.create_table(
        "runs",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("thread_id", sa.String(), nullable=False),
        sa.Column("assistant_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("metadata_json", sa.Text(), server_default="{}", nullable=False),
        sa.Column("kwargs_json", sa.Text(), nullable=False),
        sa.Column("multitask_strategy", sa.String(), nullable=False),
        sa.Column("webhook", sa.Text(), nullable=True),
        sa.Column("delete_thread", sa.Integer(), server_default="0", nullable=False),
        sa.Column("rolled_back", sa.Integer(), server_default="0", nullable=False),
        sa.Column("values_json", sa.Text(), nullable=True),
        sa.Column("error_json", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "status IN ('pending', 'running', 'error', 'success', 'timeout', 'interrupted')", name="ck_runs_status"
        ),
        sa.ForeignKeyConstraint(["job_id"], ["agent_jobs.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("idx_runs_thread", "runs", ["thread_id", "id"])
    op.create_index("ix_runs_job_id", "runs", ["job_id"])
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("thread_id", sa.String(), nullable=False),
        sa.Column("claim_no", sa.Integer(), nullable=False),
        sa.Column("method", sa.String(), nullable=False),
        sa.Column("namespace", sa.String(), nullable=False),
        sa.Column("data_json", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["agent_jobs.id"]),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("idx_events_run", "events", ["run_id", "id"])
    op.create_index("idx_events_thread", "events", ["thread_id", "id"])
    op.create_index("ix_events_job_id", "events", ["job_id"])
    op.create_table(
        "stream_readers",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("reader", sa.String(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["agent_jobs.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run_id", "reader", name="uq_stream_readers"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_stream_readers_job_id", "stream_readers", ["job_id"])
    op.create_table(
        "assistants",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("assistant_id", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("is_latest", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(), server_default="default", nullable=False),
        sa.Column("graph", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("config_json", sa.Text(), server_default="{}", nullable=False),
        sa.Column("context_json", sa.Text(), server_default="{}", nullable=False),
        sa.Column("metadata_json", sa.Text(), server_default="{}", nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("assistant_id", "version", name="uq_assistants_version"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_assistants_graph", "assistants", ["graph"])
    op.create_table(
        "replies",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("route", sa.String(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=False),
        sa.Column("request_digest", sa.String(), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=False),
        sa.Column("headers_json", sa.Text(), server_default="{}", nullable=False),
        sa.Column("body_json", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("owner", "route", "idempotency_key", name="uq_replies"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_replies_expires_at", "replies", ["expires_at"])
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("public_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("body_json", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), server_default="pending", nullable=False),
        sa.Column("tries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_try_at", sa.BigInteger(), nullable=False),
        sa.Column("leased_by", sa.String(), nullable=True),
        sa.Column("lease_until", sa.BigInteger(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("delivered_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('pending', 'delivered', 'dead')", name="ck_deliveries_state"),
        sa.ForeignKeyConstraint(["job_id"], ["agent_jobs.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("public_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("idx_deliveries_due", "deliveries", ["state", "next_try_at"])
    op.create_index("ix_deliveries_job_id", "deliveries", ["job_id"])
    op.create_table(
        "trigger_events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("public_id", sa.String(), nullable=False),
        sa.Column("trigger", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("event_key", sa.String(), nullable=False),
        sa.Column("headers_json", sa.Text(), server_default="{}", nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), server_default="stored", nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=True),
        sa.Column("error_json", sa.Text(), nullable=True),
        sa.Column("occurred_at", sa.BigInteger(), nullable=True),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("handled_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('stored', 'started', 'filtered', 'failed')", name="ck_trigger_events_state"),
        sa.ForeignKeyConstraint(["job_id"], ["agent_jobs.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("public_id"),
        sa.UniqueConstraint("trigger", "event_key", name="uq_trigger_events"),
        sqlite_autoincrement=True,
    )
    op.create_index("idx_trigger_events_state", "trigger_events", ["state", "id"])
    op.create_index("ix_trigger_events_job_id", "trigger_events", ["job_id"])
    op.create_table(
        "schedules",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("public_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=True),
        sa.Column("origin", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), server_default="default", nullable=False),
        sa.Column("graph", sa.String(), nullable=False),
        sa.Column("assistant_id", sa.String(), nullable=True),
        sa.Column("thread_id", sa.String(), nullable=True),
        sa.Column("cron", sa.String(), nullable=False),
        sa.Column("timezone", sa.String(), server_default="UTC", nullable=False),
        sa.Column("input_json", sa.Text(), nullable=False),
        sa.Column("options_json", sa.Text(), server_default="{}", nullable=False),
        sa.Column("metadata_json", sa.Text(), server_default="{}", nullable=False),
        sa.Column("overlap", sa.String(), nullable=False),
        sa.Column("missed", sa.String(), nullable=False),
        sa.Column("jitter_s", sa.Integer(), server_default="0", nullable=False),
        sa.Column("enabled", sa.Integer(), server_default="1", nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=True),
        sa.Column("next_slot_at", sa.BigInteger(), nullable=True),
        sa.Column("next_fire_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("missed IN ('skip', 'latest', 'all')", name="ck_schedules_missed"),
        sa.CheckConstraint("overlap IN ('skip', 'queue', 'resume')", name="ck_schedules_overlap"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sa.UniqueConstraint("public_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_schedules_next_fire_at", "schedules", ["next_fire_at"])
    op.create_table(
        "schedule_slots",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("schedule_id", sa.Integer(), nullable=False),
        sa.Column("slot_at", sa.BigInteger(), nullable=False),
        sa.Column("fired_at", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["agent_jobs.id"]),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("schedule_id", "slot_at", name="uq_schedule_slots"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_schedule_slots_job_id", "schedule_slots", ["job_id"])
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("public_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("scopes_json", sa.Text(), nullable=False),
        sa.Column("key_hash", sa.String(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("public_id"),
        sa.UniqueConstraint("key_hash"),
        sqlite_autoincrement=True,
    )


def _share_threads() -> None:
    """A thread has one running job at most, and no longer one job.

    SQLite cannot drop a constraint: the table is made anew, for which foreign keys must not be enforced.
    """
    if op.get_bind().dialect.name == "postgresql":
        op.drop_constraint("agent_jobs_thread_id_key", "agent_jobs", type_="unique")
        op.add_column("agent_jobs", sa.Column("run_json", sa.Text()))
        op.add_column("agent_jobs", sa.Column("webhook", sa.Text()))
    else:
        statuses = "status IN ('pending', 'running', 'retry', 'review', 'done', 'failed')"
        with op.batch_alter_table(
            "agent_jobs",
            naming_convention={"uq": "uq_%(table_name)s_%(column_0_name)s"},
            table_args=(sa.CheckConstraint(statuses, name="ck_agent_jobs_status"),),
            table_kwargs={"sqlite_autoincrement": True},
        ) as jobs:
            jobs.drop_constraint("uq_agent_jobs_thread_id", type_="unique")
            jobs.add_column(sa.Column("run_json", sa.Text()))
            jobs.add_column(sa.Column("webhook", sa.Text()))
    op.create_index("idx_agent_jobs_thread", "agent_jobs", ["thread_id", "id"])
    running = sa.text("status = 'running'")
    op.create_index(
        "uq_agent_jobs_running",
        "agent_jobs",
        ["thread_id"],
        unique=True,
        sqlite_where=running,
        postgresql_where=running,
    )
