"""The tables of the record, as SQLAlchemy Core. LangGraph's own (`checkpoints`, `writes`) belong to its stock saver.

Times are integer UTC milliseconds. Migrations live in `migrations/`; a test holds both to the same schema.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

STATUSES = ("pending", "running", "retry", "review", "done", "failed")
EFFECT_STATES = ("intended", "confirmed", "rejected", "unknown")
REVIEW_STATUSES = ("open", "answered", "closed")
REVIEW_KINDS = ("interrupt", "breakpoint", "effect", "error", "fingerprint", "policy", "budget")
GATES = ("open", "closed")
THREAD_STATUSES = ("idle", "busy", "interrupted", "error")
RUN_STATUSES = ("pending", "running", "error", "success", "timeout", "interrupted")
DELIVERY_STATES = ("pending", "delivered", "dead")
TRIGGER_STATES = ("stored", "started", "filtered", "failed")
OVERLAPS = ("skip", "queue", "resume")
MISSED = ("skip", "latest", "all")


def _one_of(column: str, values: tuple[str, ...]) -> str:
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


metadata = MetaData()

agent_jobs = Table(
    "agent_jobs",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("public_id", String, nullable=False, unique=True),
    Column("idempotency_key", String, nullable=False, unique=True),
    Column("payload_digest", String, nullable=False),
    Column("payload_json", Text, nullable=False),
    Column("owner", String, nullable=False, server_default="default"),
    Column("graph", String, nullable=False),
    Column("thread_id", String, nullable=False),
    Column("workflow_version", String, nullable=False),
    Column("status", String, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("max_attempts", Integer, nullable=False),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("progress", BigInteger, nullable=False, server_default="0"),
    Column("progress_at_failure", BigInteger, nullable=False, server_default="-1"),
    Column("claim_no", Integer, nullable=False, server_default="0"),
    Column("leased_by", String),
    Column("lease_until", BigInteger),
    Column("next_run_at", BigInteger, nullable=False),
    Column("step", Integer, nullable=False, server_default="0"),
    Column("node", String),
    Column("input_tokens", BigInteger, nullable=False, server_default="0"),
    Column("output_tokens", BigInteger, nullable=False, server_default="0"),
    Column("input_applied", Integer, nullable=False, server_default="0"),
    Column("cancel_requested_at", BigInteger),
    Column("fingerprint", String),
    Column("fingerprint_json", Text),
    Column("error_json", Text),
    Column("result_json", Text),
    Column("result_digest", String),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("due_rank", BigInteger, nullable=False, server_default="0"),
    Column("concurrency_key", String),
    Column("parent_id", Integer),
    Column("budget_json", Text),
    Column("run_ms", BigInteger, nullable=False, server_default="0"),
    Column("cost_micros", BigInteger, nullable=False, server_default="0"),
    Column("acceptance_json", Text),
    Column("returns", Integer, nullable=False, server_default="0"),
    Column("next_input_json", Text),
    Column("worker_deaths", Integer, nullable=False, server_default="0"),
    Column("suspect", Integer, nullable=False, server_default="0"),
    Column("announced_at", BigInteger),
    Column("run_json", Text),
    Column("webhook", Text),
    CheckConstraint(_one_of("status", STATUSES), name="ck_agent_jobs_status"),
    sqlite_autoincrement=True,
)
Index("idx_agent_jobs_ready", agent_jobs.c.status, agent_jobs.c.next_run_at, agent_jobs.c.lease_until)
Index("idx_agent_jobs_rank", agent_jobs.c.status, agent_jobs.c.due_rank)
Index("idx_agent_jobs_parent", agent_jobs.c.parent_id)
Index("idx_agent_jobs_listed", agent_jobs.c.status, agent_jobs.c.id)
Index("idx_agent_jobs_thread", agent_jobs.c.thread_id, agent_jobs.c.id)
_RUNNING = agent_jobs.c.status == "running"
Index("uq_agent_jobs_running", agent_jobs.c.thread_id, unique=True, sqlite_where=_RUNNING, postgresql_where=_RUNNING)
_KEYED = agent_jobs.c.concurrency_key.is_not(None)
Index("idx_agent_jobs_keyed", agent_jobs.c.status, sqlite_where=_KEYED, postgresql_where=_KEYED)

job_events = Table(
    "job_events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), nullable=False, index=True),
    Column("from_status", String),
    Column("to_status", String, nullable=False),
    Column("claim_no", Integer, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("actor", String, nullable=False),
    Column("reason", Text, nullable=False),
    sqlite_autoincrement=True,
)

effects = Table(
    "effects",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("key", String, nullable=False, unique=True),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), nullable=False, index=True),
    Column("name", String, nullable=False),
    Column("state", String, nullable=False),
    Column("claim_no", Integer, nullable=False),
    Column("calls", Integer, nullable=False),
    Column("arguments_digest", String, nullable=False),
    Column("arguments_json", Text, nullable=False),
    Column("result_type", String),
    Column("result", Text),
    Column("settled_by", String),
    Column("error", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("place", Text),
    CheckConstraint(_one_of("state", EFFECT_STATES), name="ck_effects_state"),
    sqlite_autoincrement=True,
)
Index("idx_effects_place", effects.c.job_id, effects.c.place)
Index("idx_effects_arguments", effects.c.job_id, effects.c.arguments_digest)

reviews = Table(
    "reviews",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("public_id", String, nullable=False, unique=True),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), nullable=False, index=True),
    Column("kind", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("occurrence", Integer, nullable=False, server_default="0"),
    Column("status", String, nullable=False),
    Column("value_json", Text, nullable=False),
    Column("value_digest", String, nullable=False),
    Column("decision", String),
    Column("answer_json", Text),
    Column("resume_json", Text),
    Column("reason", Text),
    Column("answered_by", String),
    Column("created_at", BigInteger, nullable=False),
    Column("answered_at", BigInteger),
    CheckConstraint(_one_of("kind", REVIEW_KINDS), name="ck_reviews_kind"),
    CheckConstraint(_one_of("status", REVIEW_STATUSES), name="ck_reviews_status"),
    UniqueConstraint("job_id", "kind", "subject", "occurrence", name="uq_reviews_subject"),
    sqlite_autoincrement=True,
)
Index("idx_reviews_status", reviews.c.status, reviews.c.job_id)

evidence = Table(
    "evidence",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), nullable=False, index=True),
    Column("claim_no", Integer, nullable=False),
    Column("kind", String, nullable=False),
    Column("detail_json", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

services = Table(
    "services",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String, nullable=False, unique=True),
    Column("gate", String, nullable=False),
    Column("symptom", String),
    Column("closed_at", BigInteger),
    Column("opens_at", BigInteger),
    Column("outages", Integer, nullable=False, server_default="0"),
    Column("trial_job_id", Integer),
    Column("trial_claim_no", Integer),
    Column("updated_at", BigInteger, nullable=False),
    CheckConstraint(_one_of("gate", GATES), name="ck_services_gate"),
    sqlite_autoincrement=True,
)

job_services = Table(
    "job_services",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), nullable=False),
    Column("service", String, nullable=False),
    UniqueConstraint("job_id", "service", name="uq_job_services"),
    sqlite_autoincrement=True,
)
Index("idx_job_services_service", job_services.c.service)

upstream_events = Table(
    "upstream_events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("service", String, nullable=False, index=True),
    Column("symptom", String, nullable=False),
    Column("check_time", BigInteger, nullable=False),
    Column("account_tier_expected", String),
    Column("job_id", Integer),
    Column("detail", Text),
    sqlite_autoincrement=True,
)

tombstones = Table(
    "tombstones",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("idempotency_key", String, nullable=False, unique=True),
    Column("public_id", String, nullable=False),
    Column("graph", String, nullable=False),
    Column("payload_digest", String, nullable=False),
    Column("status", String, nullable=False),
    Column("result_digest", String),
    Column("pruned_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False, index=True),
    sqlite_autoincrement=True,
)

spans = Table(
    "spans",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), nullable=False),
    Column("leg", Integer, nullable=False),
    Column("span_id", String, nullable=False),
    Column("started_ns", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("job_id", "leg", "span_id", name="uq_spans"),
    sqlite_autoincrement=True,
)

span_outbox = Table(
    "span_outbox",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), nullable=False, index=True),
    Column("span", Integer, ForeignKey("spans.id"), nullable=False, index=True),
    Column("destination", String, nullable=False),
    Column("queued_at", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)
Index("idx_span_outbox_destination", span_outbox.c.destination, span_outbox.c.id)

span_destinations = Table(
    "span_destinations",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String, nullable=False, unique=True),
    Column("delivered", BigInteger, nullable=False, server_default="0"),
    Column("dropped", BigInteger, nullable=False, server_default="0"),
    Column("failing_since", BigInteger),
    Column("last_error", Text),
    Column("next_try_at", BigInteger),
    Column("leased_by", String),
    Column("lease_until", BigInteger),
    Column("updated_at", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

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
    CheckConstraint(_one_of("status", THREAD_STATUSES), name="ck_threads_status"),
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
    CheckConstraint(_one_of("status", RUN_STATUSES), name="ck_runs_status"),
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
    CheckConstraint(_one_of("state", DELIVERY_STATES), name="ck_deliveries_state"),
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
    CheckConstraint(_one_of("state", TRIGGER_STATES), name="ck_trigger_events_state"),
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
    CheckConstraint(_one_of("overlap", OVERLAPS), name="ck_schedules_overlap"),
    CheckConstraint(_one_of("missed", MISSED), name="ck_schedules_missed"),
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
