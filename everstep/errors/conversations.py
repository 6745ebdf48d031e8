"""What can go wrong with threads, assistants and items of the store, as LangGraph's interface has them."""

from __future__ import annotations

from everstep.errors.base import EX_DATAERR, EX_NOINPUT, EX_NOPERM, EX_USAGE, EverstepError


class ThreadExists(EverstepError):
    """There is a thread with this id already."""

    code = "thread_exists"
    exit_code = EX_DATAERR


class ThreadHasNoGraph(EverstepError):
    """Nothing ever ran on the thread, and nobody said which graph is to."""

    code = "thread_has_no_graph"
    exit_code = EX_USAGE


class CheckpointNotFound(EverstepError):
    """The thread has no checkpoint with this id, or its graph no such subgraph."""

    code = "checkpoint_not_found"
    exit_code = EX_NOINPUT


class AssistantNotFound(EverstepError):
    """No assistant has this id, or this version, and no graph this name."""

    code = "assistant_not_found"
    exit_code = EX_NOINPUT


class AssistantExists(EverstepError):
    """There is an assistant with this id already."""

    code = "assistant_exists"
    exit_code = EX_DATAERR


class AssistantProtected(EverstepError):
    """The assistant belongs to its graph and to everybody."""

    code = "assistant_protected"
    exit_code = EX_NOPERM


class RequestInvalid(EverstepError):
    """A field of the request cannot be honoured as it is."""

    code = "request_invalid"
    exit_code = EX_USAGE
