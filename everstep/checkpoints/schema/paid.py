"""Waiting and paying: signals and who waits for them, provider tasks and their events, credit, and used approvals."""

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

WAIT_STATES = ("open", "met", "over")
TASK_STATES = ("created", "submitting", "submission_unknown", "pending", "succeeded", "failed")
PROVIDER_EVENT_STATES = ("parked", "applied", "ignored")
ENTRY_KINDS = ("grant", "charge", "refund")
APPROVAL_STATES = ("reserved", "consumed")

signals = Table(
    "signals",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("public_id", String, nullable=False, unique=True),
    Column("owner", String, nullable=False, server_default="default"),
    Column("name", String, nullable=False),
    Column("payload_json", Text, nullable=False),
    Column("emitted_by", String, nullable=False),
    Column("emitted_at", BigInteger, nullable=False, index=True),
    UniqueConstraint("owner", "name", name="uq_signals"),
    sqlite_autoincrement=True,
)

waits = Table(
    "waits",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), nullable=False),
    Column("key", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("signal", String),
    Column("until_at", BigInteger),
    Column("state", String, nullable=False, server_default="open"),
    Column("value_json", Text),
    Column("node", String),
    Column("created_at", BigInteger, nullable=False),
    Column("decided_at", BigInteger),
    CheckConstraint(one_of("state", WAIT_STATES), name="ck_waits_state"),
    UniqueConstraint("job_id", "key", name="uq_waits"),
    sqlite_autoincrement=True,
)
_OPEN = waits.c.state == "open"
Index("idx_waits_signal", waits.c.signal, waits.c.owner, sqlite_where=_OPEN, postgresql_where=_OPEN)

provider_tasks = Table(
    "provider_tasks",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("public_id", String, nullable=False, unique=True),
    Column("owner", String, nullable=False),
    Column("submission_key", String, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("job", String, nullable=False, index=True),
    Column("provider", String, nullable=False),
    Column("provider_key", String, nullable=False, unique=True),
    Column("provider_task_id", String),
    Column("request_json", Text, nullable=False),
    Column("request_digest", String, nullable=False),
    Column("state", String, nullable=False),
    Column("amount", BigInteger, nullable=False, server_default="0"),
    Column("currency", String),
    Column("quote_json", Text),
    Column("result_json", Text),
    Column("result_digest", String),
    Column("error_json", Text),
    Column("progress", Integer),
    Column("settled_by", String),
    Column("next_poll_at", BigInteger),
    Column("polls", Integer, nullable=False, server_default="0"),
    Column("poll_failures", Integer, nullable=False, server_default="0"),
    Column("poll_error", Text),
    Column("leased_by", String),
    Column("lease_until", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("submitted_at", BigInteger),
    Column("finished_at", BigInteger),
    CheckConstraint(one_of("state", TASK_STATES), name="ck_provider_tasks_state"),
    UniqueConstraint("owner", "submission_key", "generation", name="uq_provider_tasks_submission"),
    UniqueConstraint("provider", "provider_task_id", name="uq_provider_tasks_provider"),
    sqlite_autoincrement=True,
)
_POLLED = provider_tasks.c.next_poll_at.is_not(None)
Index(
    "idx_provider_tasks_polled",
    provider_tasks.c.provider,
    provider_tasks.c.next_poll_at,
    sqlite_where=_POLLED,
    postgresql_where=_POLLED,
)
Index("idx_provider_tasks_state", provider_tasks.c.state, provider_tasks.c.id)

provider_events = Table(
    "provider_events",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("public_id", String, nullable=False, unique=True),
    Column("provider", String, nullable=False),
    Column("event_id", String, nullable=False),
    Column("provider_task_id", String),
    Column("provider_key", String),
    Column("task_id", Integer, ForeignKey("provider_tasks.id"), index=True),
    Column("status_json", Text, nullable=False),
    Column("state", String, nullable=False),
    Column("occurred_at", BigInteger),
    Column("received_at", BigInteger, nullable=False),
    Column("handled_at", BigInteger),
    CheckConstraint(one_of("state", PROVIDER_EVENT_STATES), name="ck_provider_events_state"),
    UniqueConstraint("provider", "event_id", name="uq_provider_events"),
    sqlite_autoincrement=True,
)
Index("idx_provider_events_task", provider_events.c.provider, provider_events.c.provider_task_id)
Index("idx_provider_events_key", provider_events.c.provider_key)
Index("idx_provider_events_state", provider_events.c.state, provider_events.c.id)

credit_accounts = Table(
    "credit_accounts",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("owner", String, nullable=False),
    Column("currency", String, nullable=False),
    Column("balance", BigInteger, nullable=False, server_default="0"),
    Column("updated_at", BigInteger, nullable=False),
    UniqueConstraint("owner", "currency", name="uq_credit_accounts"),
    sqlite_autoincrement=True,
)

ledger = Table(
    "ledger",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("public_id", String, nullable=False, unique=True),
    Column("owner", String, nullable=False),
    Column("currency", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("task_id", Integer, ForeignKey("provider_tasks.id"), index=True),
    Column("refund_of", Integer, ForeignKey("ledger.id"), unique=True),
    Column("key", String),
    Column("reason", Text, nullable=False),
    Column("actor", String, nullable=False),
    Column("detail_json", Text),
    Column("at", BigInteger, nullable=False),
    CheckConstraint(one_of("kind", ENTRY_KINDS), name="ck_ledger_kind"),
    CheckConstraint("(kind = 'refund') = (refund_of IS NOT NULL)", name="ck_ledger_refund"),
    CheckConstraint("(kind = 'charge' AND amount < 0) OR (kind <> 'charge' AND amount > 0)", name="ck_ledger_amount"),
    CheckConstraint("(kind = 'grant') = (task_id IS NULL)", name="ck_ledger_task"),
    UniqueConstraint("owner", "key", name="uq_ledger_key"),
    sqlite_autoincrement=True,
)
_CHARGE = ledger.c.kind == "charge"
Index("uq_ledger_charge", ledger.c.task_id, unique=True, sqlite_where=_CHARGE, postgresql_where=_CHARGE)
Index("idx_ledger_owner", ledger.c.owner, ledger.c.id)

approvals = Table(
    "approvals",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("job_id", Integer, ForeignKey("agent_jobs.id"), nullable=False, index=True),
    Column("review_id", Integer, ForeignKey("reviews.id"), nullable=False, unique=True),
    Column("action", String, nullable=False),
    Column("argument_digest", String, nullable=False),
    Column("fingerprint", String),
    Column("state", String, nullable=False),
    Column("effect_key", String, nullable=False),
    Column("reserved_at", BigInteger, nullable=False),
    Column("consumed_at", BigInteger),
    CheckConstraint(one_of("state", APPROVAL_STATES), name="ck_approvals_state"),
    sqlite_autoincrement=True,
)

rate_limits = Table(
    "rate_limits",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String, nullable=False, unique=True),
    Column("free_at_us", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)
