"""A leg that is recorded: its root span, the link to the leg before it, and the verdict on what failed in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import Token
from types import TracebackType
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langgraph.config import get_config
from opentelemetry.context import Context

from everstep.observability import ambient, leg, names, root
from everstep.observability.attributes import NAME_LIMIT, STATUS_LIMIT, bounded, exportable
from everstep.observability.cost import NO_PRICES, Price
from everstep.observability.failure import Failure, is_failure
from everstep.observability.guard import harmless
from everstep.observability.handler import SpanHandler
from everstep.observability.leg import AnsweredReview, EffectSpan, Leg, LegDescription, Outcome
from everstep.observability.open_spans import Frame, OpenSpans
from everstep.observability.span_buffer import SpanBuffer
from everstep.observability.span_makers import SpanMaker


class TracedLeg(Leg):
    """Records one leg.

    Args:
        maker: Makes its spans.
        description: What is known of the leg before it runs.
        now_ns: Its clock: nanoseconds since the Unix epoch.
        buffer: Where its finished spans wait for the record; None if they go elsewhere.
    """

    def __init__(
        self,
        maker: SpanMaker,
        description: LegDescription,
        now_ns: Callable[[], int] = time.time_ns,
        *,
        buffer: SpanBuffer | None = None,
    ) -> None:
        self._now_ns = now_ns
        self._buffer = buffer
        self._is_over = False
        self._told: tuple[object, ...] | None = None
        self._maker = maker
        self._description = description
        self._spans: OpenSpans | None = None
        self._handler: SpanHandler | None = None
        self._prices = NO_PRICES
        self._before: Context | None = None
        self._token: Token[Leg] | None = None
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._detail = self._reason = ""

    @property
    def callbacks(self) -> list[BaseCallbackHandler]:
        return [] if self._handler is None else [self._handler]

    @property
    def buffer(self) -> SpanBuffer | None:
        return self._buffer

    @harmless
    def finish(self) -> None:
        if self._spans is not None and self._buffer is not None and not self._is_over:
            self._end(self._spans)

    def describe(self, description: LegDescription) -> None:
        self._description = description

    @harmless
    def enqueued(self, job_id: str, graph: str) -> None:
        if self._spans is None or self._handler is None:
            return
        told: dict[str, object] = {names.CHILD_JOB_ID: job_id, names.observation_metadata("child_job_id"): job_id}
        links = [root.link(job_id, 1, names.LINK_CHILD)]
        parent = self._handler.frame_of(_running_here())
        frame = self._spans.start(names.enqueue_span(graph), parent, told, links=links)
        if frame is not None:
            self._spans.end(frame, ended_ns=frame.started_ns)

    @harmless
    def met_outage(self, service: str, symptom: str) -> None:
        if self._spans is not None:
            told = {names.SERVICE: service, names.OUTAGE: symptom}
            metadata = {names.observation_metadata(key.rpartition(".")[2]): value for key, value in told.items()}
            self._spans.root.set({**told, **metadata})

    def outcome(
        self, outcome: Outcome | None, *, error: BaseException | None = None, detail: str = "", reason: str = ""
    ) -> None:
        self._outcome, self._error, self._detail, self._reason = outcome, error, detail, reason

    def price_by(self, prices: Mapping[str, Price]) -> None:
        self._prices = prices

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
        span = self._maker.root(
            about,
            bounded(names.leg_span(about.graph), NAME_LIMIT),
            exportable(root.attributes(about)),
            root.links(about),
            self._now_ns() if about.started_ns is None else about.started_ns,
        )
        self._spans = OpenSpans(self._maker, span, self._now_ns)
        self._handler = SpanHandler(self._spans, f"everstep retry {about.job_id}", self._prices)
        self._before = ambient.enter(span)
        for review in about.answered:
            self._add_review(self._spans, review)

    def _add_review(self, spans: OpenSpans, review: AnsweredReview) -> None:
        told: dict[str, object] = {
            names.REVIEW_ID: review.review_id,
            names.REVIEW_KIND: review.kind,
            names.REVIEW_DECISION: review.decision,
            names.observation_metadata("review_id"): review.review_id,
            names.observation_metadata("review_decision"): review.decision,
        }
        frame = spans.start(names.review_span(review.kind), spans.root, told, started_ns=review.asked_ns)
        if frame is not None:
            spans.end(frame, ended_ns=review.answered_ns)

    @harmless
    def _finish(self) -> None:
        if self._spans is None or self._is_over:
            return
        self._is_over = True
        self._end(self._spans)

    def _end(self, spans: OpenSpans) -> None:
        """End what is open. A root for the record is a copy: what was told may not come true, and be told otherwise."""
        told = (self._outcome, self._error, self._detail, self._reason)
        if told == self._told:
            return
        self._told = told
        error = self._error if self._error is not None and is_failure(self._error) else None
        needs_person = self._outcome == "failed" or (self._outcome == "review" and error is not None)
        lost = self._outcome is None and error is not None
        spans.close(warning=not (needs_person or lost))
        frame, now_ns = spans.root, self._now_ns()
        attributes = {**self._verdict(error), names.SPANS_LOST: (self._buffer and self._buffer.lost) or None}
        failure = None
        if error is not None and self._outcome not in {"done", "released"}:
            failure = Failure.of(error).because(self._reason)
        elif self._outcome == "failed":
            failure = Failure("failed", self._detail, self._detail or "failed")
        self._maker.end_root(frame.span, exportable(attributes), failure, now_ns)
        if self._buffer is not None:
            self._buffer.release_all()

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
