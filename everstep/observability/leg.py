"""A leg as the worker and effects see it: one attempt at a job. This one records nothing; `traced_leg` does."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeAlias

from everstep.observability import identity

if TYPE_CHECKING:
    from langchain_core.callbacks import BaseCallbackHandler

    from everstep.observability.cost import Price
    from everstep.observability.span_buffer import SpanBuffer

Outcome: TypeAlias = Literal["done", "review", "parked", "retry", "failed", "released", "lost"]


@dataclass(frozen=True)
class AnsweredReview:
    """A question that was answered before the leg that goes on with it.

    Attributes:
        review_id: Its public id.
        kind: What asked: an interrupt, an effect, an error, a budget.
        decision: What was decided; the answer itself is not told.
        asked_ns: When it was asked, nanoseconds since the Unix epoch.
        answered_ns: When it was answered.
    """

    review_id: str
    kind: str
    decision: str | None
    asked_ns: int
    answered_ns: int


@dataclass(frozen=True)
class LegDescription:
    """What is known of a leg before it runs.

    Attributes:
        job_id: The job's public id.
        leg: Which leg of the job this is, from 1; never used twice within a job.
        graph: Name of the graph.
        thread_id: The LangGraph thread; all legs of a job share it, it is the session.
        worker: Id of the worker.
        attempts: How many attempts the job has had, this one included.
        previous_leg: The leg before this one, None for the first.
        user_id: On whose behalf the job runs, if that may be exported.
        tags: Tags of the trace.
        started_ns: When it was claimed, nanoseconds since the Unix epoch; None: now.
        wait_ms: How long the job had waited for this leg, milliseconds; None if it did not wait.
        wait_reason: What for: `queue`, `backoff` or `service`.
        answered: Questions that were answered since the leg before.
        parent_job_id: The job that enqueued it as its child.
        parent_leg: The leg of that job in which it did.
    """

    job_id: str
    leg: int
    graph: str
    thread_id: str
    worker: str
    attempts: int
    previous_leg: int | None = None
    user_id: str | None = None
    tags: tuple[str, ...] = ()
    started_ns: int | None = None
    wait_ms: int | None = None
    wait_reason: str | None = None
    answered: tuple[AnsweredReview, ...] = ()
    parent_job_id: str | None = None
    parent_leg: int | None = None

    @property
    def trace_id(self) -> str:
        """The leg's trace."""
        return identity.trace_id(self.job_id, self.leg)

    @property
    def root_span_id(self) -> str:
        """The leg's root span."""
        return identity.root_span_id(self.job_id, self.leg)


@dataclass(frozen=True)
class Ending:
    """How a leg ended whose process cannot tell any more.

    Attributes:
        outcome: What it came to, in a word: `died`, or `released` if it never began.
        ended_ns: The last moment known of it, nanoseconds since the Unix epoch.
        reason: In a sentence.
        is_failure: Whether that is an error.
        goes_on: Whether the job goes on without a person.
        apart: Whether it was the process of the job alone that ended, and its worker lived.
    """

    outcome: str
    ended_ns: int
    reason: str
    is_failure: bool = True
    goes_on: bool = True
    apart: bool = False


@dataclass
class EffectSpan:
    """The span of one effect.

    Attributes:
        state: The effect's state in the ledger; set it before the block ends.
    """

    state: str | None = None


class Leg:
    """A leg that is not recorded."""

    @property
    def callbacks(self) -> list[BaseCallbackHandler]:
        """What to append to the run's `config["callbacks"]`; empty when nothing is recorded."""
        return []

    @property
    def buffer(self) -> SpanBuffer | None:
        """Its finished spans that wait for a write to the record; None when they do not go there."""
        return None

    def describe(self, description: LegDescription) -> None:
        """Say more of the leg than was known when it was made; before it is entered."""

    def enqueued(self, job_id: str, graph: str) -> None:
        """A node enqueued a job; its first leg's trace can be named already.

        Args:
            job_id: The job's public id.
            graph: Its graph.
        """

    def met_outage(self, service: str, symptom: str) -> None:
        """The leg ends because a service is out."""

    def outcome(
        self, outcome: Outcome | None, *, error: BaseException | None = None, detail: str = "", reason: str = ""
    ) -> None:
        """Tell how the leg ended, before it is left; what is told last counts.

        Args:
            outcome: `done`, `review` (a person must decide), `parked` (it waits for a signal or a moment), `retry` (it
                will be tried again), `failed`, `released` (given back without counting the attempt), or `lost`
                (another worker has the job). None: nobody knows.
            error: What went wrong, if anything did; an interrupt is not.
            detail: One sentence for people.
            reason: Why an error led to that outcome, as the job's history has it.
        """

    def price_by(self, prices: Mapping[str, Price]) -> None:
        """Tell what model calls cost, on their spans, by the user's prices too; call it before the leg is entered.

        Args:
            prices: US dollars for a million tokens, by model name.
        """

    def committed(self, checkpoint_id: str, checkpoint_ns: str = "") -> None:
        """Tell that a checkpoint is stored: steps that start from now on run from it.

        Args:
            checkpoint_id: The checkpoint.
            checkpoint_ns: Its namespace; empty for the root graph.
        """

    def finish(self) -> None:
        """Before it is left, as far as they go to the record: end its spans, the root with the outcome told so far."""

    @contextmanager
    def effect(self, name: str, key_digest: str) -> Generator[EffectSpan]:
        """Record an effect under the node or tool that performs it.

        Args:
            name: The effect's declared name.
            key_digest: A digest of its key; the key itself never leaves the record.
        """
        yield EffectSpan()

    def __enter__(self) -> Leg:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


UNRECORDED = Leg()

current: ContextVar[Leg] = ContextVar("everstep_leg", default=UNRECORDED)
"""The leg that runs here; LangGraph copies it into its tasks and threads."""
