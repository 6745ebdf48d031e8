"""What the root span of a leg says: known before the leg runs, and by anyone after its process has died."""

from __future__ import annotations

from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.trace import Link, SpanContext, StatusCode

from everstep.observability import names
from everstep.observability.attributes import NAME_LIMIT, STATUS_LIMIT, bounded, exportable
from everstep.observability.enclosing import Enclosing, died_within
from everstep.observability.identity import root_span_id, trace_id
from everstep.observability.leg import Ending, LegDescription
from everstep.observability.leg_span import SAMPLED, LegSpan


def correlation(about: LegDescription) -> dict[str, object]:
    """Who and where: on every span of the leg."""
    previous = None if about.previous_leg is None else trace_id(about.job_id, about.previous_leg)
    return {
        names.SESSION_ID: about.thread_id,
        names.CONVERSATION_ID: about.thread_id,
        names.USER_ID: about.user_id,
        names.JOB_ID: about.job_id,
        names.LEG: about.leg,
        names.TRACE_NAME: about.graph,
        names.TRACE_TAGS: list(about.tags) or None,
        names.TRACE_METADATA_JOB_ID: about.job_id,
        names.TRACE_METADATA_LEG: about.leg,
        names.TRACE_METADATA_THREAD_ID: about.thread_id,
        names.TRACE_METADATA_PREVIOUS_TRACE_ID: previous,
    }


def attributes(about: LegDescription) -> dict[str, object]:
    """What the root says besides, from its start."""
    return {
        names.OPERATION: names.INVOKE_AGENT,
        names.AGENT_NAME: about.graph,
        names.WORKER: about.worker,
        names.ATTEMPTS: about.attempts,
        names.observation_metadata("worker"): about.worker,
        names.observation_metadata("attempts"): about.attempts,
        **_waited(about),
        **_parent(about),
    }


def links(about: LegDescription) -> list[Link]:
    """The leg before it, and the leg that enqueued its job."""
    found: list[Link] = []
    if about.previous_leg is not None:
        found.append(link(about.job_id, about.previous_leg, names.LINK_PREVIOUS_LEG))
    if about.parent_job_id is not None and about.parent_leg is not None:
        found.append(link(about.parent_job_id, about.parent_leg, names.LINK_PARENT))
    return found


def closed(about: LegDescription, ending: Ending, limits: SpanLimits) -> LegSpan:
    """The root of a leg whose process cannot end it any more."""
    level = names.LEVEL_WARNING if ending.is_failure and ending.goes_on else None
    retry = f"everstep retry {about.job_id}" if ending.is_failure and not ending.goes_on else None
    told: dict[str, object] = {
        names.OUTCOME: ending.outcome,
        names.observation_metadata("status"): ending.outcome,
        names.observation_metadata("detail"): bounded(ending.reason, STATUS_LIMIT),
        names.ERROR_TYPE: names.WORKER_DIED if ending.is_failure else None,
        names.OBSERVATION_LEVEL: level,
        names.OBSERVATION_STATUS_MESSAGE: bounded(ending.reason, STATUS_LIMIT),
        names.RESUME_COMMAND: retry,
        names.observation_metadata("resume_command"): retry,
    }
    started_ns = ending.ended_ns if about.started_ns is None else about.started_ns
    span = LegSpan(
        int(about.trace_id, 16),
        int(about.root_span_id, 16),
        None,
        bounded(names.leg_span(about.graph), NAME_LIMIT),
        dict(exportable({**correlation(about), **attributes(about), **told})),
        started_ns,
        limits,
        links=links(about),
    )
    if ending.is_failure:
        span.set_status(StatusCode.ERROR, ending.reason)
    span.end(max(started_ns, ending.ended_ns))
    return span


def unfinished(about: LegDescription, ending: Ending, lost: Enclosing, limits: SpanLimits) -> LegSpan:
    """A span within such a leg that its process cannot end any more, either.

    Args:
        about: The leg.
        ending: How it ended.
        lost: What the spans inside it tell of it.
        limits: How much a span may hold.
    """
    told: dict[str, object] = {
        names.OUTCOME: ending.outcome,
        names.ERROR_TYPE: names.WORKER_DIED if ending.is_failure else None,
        names.OBSERVATION_LEVEL: names.LEVEL_WARNING if ending.is_failure and ending.goes_on else None,
    }
    span = LegSpan(
        int(about.trace_id, 16),
        int(lost.span_id, 16),
        int(lost.parent_id, 16),
        bounded(lost.name, NAME_LIMIT),
        dict(exportable({**correlation(about), **lost.attributes, **told})),
        lost.started_ns,
        limits,
    )
    if ending.is_failure:
        span.set_status(StatusCode.ERROR, died_within(lost.started_ns, apart=ending.apart))
    span.end(max(lost.started_ns, ending.ended_ns))
    return span


def _waited(about: LegDescription) -> dict[str, object]:
    seconds = None if about.wait_ms is None else about.wait_ms / 1000
    told = {names.WAIT_S: seconds, names.WAIT_REASON: about.wait_reason}
    return {**told, **{names.observation_metadata(key.rpartition(".")[2]): value for key, value in told.items()}}


def _parent(about: LegDescription) -> dict[str, object]:
    """The job that enqueued it; Langfuse drops links, so its trace is named as well."""
    if about.parent_job_id is None:
        return {}
    trace = None if about.parent_leg is None else trace_id(about.parent_job_id, about.parent_leg)
    return {
        names.PARENT_JOB_ID: about.parent_job_id,
        names.observation_metadata("parent_job_id"): about.parent_job_id,
        names.observation_metadata("parent_trace_id"): trace,
    }


def link(job_id: str, leg: int, kind: str) -> Link:
    """A link to the root of a leg.

    Args:
        job_id: The job's public id.
        leg: The leg's number.
        kind: What it is to the span that has the link.
    """
    context = SpanContext(int(trace_id(job_id, leg), 16), int(root_span_id(job_id, leg), 16), True, SAMPLED)
    return Link(context, {names.LINK_KIND: kind})
