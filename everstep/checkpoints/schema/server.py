"""What clients, schedules and events bring: threads, runs, the event log, assistants, keys, and messages to others."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from everstep.checkpoints.schema.base import metadata, one_of

THREAD_STATUSES = ("idle", "busy", "interrupted", "error")
RUN_STATUSES = ("pending", "running", "error", "success", "timeout", "interrupted")
DELIVERY_STATES = ("pending", "delivered", "dead")
TRIGGER_STATES = ("stored", "started", "filtered", "failed")
OVERLAPS = ("skip", "queue", "resume")
MISSED = ("skip", "latest", "all")

threads = Table(
    "threads",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("thread_id", String, nullable=False, unique=True),
    Column("owner", String, nullable=False, server_default="default"),
    Column("graph", String),
    Column("assistant_id", String),
    Column("status", String, nullable=False, server_default="idle"),
    Column("metadata_json", Text, nullable=False, server_default="{}"),
    Column("config_json", Text, nullable=False, server_default="{}"),
    Column("values_json", Text),
    Column("interrupts_json", Text, nullable=False, server_default="{}"),
    Column("error_json", Text),
    Column("ttl_json", Text),
    Column("expires_at", BigInteger, index=True),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("state_updated_at", BigInteger),
    CheckConstraint(one_of("status", THREAD_STATUSES), name="ck_threads_status"),
    sqlite_autoincrement=True,
)
Index("idx_threads_owner", threads.c.owner, threads.c.status, threads.c.updated_at)

runs = Table(
    "runs",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("run_id", String, nullable=False, unique=True),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), nullable=False, index=True),
    Column("thread_id", String, nullable=False),
    Column("assistant_id", String, nullable=False),
    Column("status", String, nullable=False),
    Column("metadata_json", Text, nullable=False, server_default="{}"),
    Column("kwargs_json", Text, nullable=False),
    Column("multitask_strategy", String, nullable=False),
    Column("webhook", Text),
    Column("delete_thread", Integer, nullable=False, server_default="0"),
    Column("rolled_back", Integer, nullable=False, server_default="0"),
    Column("values_json", Text),
    Column("error_json", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    CheckConstraint(one_of("status", RUN_STATUSES), name="ck_runs_status"),
    sqlite_autoincrement=True,
)
Index("idx_runs_thread", runs.c.thread_id, runs.c.id)

events = Table(
    "events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), nullable=False, index=True),
    Column("run_id", String, nullable=False),
    Column("thread_id", String, nullable=False),
    Column("claim_no", Integer, nullable=False),
    Column("method", String, nullable=False),
    Column("namespace", String, nullable=False),
    Column("data_json", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)
Index("idx_events_run", events.c.run_id, events.c.id)
Index("idx_events_thread", events.c.thread_id, events.c.id)

text_parts = Table(
    "text_parts",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("thread_id", String, nullable=False),
    Column("digest", String, nullable=False),
    Column("level", Integer, nullable=False),
    Column("content", Text, nullable=False),
    UniqueConstraint("thread_id", "digest", name="uq_text_parts"),
    sqlite_autoincrement=True,
)

stream_readers = Table(
    "stream_readers",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), nullable=False, index=True),
    Column("run_id", String, nullable=False),
    Column("reader", String, nullable=False),
    Column("seen", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    UniqueConstraint("run_id", "reader", name="uq_stream_readers"),
    sqlite_autoincrement=True,
)

assistants = Table(
    "assistants",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("assistant_id", String, nullable=False),
    Column("version", Integer, nullable=False),
    Column("is_latest", Integer, nullable=False),
    Column("owner", String, nullable=False, server_default="default"),
    Column("graph", String, nullable=False, index=True),
    Column("name", String, nullable=False),
    Column("description", Text),
    Column("config_json", Text, nullable=False, server_default="{}"),
    Column("context_json", Text, nullable=False, server_default="{}"),
    Column("metadata_json", Text, nullable=False, server_default="{}"),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    UniqueConstraint("assistant_id", "version", name="uq_assistants_version"),
    sqlite_autoincrement=True,
)

replies = Table(
    "replies",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("owner", String, nullable=False),
    Column("route", String, nullable=False),
    Column("idempotency_key", String, nullable=False),
    Column("request_digest", String, nullable=False),
    Column("status_code", Integer, nullable=False),
    Column("headers_json", Text, nullable=False, server_default="{}"),
    Column("body_json", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
    UniqueConstraint("owner", "route", "idempotency_key", name="uq_replies"),
    sqlite_autoincrement=True,
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("public_id", String, nullable=False, unique=True),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), nullable=False, index=True),
    Column("url", Text, nullable=False),
    Column("body_json", Text, nullable=False),
    Column("state", String, nullable=False, server_default="pending"),
    Column("tries", Integer, nullable=False, server_default="0"),
    Column("next_try_at", BigInteger, nullable=False),
    Column("leased_by", String),
    Column("lease_until", BigInteger),
    Column("last_error", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("delivered_at", BigInteger),
    CheckConstraint(one_of("state", DELIVERY_STATES), name="ck_deliveries_state"),
    sqlite_autoincrement=True,
)
Index("idx_deliveries_due", deliveries.c.state, deliveries.c.next_try_at)

trigger_events = Table(
    "trigger_events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("public_id", String, nullable=False, unique=True),
    Column("trigger", String, nullable=False),
    Column("source", String, nullable=False),
    Column("event_key", String, nullable=False),
    Column("headers_json", Text, nullable=False, server_default="{}"),
    Column("body", Text, nullable=False),
    Column("state", String, nullable=False, server_default="stored"),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), index=True),
    Column("error_json", Text),
    Column("occurred_at", BigInteger),
    Column("received_at", BigInteger, nullable=False),
    Column("handled_at", BigInteger),
    CheckConstraint(one_of("state", TRIGGER_STATES), name="ck_trigger_events_state"),
    UniqueConstraint("trigger", "event_key", name="uq_trigger_events"),
    sqlite_autoincrement=True,
)
Index("idx_trigger_events_state", trigger_events.c.state, trigger_events.c.id)

schedules = Table(
    "schedules",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("public_id", String, nullable=False, unique=True),
    Column("name", String, unique=True),
    Column("origin", String, nullable=False),
    Column("owner", String, nullable=False, server_default="default"),
    Column("graph", String, nullable=False),
    Column("assistant_id", String),
    Column("thread_id", String),
    Column("cron", String, nullable=False),
    Column("timezone", String, nullable=False, server_default="UTC"),
    Column("input_json", Text, nullable=False),
    Column("options_json", Text, nullable=False, server_default="{}"),
    Column("metadata_json", Text, nullable=False, server_default="{}"),
    Column("overlap", String, nullable=False),
    Column("missed", String, nullable=False),
    Column("jitter_s", Integer, nullable=False, server_default="0"),
    Column("enabled", Integer, nullable=False, server_default="1"),
    Column("ends_at", BigInteger),
    Column("next_slot_at", BigInteger),
    Column("next_fire_at", BigInteger, index=True),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    CheckConstraint(one_of("overlap", OVERLAPS), name="ck_schedules_overlap"),
    CheckConstraint(one_of("missed", MISSED), name="ck_schedules_missed"),
    sqlite_autoincrement=True,
)

schedule_slots = Table(
    "schedule_slots",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("schedule_id", Integer, ForeignKey("schedules.id"), nullable=False),
    Column("slot_at", BigInteger, nullable=False),
    Column("fired_at", BigInteger, nullable=False),
    Column("outcome", String, nullable=False),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), index=True),
    Column("detail", Text),
    UniqueConstraint("schedule_id", "slot_at", name="uq_schedule_slots"),
    sqlite_autoincrement=True,
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("public_id", String, nullable=False, unique=True),
    Column("name", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("scopes_json", Text, nullable=False),
    Column("key_hash", String, nullable=False, unique=True),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("last_used_at", BigInteger),
    sqlite_autoincrement=True,
)
