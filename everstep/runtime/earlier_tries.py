"""Whether a client had tried before: then the last error does not tell what became of the first request.

"Connection refused" proves that nothing was sent only if it was the first try. Clients that retry by themselves leave
traces of it: a counter in the request's headers, in the response's metadata, or in the variables of the function that
retried, which the exception's traceback still holds. Nothing found is no proof. Nor is any status of gRPC: its channels
retry by themselves, and UNAVAILABLE is also what a broken connection looks like
(https://grpc.io/docs/guides/status-codes).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from everstep.runtime.attributes import chain_of, frames_of, libraries_of, read
from everstep.runtime.rules.grpc_status import is_rpc_error

RETRY_BY_THEMSELVES = frozenset({"openai", "anthropic", "botocore", "google", "requests", "urllib3"})
"""Packages whose errors prove something only with proof that it was the first try."""

_TRIED_TWICE_BY_AIOHTTP = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
_COUNTER = "x-stainless-retry-count"


def may_have_tried_before(error: BaseException) -> bool:
    """Whether the client may have sent the request before the try that raised this.

    Args:
        error: The exception as the caller of the client got it.
    """
    found = set(_tries(error))
    if True in found:
        return True
    return False not in found and retries_by_itself(error)


def is_from_grpc(error: BaseException) -> bool:
    """Whether the status of an error came over gRPC, and so proves nothing."""
    if is_rpc_error(error):
        return True
    over_http = isinstance(read(read(error, "response"), "status_code"), int)
    return type(error).__module__.startswith("google.api_core") and not over_http


def retries_by_itself(error: BaseException) -> bool:
    """Whether the exception is of a package whose clients retry by themselves unless told otherwise."""
    return not RETRY_BY_THEMSELVES.isdisjoint(libraries_of(error))


def _tries(error: BaseException) -> Iterator[bool]:
    """What each trace says: True for earlier tries, False for none."""
    response = read(error, "response")
    request = read(error, "request") or read(response, "request")
    counted = _header(read(request, "headers"), _COUNTER)
    if counted.isdecimal():
        yield int(counted) > 0
    if isinstance(response, Mapping):
        metadata: Any = cast(Mapping[str, Any], response).get("ResponseMetadata")
        tries: Any = cast(Mapping[str, Any], metadata).get("RetryAttempts") if isinstance(metadata, Mapping) else None
        if isinstance(tries, int):
            yield tries > 0
    history = read(read(read(response, "raw"), "retries"), "history")
    if isinstance(history, tuple):
        yield len(cast(tuple[Any, ...], history)) > 0
    if is_from_grpc(error):
        yield True
    for link in chain_of(error):
        yield from _tries_in_frames(link)


def _tries_in_frames(error: BaseException) -> Iterator[bool]:
    """What the variables of retrying functions say, each named with the library that it belongs to."""
    from_genai = type(error).__module__.startswith("google.genai")
    for frame in frames_of(error):
        module = str(frame.f_globals.get("__name__", ""))
        names = frame.f_locals
        if module == "requests.adapters" and frame.f_code.co_name == "send":
            if read(read(names.get("self"), "max_retries"), "total") in (0, False):
                yield False
        elif module == "botocore.endpoint" and frame.f_code.co_name == "_send_request":
            if isinstance(names.get("attempts"), int):
                yield names["attempts"] > 1
        elif module.startswith("google.api_core.retry"):
            if isinstance(names.get("error_list"), list):
                yield len(names["error_list"]) > 1
        elif module == "aiohttp.client" and frame.f_code.co_name == "_request":
            idempotent = str(names.get("method")).upper() in _TRIED_TWICE_BY_AIOHTTP
            if idempotent and names.get("retry_persistent_connection") is False:
                yield True
        elif module == "google.genai._api_client" and frame.f_code.co_name == "_async_request_once":
            options = read(read(names.get("self"), "_http_options"), "retry_options")
            if options is None and type(error).__module__.startswith("aiohttp"):
                yield True  # over aiohttp it tries twice unless it is told how often
        elif module.startswith("tenacity"):
            number = read(names.get("retry_state"), "attempt_number")
            if isinstance(number, int) and (number > 1 or from_genai):
                yield number > 1


def _header(headers: Any, name: str) -> str:
    try:
        return str(headers.get(name) or "")
    except Exception:
        return ""
