"""The callback handler that turns LangGraph's and LangChain's events into spans: nodes, model calls, tool calls.

Parents follow from LangChain's run ids, not from the current context: they hold in sync nodes (which run in threads),
in async nodes, in parallel branches and in subgraphs alike. A run that is not a node attempt (a chain inside a node, a
branch function, the graph itself) has no span of its own; what it starts lies under the span around it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.outputs import LLMResult
from langgraph.callbacks import GraphCallbackHandler, GraphInterruptEvent, GraphResumeEvent
from langgraph.errors import GraphInterrupt
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from everstep.observability import ambient, content, model_call, names
from everstep.observability.attributes import bounded
from everstep.observability.cost import NO_PRICES, Price, cost_of
from everstep.observability.failure import Failure, is_failure
from everstep.observability.guard import harmless, swallowed
from everstep.observability.open_spans import Frame, OpenSpans
from everstep.observability.place import Place

_STEP_TAG = "graph:step:"


@dataclass(slots=True)
class _Checkpoint:
    checkpoint_id: str
    step: object = None


class SpanHandler(GraphCallbackHandler):
    """Records one leg.

    Args:
        spans: Where the leg's spans are kept.
        resume_command: The command that takes the job up again; it stands on failing spans.
        prices: The user's prices of models.
    """

    run_inline = True

    def __init__(self, spans: OpenSpans, resume_command: str, prices: Mapping[str, Price] = NO_PRICES) -> None:
        self._spans = spans
        self._resume_command = resume_command
        self._prices = prices
        self._asked: dict[UUID, tuple[str | None, str | None]] = {}
        self._captures = content.is_captured()
        self._lock = threading.Lock()
        self._runs: dict[UUID, Frame] = {}
        self._entered: dict[UUID, Context] = {}
        self._attempts: dict[str, int] = {}
        self._failed_attempts: dict[str, Frame] = {}
        self._checkpoints: dict[str, _Checkpoint] = {}

    # ---- what others tell or ask

    def committed(self, checkpoint_id: str, checkpoint_ns: str) -> None:
        """Note the newest checkpoint of a graph or subgraph."""
        self._checkpoints[checkpoint_ns] = _Checkpoint(checkpoint_id)

    def frame_of(self, run_id: UUID | None) -> Frame:
        """The span that a run lies in; the leg itself for an unknown one."""
        return self._spans.root if run_id is None else self._runs.get(run_id, self._spans.root)

    def end(self, frame: Frame, error: BaseException | None, attributes: dict[str, object]) -> None:
        """End a span: as failed when the exception is a failure, else as it is."""
        frame.set(attributes)
        if error is None:
            self._spans.end(frame)
        elif is_failure(error):
            self._fail(frame, error)
        else:
            self._stop(frame, error)

    # ---- nodes

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: dict[str, Any],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        try:
            parent, told = self.frame_of(parent_run_id), metadata or {}
            if _is_attempt(parent, tags or (), told, kwargs.get("name")):
                self._start_attempt(run_id, parent, told)
            else:
                self._runs[run_id] = parent
        except Exception:
            swallowed("SpanHandler.on_chain_start")

    def _start_attempt(self, run_id: UUID, parent: Frame, told: Mapping[str, Any]) -> None:
        step, node = told.get("langgraph_step"), bounded(str(told.get("langgraph_node")))
        namespace = bounded(str(told.get("langgraph_checkpoint_ns", "")))
        attempt = self._count_attempt(namespace)
        checkpoint_id = self._checkpoint_of(namespace.rpartition("|")[0], step)
        place = Place(step if isinstance(step, int) else None, node, attempt, namespace, checkpoint_id)
        frame = self._spans.start(names.step_span(step, node), parent, {}, place=place)
        if frame is not None:
            self._runs[run_id] = frame
            self._entered[run_id] = ambient.enter(frame.span)

    def on_chain_end(self, outputs: dict[str, Any], *, run_id: UUID, **kwargs: Any) -> None:
        if run_id not in self._entered:  # no attempt at a node
            self._runs.pop(run_id, None)
            return
        try:
            frame, is_step = self._leave(run_id)
            if frame is not None and is_step:
                self._forget_attempts(frame)
                self._spans.end(frame)
        except Exception:
            swallowed("SpanHandler.on_chain_end")

    @harmless
    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        frame, is_step = self._leave(run_id)
        if frame is None or not is_step:
            return
        if is_failure(error):
            with self._lock:
                self._failed_attempts[frame.place.checkpoint_ns if frame.place else ""] = frame
        self.end(frame, error, {})

    def _leave(self, run_id: UUID) -> tuple[Frame | None, bool]:
        frame = self._runs.pop(run_id, None)
        before = self._entered.pop(run_id, None)
        if frame is None or before is None:
            return frame, False
        ambient.leave(frame.span, before)
        return frame, True

    def _checkpoint_of(self, graph_ns: str, step: object) -> str | None:
        """The checkpoint that a step runs from; one that an earlier step ran from is out of date."""
        checkpoint = self._checkpoints.get(graph_ns)
        if checkpoint is None:
            return None
        if checkpoint.step is None:
            checkpoint.step = step
        return checkpoint.checkpoint_id if checkpoint.step == step else None

    def _count_attempt(self, namespace: str) -> int:
        with self._lock:
            attempt = self._attempts[namespace] = self._attempts.get(namespace, 0) + 1
            failed = self._failed_attempts.pop(namespace, None)
        if failed is not None:
            self._spans.supersede(failed)
        return attempt

    def _forget_attempts(self, frame: Frame) -> None:
        namespace = frame.place.checkpoint_ns if frame.place else ""
        with self._lock:
            self._attempts.pop(namespace, None)
        self._checkpoints.pop(namespace, None)

    # ---- models

    @harmless
    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        prompt = content.messages(messages[0]) if self._captures and messages else None
        self._start_model(names.CHAT, prompt, run_id, parent_run_id, metadata or {}, kwargs)

    @harmless
    def on_llm_start(
        self,
        serialized: dict[str, Any],
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        prompt = content.texts("user", prompts) if self._captures else None
        self._start_model(names.TEXT_COMPLETION, prompt, run_id, parent_run_id, metadata or {}, kwargs)

    def _start_model(
        self,
        operation: str,
        prompt: str | None,
        run_id: UUID,
        parent_run_id: UUID | None,
        metadata: dict[str, Any],
        told: dict[str, Any],
    ) -> None:
        parameters: dict[str, Any] = told.get("invocation_params") or {}
        attributes = model_call.request_attributes(operation, metadata, parameters)
        model = model_call.request_model(metadata, parameters)
        frame = self._spans.start(
            names.model_span(operation, model),
            self.frame_of(parent_run_id),
            {**attributes, names.INPUT_MESSAGES: prompt},
            kind=SpanKind.CLIENT,
        )
        if frame is not None:
            self._runs[run_id] = frame
            self._asked[run_id] = (model, model_call.provider_name(metadata))

    def on_llm_new_token(self, token: str | list[str | dict[str, Any]], *, run_id: UUID, **kwargs: Any) -> None:
        self._first_chunk(run_id)

    def on_stream_event(self, event: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._first_chunk(run_id)

    @harmless
    def _first_chunk(self, run_id: UUID) -> None:
        frame = self._runs.get(run_id)
        if frame is None or frame.streams:
            return
        frame.streams = True
        frame.set(model_call.first_chunk_attributes(frame.started_ns, self._spans.now_ns()))

    @harmless
    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        frame = self._runs.pop(run_id, None)
        if frame is not None:
            self._spans.end(frame, self._answer(response, run_id))

    @harmless
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        frame = self._runs.pop(run_id, None)
        if frame is not None:
            partial = kwargs.get("response")
            self.end(frame, error, self._answer(partial, run_id) if isinstance(partial, LLMResult) else {})
        self._asked.pop(run_id, None)

    def _answer(self, response: LLMResult, run_id: UUID) -> dict[str, object]:
        attributes = model_call.response_attributes(response)
        asked, provider = self._asked.pop(run_id, (None, None))
        cost = cost_of(response, asked=asked, provider=provider, prices=self._prices)
        if cost is not None:
            attributes |= model_call.cost_attributes(cost.micros, cost.source)
        if self._captures:
            attributes[names.OUTPUT_MESSAGES] = content.answer(response, model_call.finish_reason(response))
        return attributes

    # ---- tools and retrievers

    @harmless
    def on_tool_start(
        self,
        serialized: dict[str, Any],
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        tool = str(serialized.get("name") or kwargs.get("name") or "tool")
        arguments = content.bounded_json(inputs if inputs is not None else input_str) if self._captures else None
        attributes: dict[str, object] = {
            names.OPERATION: names.EXECUTE_TOOL,
            names.TOOL_NAME: tool,
            names.TOOL_TYPE: "function",
            names.TOOL_CALL_ID: kwargs.get("tool_call_id"),
            names.TOOL_ARGUMENTS: arguments,
        }
        frame = self._spans.start(names.tool_span(tool), self.frame_of(parent_run_id), attributes)
        if frame is not None:
            self._runs[run_id] = frame

    @harmless
    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        frame = self._runs.pop(run_id, None)
        if frame is None:
            return
        result: object = output.content if isinstance(output, ToolMessage) else output  # pyright: ignore[reportUnknownMemberType]
        self._spans.end(frame, {names.TOOL_RESULT: content.bounded_json(result)} if self._captures else {})

    @harmless
    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        frame = self._runs.pop(run_id, None)
        if frame is not None:
            self.end(frame, error, {})

    @harmless
    def on_retriever_start(
        self,
        serialized: dict[str, Any],
        query: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self._runs[run_id] = self.frame_of(parent_run_id)

    @harmless
    def on_retriever_end(self, documents: Sequence[Any], *, run_id: UUID, **kwargs: Any) -> None:
        self._runs.pop(run_id, None)

    @harmless
    def on_retriever_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        self._runs.pop(run_id, None)

    # ---- pauses

    @harmless
    def on_interrupt(self, event: GraphInterruptEvent) -> None:
        self.committed(event.checkpoint_id, "|".join(event.checkpoint_ns))
        if not event.checkpoint_ns:
            self._set_checkpoint(names.INTERRUPT_CHECKPOINT_ID, "interrupt_checkpoint_id", event.checkpoint_id)

    @harmless
    def on_resume(self, event: GraphResumeEvent) -> None:
        self.committed(event.checkpoint_id, "|".join(event.checkpoint_ns))
        if not event.checkpoint_ns:
            self._set_checkpoint(names.RESUME_CHECKPOINT_ID, "resume_checkpoint_id", event.checkpoint_id)

    def _set_checkpoint(self, key: str, metadata_key: str, checkpoint_id: str) -> None:
        self._spans.root.set({key: checkpoint_id, names.observation_metadata(metadata_key): checkpoint_id})

    # ---- ends

    def _fail(self, frame: Frame, error: BaseException) -> None:
        resume = {
            names.RESUME_COMMAND: self._resume_command,
            names.observation_metadata("resume_command"): self._resume_command,
        }
        self._spans.fail(frame, Failure.of(error), resume)

    def _stop(self, frame: Frame, error: BaseException) -> None:
        if not isinstance(error, GraphInterrupt):
            self._spans.end(frame, {names.OUTCOME: type(error).__name__})
            return
        interrupts: Sequence[Any] = error.args[0] if error.args else ()
        attributes: dict[str, object] = {
            names.OUTCOME: "interrupted",
            names.OBSERVATION_STATUS_MESSAGE: "paused for review",
            names.INTERRUPT_IDS: [str(getattr(interrupt, "id", "")) for interrupt in interrupts],
        }
        if self._captures:
            asked = [{"id": getattr(one, "id", None), "value": getattr(one, "value", None)} for one in interrupts]
            attributes[names.OBSERVATION_OUTPUT] = content.bounded_json({"interrupts": asked})
        self._spans.end(frame, attributes)


def _is_attempt(parent: Frame, tags: Sequence[str], metadata: Mapping[str, Any], name: object) -> bool:
    """Whether a run is an attempt at a node.

    LangGraph tags those of a graph's nodes; a task of the functional API is known by a checkpoint namespace of its own.
    """
    for tag in tags:
        if tag.startswith(_STEP_TAG):
            return True
    namespace = metadata.get("langgraph_checkpoint_ns")
    is_own = namespace is not None and (parent.place is None or namespace != parent.place.checkpoint_ns)
    return is_own and name == metadata.get("langgraph_node")
