"""Every span name and attribute key that Everstep exports, in one place, because the conventions still move.

`gen_ai.*` keys follow the OpenTelemetry GenAI conventions of v1.41 (all in development status); `langfuse.*` keys are
what Langfuse reads from OTLP; `everstep.*` is our own namespace for what no convention names: legs, steps, effects,
checkpoints.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "everstep"

# ---- span names


def leg_span(graph: str) -> str:
    """The root span of a leg."""
    return f"invoke_agent {graph}"


def step_span(step: int | None, node: str) -> str:
    """One attempt at one node."""
    return f"step {step} {node}"


def model_span(operation: str, model: str | None) -> str:
    """One call of a model."""
    return f"{operation} {model}" if model else operation


def tool_span(tool: str) -> str:
    """One call of a tool."""
    return f"execute_tool {tool}"


def effect_span(effect: str) -> str:
    """One effect on the outside world."""
    return f"effect {effect}"


def review_span(kind: str) -> str:
    """The time a question waited for its answer."""
    return f"review {kind}"


def enqueue_span(graph: str) -> str:
    """A job that a node enqueued."""
    return f"enqueue {graph}"


# ---- who and where: on every span of a leg

SESSION_ID: Final = "session.id"
USER_ID: Final = "user.id"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
JOB_ID: Final = "everstep.job.id"
LEG: Final = "everstep.leg"
TRACE_NAME: Final = "langfuse.trace.name"
TRACE_TAGS: Final = "langfuse.trace.tags"
TRACE_METADATA_JOB_ID: Final = "langfuse.trace.metadata.job_id"
TRACE_METADATA_LEG: Final = "langfuse.trace.metadata.leg"
TRACE_METADATA_THREAD_ID: Final = "langfuse.trace.metadata.thread_id"
TRACE_METADATA_PREVIOUS_TRACE_ID: Final = "langfuse.trace.metadata.previous_trace_id"

# ---- the leg

WORKER: Final = "everstep.worker.id"
ATTEMPTS: Final = "everstep.attempts"
OUTCOME: Final = "everstep.outcome"
RESUME_COMMAND: Final = "everstep.resume_command"
RESUME_CHECKPOINT_ID: Final = "everstep.resume.checkpoint.id"
INTERRUPT_CHECKPOINT_ID: Final = "everstep.interrupt.checkpoint.id"
LINK_KIND: Final = "everstep.link.kind"
LINK_PREVIOUS_LEG: Final = "previous_leg"
LINK_PARENT: Final = "parent"
LINK_CHILD: Final = "child"
WAIT_S: Final = "everstep.wait_s"
WAIT_REASON: Final = "everstep.wait_reason"
SERVICE: Final = "everstep.service"
OUTAGE: Final = "everstep.outage"
PARENT_JOB_ID: Final = "everstep.parent.job.id"
CHILD_JOB_ID: Final = "everstep.child.job.id"
REVIEW_ID: Final = "everstep.review.id"
REVIEW_KIND: Final = "everstep.review.kind"
REVIEW_DECISION: Final = "everstep.review.decision"
SPANS_LOST: Final = "everstep.spans.lost"

# ---- steps and effects

STEP: Final = "everstep.step"
NODE: Final = "everstep.node"
NODE_ATTEMPT: Final = "everstep.node.attempt"
CHECKPOINT_NS: Final = "everstep.checkpoint.ns"
CHECKPOINT_ID: Final = "everstep.checkpoint.id"
INTERRUPT_IDS: Final = "everstep.interrupt.ids"
EFFECT_NAME: Final = "everstep.effect.name"
EFFECT_STATE: Final = "everstep.effect.state"
EFFECT_KEY_DIGEST: Final = "everstep.effect.key_digest"

# ---- failures

ERROR_TYPE: Final = "error.type"
WORKER_DIED: Final = "worker_died"
DIED: Final = "died"
"""The outcome of what ended with its worker."""
EXCEPTION_EVENT: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"

# ---- models and tools (GenAI conventions)

OPERATION: Final = "gen_ai.operation.name"
AGENT_NAME: Final = "gen_ai.agent.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_CREATION_TOKENS: Final = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
COST: Final = "gen_ai.usage.cost"
COST_SOURCE: Final = "everstep.cost.source"
"""US dollars; no convention names it, Langfuse reads it."""
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"

INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
TEXT_COMPLETION: Final = "text_completion"
EXECUTE_TOOL: Final = "execute_tool"

PROVIDERS: Final[dict[str, str]] = {
    "amazon_bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "google_anthropic_vertex": "gcp.vertex_ai",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "ibm": "ibm.watsonx.ai",
    "mistral": "mistral_ai",
    "mistralai": "mistral_ai",
    "xai": "x_ai",
}
"""LangChain's provider name to the convention's, where the two differ."""

# ---- what Langfuse reads besides

OBSERVATION_TYPE: Final = "langfuse.observation.type"
OBSERVATION_LEVEL: Final = "langfuse.observation.level"
OBSERVATION_STATUS_MESSAGE: Final = "langfuse.observation.status_message"
OBSERVATION_OUTPUT: Final = "langfuse.observation.output"
COST_DETAILS: Final = "langfuse.observation.cost_details"
COMPLETION_START_TIME: Final = "langfuse.observation.completion_start_time"
LEVEL_WARNING: Final = "WARNING"
TYPE_CHAIN: Final = "chain"


def observation_metadata(key: str) -> str:
    """A filterable top-level metadata key of a Langfuse observation."""
    return f"langfuse.observation.metadata.{key}"


ENVIRONMENT: Final = "deployment.environment.name"
RELEASE: Final = "langfuse.release"
