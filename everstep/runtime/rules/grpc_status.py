"""What a gRPC status means: of grpcio's own `RpcError`, as clients raise it that are made from a `.proto` file.

The codes are gRPC's (https://grpc.io/docs/guides/status-codes). The library raises one type for all of them, and gives
some itself when nothing has answered. None proves that nothing was done: channels retry by themselves, and UNAVAILABLE
is also what a broken connection looks like.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

from everstep.runtime.attributes import read
from everstep.runtime.rules.rule import (
    ABORTED,
    CONFLICT,
    FAILING,
    NO_WAY,
    REFUSED_REQUEST,
    TIMED_OUT,
    UNSURE,
    Rule,
)

_REFUSED = replace(REFUSED_REQUEST, surely_not_sent=False)
_EXHAUSTED = Rule("retry", "a quota, a rate or a size is exhausted; it may have acted")

GRPC: dict[str, Rule] = {
    "UNAVAILABLE": Rule("retry", "the service cannot be reached now; it may have acted", outage="service_unavailable"),
    "DEADLINE_EXCEEDED": TIMED_OUT,
    "RESOURCE_EXHAUSTED": _EXHAUSTED,
    "ABORTED": ABORTED,
    "INTERNAL": FAILING,
    "INVALID_ARGUMENT": _REFUSED,
    "OUT_OF_RANGE": _REFUSED,
    "NOT_FOUND": _REFUSED,
    "ALREADY_EXISTS": CONFLICT,
    "FAILED_PRECONDITION": Rule("review", "the service is not in a state that allows this"),
    "PERMISSION_DENIED": replace(NO_WAY, surely_not_sent=False),
    "UNAUTHENTICATED": replace(NO_WAY, surely_not_sent=False),
    "UNIMPLEMENTED": Rule("review", "the service cannot do this"),
    "CANCELLED": UNSURE,
    "UNKNOWN": UNSURE,
    "DATA_LOSS": UNSURE,
}
"""By the code's name. A `RetryInfo` beside RESOURCE_EXHAUSTED makes it `rate_limited` for all jobs of the service."""

_DETAILS = "grpc-status-details-bin"


def is_rpc_error(error: BaseException) -> bool:
    """Whether grpcio raised it; the library need not be imported."""
    return any((kind.__module__, kind.__name__) == ("grpc", "RpcError") for kind in type(error).__mro__)


def rule_by_grpc(error: BaseException) -> tuple[str, Rule] | None:
    """The rule of the status that grpcio's exception carries, with a name such as `grpc UNAVAILABLE`."""
    if not is_rpc_error(error):
        return None
    name = str(read(_asked(error, "code"), "name") or read(error, "error_code") or "without a status").upper()
    rule = GRPC.get(name, UNSURE)
    if rule is _EXHAUSTED and any(read(detail, "retry_delay") is not None for detail in grpc_details(error)):
        rule = replace(rule, outage="rate_limited")
    return f"grpc {name}", rule


def grpc_details(error: BaseException) -> list[Any]:
    """The protobuf messages beside the status that are known: `RetryInfo`, `ErrorInfo` and `QuotaFailure`.

    They come with the last metadata, as a `google.rpc.Status`; empty where `googleapis-common-protos` is missing.
    """
    metadata: Any = _asked(error, "trailing_metadata")
    for entry in cast("Iterable[Any]", metadata or ()):
        name, value = entry
        if name == _DETAILS and isinstance(value, bytes):
            return _unpacked(value)
    return []


def _unpacked(status: bytes) -> list[Any]:
    try:
        from google.protobuf.message import DecodeError
        from google.rpc import error_details_pb2, status_pb2
    except ImportError:
        return []
    known: list[Any] = []
    try:
        for packed in status_pb2.Status.FromString(status).details:
            for kind in (error_details_pb2.RetryInfo, error_details_pb2.ErrorInfo, error_details_pb2.QuotaFailure):
                message = kind()
                if packed.Unpack(message):
                    known.append(message)
    except DecodeError:
        pass  # a service may send what it likes
    return known


def _asked(error: BaseException, method: str) -> Any:
    """What a method without arguments says; None if it is missing or raises."""
    ask = read(error, method)
    try:
        return ask() if callable(ask) else None
    except Exception:
        return None
