"""What each known exception type means for a job: the tables behind `classify`.

Why the builtin types stand where they stand:

- `ValueError` and its kin (pydantic's `ValidationError`) say that the input is wrong: failed. Only JSON that does not
  parse goes to review, since it is as often a service's broken answer as the job's input.
- `TypeError`, `KeyError`, `AssertionError` and the like are faults in the graph's code. The input is innocent and the
  checkpoints are good: a person mends the code and lets the job go on, so they wait in review.
- `FileNotFoundError` may be a wrong path in the input or a program that is not installed: in doubt, review.
- A lost or reset connection and a timeout are retried; whether the request had arrived is unknown, which matters only
  inside an effect, and the effects ledger asks for exactly that (`surely_not_sent`).

Libraries are looked up only if the process has imported them.
"""

from __future__ import annotations

import errno
import json
import socket
import ssl
import subprocess
import sys
from asyncio import IncompleteReadError
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from everstep import errors

Kind = Literal["retry", "review", "failed"]


@dataclass(frozen=True)
class Rule:
    """What an exception type means.

    Attributes:
        kind: What becomes of the job.
        reason: Why, for the person who reads the job's evidence.
        surely_not_sent: Whether the outside world surely did not act.
    """

    kind: Kind
    reason: str
    surely_not_sent: bool = False


_REFUSED = Rule("retry", "no connection could be made", surely_not_sent=True)
_LOST = Rule("retry", "the connection was lost; the request may have arrived")
_TIMED_OUT = Rule("retry", "no answer came in time; the request may have arrived")
_NO_WAY = Rule(
    "review", "access was refused; a person must look at the credentials or permissions", surely_not_sent=True
)
_INPUT = Rule("failed", "the input is invalid")
_REFUSED_REQUEST = Rule("failed", "the service refused the request as invalid", surely_not_sent=True)
_CODE = Rule("review", "the graph's code failed; mend it, then let the job go on from its last checkpoint")
_LIMIT = Rule("review", "a limit was reached; a person decides whether to go on")
_OUTPUT = Rule("retry", "the model's output could not be understood; another try may give a better one")
_BUSY = Rule("retry", "the machine is short of something; that may pass")
_DATABASE = Rule("retry", "the database was busy or could not be reached")
_UNSURE = Rule("review", "what happened cannot be told from the error; a person must look")

BUILTINS: dict[type[BaseException], Rule] = {
    ConnectionRefusedError: _REFUSED,
    socket.gaierror: _REFUSED,
    socket.herror: _REFUSED,
    ssl.SSLCertVerificationError: Rule("review", "the server's certificate is not trusted", surely_not_sent=True),
    ssl.SSLError: _LOST,
    ConnectionError: _LOST,
    IncompleteReadError: _LOST,
    TimeoutError: _TIMED_OUT,
    subprocess.TimeoutExpired: _TIMED_OUT,
    subprocess.CalledProcessError: Rule("review", "a command failed; what it had done by then is unknown"),
    BlockingIOError: _BUSY,
    InterruptedError: _BUSY,
    MemoryError: _BUSY,
    PermissionError: Rule("review", "access was refused; a person must look at the permissions"),
    FileNotFoundError: Rule("review", "a file or program is missing: a wrong input, or a machine that lacks it"),
    json.JSONDecodeError: Rule("review", "text that should be JSON is not: the input, or a service's broken answer"),
    UnicodeError: _CODE,
    ValueError: _INPUT,
    TypeError: _CODE,
    LookupError: _CODE,
    AttributeError: _CODE,
    NameError: _CODE,
    AssertionError: _CODE,
    ArithmeticError: _CODE,
    ImportError: _CODE,
    NotImplementedError: _CODE,
    RecursionError: _CODE,
}

TRANSIENT_ERRNOS = frozenset(
    {
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EAGAIN,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EBUSY,
    }
)
"""Numbers of an `OSError` that may pass by themselves: the network is away, the machine is out of something."""

TRANSIENT = Rule("retry", "the network or the machine is short of something; that may pass")

_HTTPX = {
    "ConnectError": _REFUSED,
    "ConnectTimeout": _REFUSED,
    "PoolTimeout": _REFUSED,
    "TimeoutException": _TIMED_OUT,
    "TransportError": _LOST,
    "DecodingError": _LOST,
    "UnsupportedProtocol": _INPUT,
    "LocalProtocolError": _CODE,
    "TooManyRedirects": _UNSURE,
    "InvalidURL": _INPUT,
}

LIBRARIES: dict[str, dict[str, Rule]] = {
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "requests": {
        "ConnectTimeout": _REFUSED,
        "ReadTimeout": _TIMED_OUT,
        "Timeout": _TIMED_OUT,
        "ConnectionError": _LOST,
    },
    "requests.exceptions": {"ChunkedEncodingError": _LOST, "ContentDecodingError": _LOST},
    "http.client": {"IncompleteRead": _LOST},
    "langchain_core.exceptions": {
        "OutputParserException": _OUTPUT,
        "ModelRateLimitError": Rule("retry", "the model's provider asks for fewer requests", surely_not_sent=True),
        "ModelAPIError": Rule("retry", "the model's provider failed"),
        "ModelConnectionError": _LOST,
        "ModelTimeoutError": _TIMED_OUT,
        "ModelAuthenticationError": _NO_WAY,
        "ModelPermissionDeniedError": _NO_WAY,
        "ModelNotFoundError": Rule("review", "the provider has no such model", surely_not_sent=True),
        "ModelInvalidRequestError": _REFUSED_REQUEST,
        "ModelRefusalError": Rule("review", "the model declined; asking again is unlikely to help"),
        "ContextOverflowError": Rule("review", "the conversation no longer fits into the model's context"),
    },
    "langchain_core.tools": {"ToolException": Rule("review", "a tool reported an error that the graph did not handle")},
    "langchain.agents.structured_output": {"StructuredOutputError": _OUTPUT},
    "langchain.agents.middleware.model_call_limit": {"ModelCallLimitExceededError": _LIMIT},
    "langchain.agents.middleware.tool_call_limit": {"ToolCallLimitExceededError": _LIMIT},
    "langgraph.errors": {
        "GraphRecursionError": _LIMIT,
        "NodeTimeoutError": _TIMED_OUT,
        "NodeCancelledError": _UNSURE,
        "InvalidUpdateError": Rule("failed", "a node returned what the graph's state cannot take"),
        "EmptyInputError": _INPUT,
        "UnknownInterruptError": Rule("review", "the answer fits no question that is still open"),
    },
    "sqlalchemy.exc": {
        "TimeoutError": Rule("retry", "no database connection became free in time", surely_not_sent=True),
        "OperationalError": _DATABASE,
        "InterfaceError": _DATABASE,
        "DisconnectionError": _DATABASE,
    },
}

OWN: dict[type[BaseException], Rule] = {
    errors.VerificationFailed: Rule("review", "the verification did not pass"),
    errors.NodeExited: _CODE,
    errors.EffectInterrupted: Rule("retry", "an effect was interrupted; the next attempt finds out what became of it"),
    errors.ChangeRejected: Rule("failed", "a person rejected the change"),
    errors.ModelUnavailable: Rule("review", "the model cannot be had on this machine"),
    errors.StateNotSerializable: Rule("failed", "the state holds a value that cannot be stored"),
    errors.PayloadInvalid: _INPUT,
    errors.SecretInPayload: _INPUT,
    errors.StoreUnavailable: Rule("retry", "the record could not be reached"),
    errors.Cancelled: Rule("failed", "the job was cancelled"),
}

SQLITE_TRANSIENT = frozenset({5, 6, 10, 13, 14, 15})
"""SQLite's primary result codes BUSY, LOCKED, IOERR, FULL, CANTOPEN and PROTOCOL."""

DATABASE = _DATABASE
INVALID_ANSWER = Rule("review", "a person's answer does not have the form the question asks for")
UNKNOWN = Rule("review", "no rule knows this error; when in doubt, a person decides")


def loaded_library_rules() -> dict[type[BaseException], tuple[str, Rule]]:
    """The rules of the libraries that are imported, by type, each with its name."""
    return {kind: (name, rule) for kind, name, rule in _loaded()}


def status_rule(status: int) -> Rule:
    """What an HTTP status of 400 or more means.

    429 and 503 say that nothing was done and to come back; 401, 402, 403 and 407 need a person; 409 may mean that it
    was done before; any other 4xx that the request is wrong; any other 5xx that the service failed, with or without
    having acted.

    Args:
        status: The status, 400 to 599.
    """
    if status in (429, 503, 425):
        return Rule("retry", f"the service asks to come back later ({status})", surely_not_sent=True)
    if status == 408 or status >= 500:
        return Rule("retry", f"the service failed ({status}); it may have acted")
    if status in (401, 402, 403, 407):
        return Rule("review", f"the service refused access ({status}); a person must look", surely_not_sent=True)
    if status == 409:
        return Rule("review", "the service reports a conflict (409); it may have been done before")
    return Rule("failed", f"the service refused the request as invalid ({status})", surely_not_sent=True)


def _loaded() -> Iterator[tuple[type[BaseException], str, Rule]]:
    for module_name, rules in LIBRARIES.items():
        module = sys.modules.get(module_name)
        if module is None:
            continue
        for name, rule in rules.items():
            kind = getattr(module, name, None)
            if isinstance(kind, type) and issubclass(kind, BaseException):
                yield kind, f"{module_name}.{name}", rule
