"""A leg that is recorded: its root span, the link to the leg before it, and the verdict on what failed in it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import Token
from types import TracebackType
from typing import Final
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langgraph.config import get_config
from opentelemetry.context import Context, create_key, get_current, set_value
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.trace import Link, SpanContext, TraceFlags, Tracer

from everstep.observability import ambient, leg, names
from everstep.observability.attributes import NAME_LIMIT, STATUS_LIMIT, bounded, exportable
from everstep.observability.failure import Failure, is_failure
from everstep.observability.guard import harmless
from everstep.observability.handler import SpanHandler
from everstep.observability.identity import root_span_id, trace_id
from everstep.observability.leg import EffectSpan, Leg, LegDescription, Outcome
from everstep.observability.open_spans import Frame, OpenSpans, record
from everstep.observability.span_ids import SpanIds

_CORRELATION: Final = create_key("everstep-leg")


class Correlation(SpanProcessor):
    """Puts session, trace name, tags and job on every span of a leg: Langfuse filters spans, not traces."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        attributes = get_current().get(_CORRELATION) if parent_context is None else parent_context.get(_CORRELATION)
        if isinstance(attributes, dict):
            span.set_attributes(attributes)  # pyright: ignore[reportUnknownArgumentType]

    def on_end(self, span: ReadableSpan) -> None:
        return None


class TracedLeg(Leg):
    """Records one leg.

    Args:
        tracer: Where spans are made.
        ids: The tracer's source of ids.
        description: What is known of the leg before it runs.
    """

    def __init__(self, tracer: Tracer, ids: SpanIds, description: LegDescription) -> None:
        self._tracer = tracer
        self._ids = ids
        self._description = description
        self._spans: OpenSpans | None = None
        self._handler: SpanHandler | None = None
        self._before: Context | None = None
        self._token: Token[Leg] | None = None
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._detail = ""

    @property
    def callbacks(self) -> list[BaseCallbackHandler]:
        return [] if self._handler is None else [self._handler]

    def outcome(self, outcome: Outcome, *, error: BaseException | None = None, detail: str = "") -> None:
        self._outcome, self._error, self._detail = outcome, error, detail

    @harmless
    def committed(self, checkpoint_id: str, checkpoint_ns: str = "") -> None:
        if self._handler is not None:
            self._handler.committed(checkpoint_id, checkpoint_ns)

    def __enter__(self) -> Leg:
        self._token = leg.current.set(self)
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outcome is None:
            self._error = error
        self._finish()
        self._restore()

    @contextmanager
    def effect(self, name: str, key_digest: str) -> Generator[EffectSpan]:
        effect = EffectSpan()
        frame = self._start_effect(name, key_digest)
        before = None if frame is None else ambient.enter(frame.span)
        try:
            yield effect
        except BaseException as error:
            self._end_effect(frame, effect, error)
            raise
        else:
            self._end_effect(frame, effect, None)
        finally:
            if frame is not None and before is not None:
                ambient.leave(frame.span, before)

    # ---- the root span

    @harmless
    def _start(self) -> None:
        about = self._description
        correlation = exportable(_correlation(about))
        attributes: dict[str, object] = {
            names.OPERATION: names.INVOKE_AGENT,
            names.AGENT_NAME: about.graph,
            names.WORKER: about.worker,
            names.ATTEMPTS: about.attempts,
            names.observation_metadata("worker"): about.worker,
            names.observation_metadata("attempts"): about.attempts,
        }
        with self._ids.use(trace_id(about.job_id, about.leg), root_span_id(about.job_id, about.leg)):
            root = self._tracer.start_span(
                bounded(names.leg_span(about.graph), NAME_LIMIT),
                context=set_value(_CORRELATION, correlation, Context()),
                attributes=exportable(attributes),
                links=_links(about),
            )
        self._spans = OpenSpans(self._tracer, root, set_value(_CORRELATION, correlation, Context()))
        self._handler = SpanHandler(self._spans, f"everstep retry {about.job_id}")
        self._before = ambient.enter(root)

    @harmless
    def _finish(self) -> None:
        if self._spans is None:
            return
        error = self._error if self._error is not None and is_failure(self._error) else None
        needs_person = self._outcome == "failed" or (self._outcome == "review" and error is not None)
        lost = self._outcome is None and error is not None
        self._spans.close(warning=not (needs_person or lost))
        root = self._spans.root
        root.set(self._verdict(error))
        if error is not None and self._outcome not in {"done", "released"}:
            record(root.span, Failure.of(error))
        elif self._outcome == "failed":
            record(root.span, Failure("failed", self._detail, self._detail or "failed", ""))
        root.span.end()

    def _verdict(self, error: BaseException | None) -> dict[str, object]:
        outcome = self._outcome or _unsettled(self._error)
        resume = {
            "failed": f"everstep retry {self._description.job_id}",
            "review": "everstep review",
        }.get(outcome)
        message = self._detail or ("paused for review" if outcome == "review" and error is None else None)
        return {
            names.OUTCOME: outcome,
            names.observation_metadata("status"): outcome,
            names.RESUME_COMMAND: resume,
            names.observation_metadata("resume_command"): resume,
            names.OBSERVATION_LEVEL: names.LEVEL_WARNING if outcome == "retry" else None,
            names.OBSERVATION_STATUS_MESSAGE: bounded(message, STATUS_LIMIT) if message and error is None else None,
            names.observation_metadata("detail"): bounded(self._detail, STATUS_LIMIT) or None,
        }

    @harmless
    def _restore(self) -> None:
        if self._token is None:
            return
        try:
            leg.current.reset(self._token)
        except ValueError:  # left in another context than entered: there is nothing of ours to restore here
            return
        if self._before is not None:
            ambient.restore(self._before)

    # ---- effects

    def _start_effect(self, name: str, key_digest: str) -> Frame | None:
        opened: list[Frame] = []
        self._open_effect(name, key_digest, opened)
        return opened[0] if opened else None

    @harmless
    def _open_effect(self, name: str, key_digest: str, opened: list[Frame]) -> None:
        if self._spans is None or self._handler is None:
            return
        attributes: Mapping[str, object] = {names.EFFECT_NAME: name, names.EFFECT_KEY_DIGEST: key_digest}
        parent = self._handler.frame_of(_running_here())
        frame = self._spans.start(names.effect_span(name), parent, attributes)
        if frame is not None:
            opened.append(frame)

    @harmless
    def _end_effect(self, frame: Frame | None, effect: EffectSpan, error: BaseException | None) -> None:
        if frame is None or self._handler is None:
            return
        state: dict[str, object] = {
            names.EFFECT_STATE: effect.state,
            names.observation_metadata("effect_state"): effect.state,
        }
        self._handler.end(frame, error, state)


def _correlation(about: LegDescription) -> dict[str, object]:
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


def _links(about: LegDescription) -> list[Link]:
    if about.previous_leg is None:
        return []
    root = SpanContext(
        trace_id=int(trace_id(about.job_id, about.previous_leg), 16),
        span_id=int(root_span_id(about.job_id, about.previous_leg), 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    return [Link(root, {names.LINK_KIND: names.LINK_PREVIOUS_LEG})]


def _unsettled(error: BaseException | None) -> str:
    """What to call the end of a leg that nobody told the outcome of."""
    if error is None:
        return "unknown"
    return "cancelled" if isinstance(error, asyncio.CancelledError) else "unsettled"


def _running_here() -> UUID | None:
    """The LangChain run whose body is executing: the node's, or the tool's inside it."""
    try:
        manager = get_config().get("callbacks")
    except RuntimeError:  # not inside a graph
        return None
    return manager.parent_run_id if isinstance(manager, BaseCallbackManager) else None
