"""What becomes of a job whose graph raised: retry, review or failed, by the exception's type and never by its text.

The first that knows the exception decides, and of several types the most specific one:
1. what the program registered (`register`);
2. exception groups: review if any member says so, else failed, else retry;
3. a code in the service's answer that says more than its status (`rules.codes`), SQLSTATE, gRPC's status;
4. Everstep's own errors and those of imported libraries (`rules.loaded`);
5. an HTTP status on the exception or its response, whatever SDK it is from;
6. numbers that tell kinds apart (SQLite's result code, an `OSError`'s errno), and Python's own types;
7. what caused it, if a type nobody knows wraps it: explicitly (`raise … from …`), else implicitly; and a `ValueError`
   that was explicitly raised from something else is such a wrapper too;
8. nobody: review.

A cause can make a wrapper a retry or a review, but not failed: what ends a job must be certain. Nor is a wrapper taken
for surely not sent, nor any error of a client that may have tried before (`earlier_tries`): the last of several tries
tells nothing of the first.
"""

from __future__ import annotations

import sqlite3
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast, get_args
from urllib.error import URLError

from langgraph.errors import is_invalid_resume

from everstep.clock import SystemClock
from everstep.errors import EffectRejected
from everstep.runtime.attributes import chain_of, read
from everstep.runtime.earlier_tries import may_have_tried_before
from everstep.runtime.retry_after import retry_after_ms
from everstep.runtime.rules import python
from everstep.runtime.rules.codes import CODES, CODES_WITHOUT_STATUS, rule_by_code
from everstep.runtime.rules.grpc_status import rule_by_grpc
from everstep.runtime.rules.loaded import loaded_library_rules
from everstep.runtime.rules.own import OWN
from everstep.runtime.rules.rule import (
    DATABASE,
    FAILING,
    INVALID_ANSWER,
    REFUSED,
    UNKNOWN,
    UNSURE,
    UNTRUSTED,
    Kind,
    Rule,
)
from everstep.runtime.rules.rule import Symptom as Symptom
from everstep.runtime.rules.sqlstate import rule_by_sqlstate
from everstep.runtime.rules.status import status_rule
from everstep.runtime.upstream import service_of

_registered: dict[type[BaseException], Rule] = {}
_CAUSES = 16


@dataclass(frozen=True)
class Verdict:
    """What an exception means for the job.

    Attributes:
        kind: `retry` after a backoff, `review` by a person, or `failed` for good.
        retry_after_ms: How long the service asked to wait, in milliseconds, if it did and the job is retried.
        surely_not_sent: The outside world surely did not act, so an effect that raised this may run again.
        reason: Why, in words.
        rule: Which rule decided: a type's name, `status 503`, `default`, ….
        outage: What it tells of the service as a whole: `service_unavailable`, `rate_limited`, `usage_limit`,
            `payment_failed` or `subscription_ended`; None if it concerns this request only, or nothing is certain.
        service: The service: the request's host (`api.openai.com`), else the library (`botocore`); None if unknown.
    """

    kind: Kind
    retry_after_ms: int | None
    surely_not_sent: bool
    reason: str
    rule: str
    outage: Symptom | None = None
    service: str | None = None


@dataclass(frozen=True)
class Found:
    """The rule that decides, by name, and the exception it is about: the one raised, a cause or a member of it."""

    name: str
    rule: Rule
    error: BaseException


def classify(error: BaseException, *, now_ms: int | None = None) -> Verdict:
    """Decide what an exception means for the job that raised it.

    Args:
        error: What the graph raised.
        now_ms: The current time, for a `Retry-After` that is a date; the system's when omitted.
    """
    found = deciding_rule(error)
    rule = found.rule
    now = SystemClock().now_ms() if now_ms is None else now_ms
    return Verdict(
        kind=rule.kind,
        retry_after_ms=_wait_ms(error, found, now) if rule.kind == "retry" else None,
        surely_not_sent=_surely(error, found),
        reason=rule.reason,
        rule=found.name,
        outage=rule.outage,
        service=service_of(error) or service_of(found.error),
    )


def register(
    exception_type: type[BaseException], kind: Kind, surely_not_sent: bool = False, outage: Symptom | None = None
) -> None:
    """Say what an exception type of your own means; it goes before every other rule, for its subclasses too.

    Args:
        exception_type: The type.
        kind: `retry`, `review` or `failed`.
        surely_not_sent: Whether the outside world surely did not act when it is raised.
        outage: What it tells of the service as a whole, as in `Verdict`.

    Raises:
        ValueError: `kind` is none of the three, or `outage` no symptom.
    """
    if kind not in ("retry", "review", "failed"):
        raise ValueError(f"kind is retry, review or failed, not {kind!r}")
    if outage is not None and outage not in get_args(Symptom):
        raise ValueError(f"outage is one of {', '.join(get_args(Symptom))}, not {outage!r}")
    reason = f"{exception_type.__qualname__} is registered as {kind}"
    _registered[exception_type] = Rule(kind, reason, surely_not_sent, outage)


def deciding_rule(error: BaseException) -> Found:
    """The rule that decides what an exception means."""
    return _rule(error, _CAUSES)


def _surely(error: BaseException, found: Found) -> bool:
    if isinstance(error, EffectRejected):
        return True
    if found.name.startswith("registered ") or not found.rule.surely_not_sent:
        return found.rule.surely_not_sent
    return not may_have_tried_before(error)


def _wait_ms(error: BaseException, found: Found, now_ms: int) -> int | None:
    """The longest wait that the exception, what decided, or any member of a group asks for."""
    asking = [error, found.error]
    if isinstance(error, BaseExceptionGroup):
        asking += cast(BaseExceptionGroup[BaseException], error).exceptions
    waits = [retry_after_ms(one, now_ms) for one in asking]
    return max((wait for wait in waits if wait is not None), default=None)


def _rule(error: BaseException, causes: int) -> Found:
    return (
        _by_registration(error)
        or _by_members(error, causes)
        or _named(error, rule_by_code(error, CODES))
        or _named(error, rule_by_sqlstate(error))
        or _named(error, rule_by_grpc(error))
        or _by_library(error, causes)
        or _by_status(error)
        or _named(error, rule_by_code(error, CODES_WITHOUT_STATUS))
        or _by_number(error)
        or _by_builtin(error, causes)
        or _by_cause(error, causes)
        or Found("default", UNKNOWN, error)
    )


def _named(error: BaseException, rule: tuple[str, Rule] | None) -> Found | None:
    return Found(*rule, error) if rule else None


def _by_registration(error: BaseException) -> Found | None:
    for kind in type(error).__mro__:
        if kind in _registered:
            return Found(f"registered {kind.__qualname__}", _registered[kind], error)
    return None


def _by_members(error: BaseException, causes: int) -> Found | None:
    if not isinstance(error, BaseExceptionGroup) or causes == 0:
        return None
    members = [_rule(member, causes - 1) for member in cast(BaseExceptionGroup[BaseException], error).exceptions]
    surely = all(_surely(member.error, member) for member in members)
    for kind in ("review", "failed", "retry"):
        for member in members:
            if member.rule.kind == kind:
                return Found(f"group: {member.name}", replace(member.rule, surely_not_sent=surely), member.error)
    return None


def _by_library(error: BaseException, causes: int) -> Found | None:
    if is_invalid_resume(error):
        return Found("langgraph invalid resume", INVALID_ANSWER, error)
    libraries = loaded_library_rules()
    for kind in type(error).__mro__:
        if kind in OWN:
            return Found(f"everstep {kind.__qualname__}", OWN[kind], error)
        if kind not in libraries:
            continue
        name, rule = libraries[kind]
        if rule is DATABASE and isinstance(read(error, "orig"), sqlite3.Error):
            return _by_number(read(error, "orig")) or Found(name, UNKNOWN, error)
        if rule is REFUSED and _is_untrusted(error):
            return Found(name, UNTRUSTED, error)
        better = _by_wrapped_cause(error, name, causes) if rule.wraps else None
        if rule is FAILING:
            better = _by_status(error)
        return better or Found(name, rule, error)
    return None


def _by_wrapped_cause(error: BaseException, name: str, causes: int) -> Found | None:
    """What a library's own wrapper is about. It proves what its cause proves, but it cannot end a job either."""
    cause = _cause(error)
    if cause is None or causes == 0:
        return None
    found = _rule(cause, causes - 1)
    if found.rule is UNKNOWN:
        return None
    rule = replace(UNSURE, surely_not_sent=found.rule.surely_not_sent) if found.rule.kind == "failed" else found.rule
    return Found(f"{name}: {found.name}", rule, found.error)


def _is_untrusted(error: BaseException) -> bool:
    return any(isinstance(link, ssl.SSLCertVerificationError) for link in chain_of(error))


def _by_status(error: BaseException) -> Found | None:
    for status in _statuses(error):
        if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
            return Found(f"status {int(status)}", status_rule(int(status)), error)
    return None


def _statuses(error: BaseException) -> Iterator[Any]:
    """What may be an HTTP status, where clients keep it."""
    response = read(error, "response")
    for name in ("status_code", "status", "http_status"):
        yield read(error, name)
    for name in ("status_code", "status"):
        yield read(response, name)
    if isinstance(response, Mapping):
        metadata: Any = cast(Mapping[str, Any], response).get("ResponseMetadata")
        yield cast(Mapping[str, Any], metadata).get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
    yield read(error, "code")


def _by_number(error: BaseException) -> Found | None:
    if isinstance(error, sqlite3.Error):
        code = read(error, "sqlite_errorcode")
        if isinstance(code, int) and code & 0xFF in python.SQLITE_TRANSIENT:
            return Found(f"sqlite {read(error, 'sqlite_errorname') or code}", DATABASE, error)
    if isinstance(error, OSError) and error.errno in python.TRANSIENT_ERRNOS:
        return Found(f"errno {error.errno}", python.TRANSIENT, error)
    reason = read(error, "reason") if isinstance(error, URLError) else None
    if isinstance(reason, BaseException):
        return _rule(reason, 0)
    return None


def _by_builtin(error: BaseException, causes: int) -> Found | None:
    for kind in type(error).__mro__:
        if kind in python.BUILTINS:
            rule = python.BUILTINS[kind]
            caused = _by_cause(error, causes) if rule.kind == "failed" and error.__cause__ else None
            return caused or Found(kind.__qualname__, rule, error)
    return None


def _by_cause(error: BaseException, causes: int) -> Found | None:
    cause = _cause(error)
    if cause is None or causes == 0:
        return None
    found = _rule(cause, causes - 1)
    if found.rule.kind == "failed" or found.rule is UNKNOWN:
        return None
    return Found(f"cause: {found.name}", replace(found.rule, surely_not_sent=False), found.error)


def _cause(error: BaseException) -> BaseException | None:
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)
