"""The tables of the record, as SQLAlchemy Core. LangGraph's own (`checkpoints`, `writes`) belong to its stock saver.

Times are integer UTC milliseconds. Migrations live in `migrations/`; a test holds both to the same schema.
"""

from __future__ import annotations

from everstep.checkpoints.schema.base import metadata
from everstep.checkpoints.schema.queue import (
    EFFECT_STATES,
    GATES,
    REVIEW_KINDS,
    REVIEW_STATUSES,
    STATUSES,
    agent_jobs,
    effects,
    evidence,
    job_events,
    job_services,
    reviews,
    services,
    tombstones,
    upstream_events,
)
from everstep.checkpoints.schema.server import (
    DELIVERY_STATES,
    MISSED,
    OVERLAPS,
    RUN_STATUSES,
    THREAD_STATUSES,
    TRIGGER_STATES,
    api_keys,
    assistants,
    deliveries,
    events,
    replies,
    runs,
    schedule_slots,
    schedules,
    stream_readers,
    threads,
    trigger_events,
)
from everstep.checkpoints.schema.spans import span_destinations, span_outbox, spans

__all__ = [
    "DELIVERY_STATES",
    "EFFECT_STATES",
    "GATES",
    "MISSED",
    "OVERLAPS",
    "REVIEW_KINDS",
    "REVIEW_STATUSES",
    "RUN_STATUSES",
    "STATUSES",
    "THREAD_STATUSES",
    "TRIGGER_STATES",
    "agent_jobs",
    "api_keys",
    "assistants",
    "deliveries",
    "effects",
    "events",
    "evidence",
    "job_events",
    "job_services",
    "metadata",
    "replies",
    "reviews",
    "runs",
    "schedule_slots",
    "schedules",
    "services",
    "span_destinations",
    "span_outbox",
    "spans",
    "stream_readers",
    "threads",
    "tombstones",
    "trigger_events",
    "upstream_events",
]
