"""Jobs and what belongs to them: events, effects, reviews, evidence, services, and what is left of deleted ones."""

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

STATUSES = ("pending", "running", "retry", "review", "done", "failed")
EFFECT_STATES = ("intended", "confirmed", "rejected", "unknown")
REVIEW_STATUSES = ("open", "answered", "closed")
REVIEW_KINDS = ("interrupt", "breakpoint", "effect", "error", "fingerprint", "policy", "budget")
GATES = ("open", "closed")

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
    CheckConstraint(one_of("status", STATUSES), name="ck_agent_jobs_status"),
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
    CheckConstraint(one_of("state", EFFECT_STATES), name="ck_effects_state"),
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
    CheckConstraint(one_of("kind", REVIEW_KINDS), name="ck_reviews_kind"),
    CheckConstraint(one_of("status", REVIEW_STATUSES), name="ck_reviews_status"),
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
    CheckConstraint(one_of("gate", GATES), name="ck_services_gate"),
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
