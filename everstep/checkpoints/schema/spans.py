"""Spans of committed steps, and which of them a destination still waits for."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from everstep.checkpoints.schema.base import metadata

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
