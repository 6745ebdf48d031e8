"""LangChain and LangGraph."""

from __future__ import annotations

from everstep.runtime.rules.rule import (
    FAILING,
    INPUT,
    LIMIT,
    NO_MODEL,
    NO_WAY,
    OUTPUT,
    REFUSAL,
    REFUSED_REQUEST,
    SLOW_DOWN,
    TIMED_OUT,
    TOO_LONG,
    UNSURE,
    WRAPPED_LOSS,
    WRAPPED_TIMEOUT,
    Rule,
)

AGENTS: dict[str, dict[str, Rule]] = {
    "langchain_core.exceptions": {
        "OutputParserException": OUTPUT,
        "ModelRateLimitError": SLOW_DOWN,
        "ModelAPIError": FAILING,
        "ModelConnectionError": WRAPPED_LOSS,
        "ModelTimeoutError": WRAPPED_TIMEOUT,
        "ModelAuthenticationError": NO_WAY,
        "ModelPermissionDeniedError": NO_WAY,
        "ModelNotFoundError": NO_MODEL,
        "ModelInvalidRequestError": REFUSED_REQUEST,
        "ModelRefusalError": REFUSAL,
        "ContextOverflowError": TOO_LONG,
    },
    "langchain_core.tools": {"ToolException": Rule("review", "a tool reported an error that the graph did not handle")},
    "langchain.agents.structured_output": {"StructuredOutputError": OUTPUT},
    "langchain.agents.middleware.model_call_limit": {"ModelCallLimitExceededError": LIMIT},
    "langchain.agents.middleware.tool_call_limit": {"ToolCallLimitExceededError": LIMIT},
    "langgraph.errors": {
        "GraphRecursionError": LIMIT,
        "NodeTimeoutError": TIMED_OUT,
        "NodeCancelledError": UNSURE,
        "InvalidUpdateError": Rule("failed", "a node returned what the graph's state cannot take"),
        "EmptyInputError": INPUT,
        "UnknownInterruptError": Rule("review", "the answer fits no question that is still open"),
    },
    "langgraph_sdk.errors": {"APITimeoutError": WRAPPED_TIMEOUT, "APIConnectionError": WRAPPED_LOSS},
}
