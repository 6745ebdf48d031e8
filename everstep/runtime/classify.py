"""What becomes of a job whose graph raised: retry, review or failed, by the exception's type and never by its text.

The first that knows the exception decides, and of several types the most specific one:
1. what the program registered (`register`);
2. exception groups: review if any member says so, else failed, else retry;
3. Everstep's own errors and those of imported libraries (`error_rules`);
4. an HTTP status on the exception or its response, whatever SDK it is from;
5. numbers that tell kinds apart (SQLite's result code, an `OSError`'s errno), and Python's own types;
6. what caused it, if a type nobody knows wraps it: explicitly (`raise … from …`), else implicitly; and a `ValueError`
that
   was explicitly raised from something else is such a wrapper too;
7. nobody: review.

A cause can make a wrapper a retry or a review, but not failed: what ends a job must be certain. Nor is a wrapper ever
taken for surely not sent: a client that tried several times wraps the last error, and an earlier try may have arrived.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.error import URLError

from langgraph.errors import is_invalid_resume

from everstep.clock import SystemClock
from everstep.errors import EffectRejected
from everstep.runtime import error_rules
from everstep.runtime.error_rules import Kind, Rule
from everstep.runtime.retry_after import retry_after_ms

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
    """

    kind: Kind
    retry_after_ms: int | None
    surely_not_sent: bool
    reason: str
    rule: str


def classify(error: BaseException, *, now_ms: int | None = None) -> Verdict:
    """Decide what an exception means for the job that raised it.

    Args:
        error: What the graph raised.
        now_ms: The current time, for a `Retry-After` that is a date; the system's when omitted.
    """
    name, rule = _rule(error, _CAUSES)
    wait = retry_after_ms(error, SystemClock().now_ms() if now_ms is None else now_ms) if rule.kind == "retry" else None
    return Verdict(rule.kind, wait, rule.surely_not_sent or isinstance(error, EffectRejected), rule.reason, name)


def register(exception_type: type[BaseException], kind: Kind, surely_not_sent: bool = False) -> None:
    """Say what an exception type of your own means; it goes before every other rule, for its subclasses too.

    Args:
        exception_type: The type.
        kind: `retry`, `review` or `failed`.
        surely_not_sent: Whether the outside world surely did not act when it is raised.

    Raises:
        ValueError: `kind` is none of the three.
    """
    if kind not in ("retry", "review", "failed"):
        raise ValueError(f"kind is retry, review or failed, not {kind!r}")
    _registered[exception_type] = Rule(kind, f"{exception_type.__qualname__} is registered as {kind}", surely_not_sent)


def _rule(error: BaseException, causes: int) -> tuple[str, Rule]:
    found = _by_registration(error) or _by_members(error, causes) or _by_library(error) or _by_status(error)
    return (
        found
        or _by_number(error)
        or _by_builtin(error, causes)
        or _by_cause(error, causes)
        or ("default", error_rules.UNKNOWN)
    )


def _by_registration(error: BaseException) -> tuple[str, Rule] | None:
    for kind in type(error).__mro__:
        if kind in _registered:
            return f"registered {kind.__qualname__}", _registered[kind]
    return None


def _by_members(error: BaseException, causes: int) -> tuple[str, Rule] | None:
    if not isinstance(error, BaseExceptionGroup) or causes == 0:
        return None
    rules = [_rule(member, causes - 1) for member in cast(BaseExceptionGroup[BaseException], error).exceptions]
    for kind in ("review", "failed", "retry"):
        for name, rule in rules:
            if rule.kind == kind:
                surely = all(member.surely_not_sent for _, member in rules)
                return f"group: {name}", replace(rule, surely_not_sent=surely)
    return None


def _by_library(error: BaseException) -> tuple[str, Rule] | None:
    if is_invalid_resume(error):
        return "langgraph invalid resume", error_rules.INVALID_ANSWER
    libraries = error_rules.loaded_library_rules()
    for kind in type(error).__mro__:
        if kind in error_rules.OWN:
            return f"everstep {kind.__qualname__}", error_rules.OWN[kind]
        if kind in libraries:
            name, rule = libraries[kind]
            original = getattr(error, "orig", None)
            if rule is error_rules.DATABASE and isinstance(original, sqlite3.Error):
                return _by_number(original) or (name, error_rules.UNKNOWN)
            return name, rule
    return None


def _by_status(error: BaseException) -> tuple[str, Rule] | None:
    response: Any = getattr(error, "response", None)
    candidates = [getattr(error, name, None) for name in ("status_code", "status", "http_status", "code")]
    candidates += [getattr(response, name, None) for name in ("status_code", "status")]
    if isinstance(response, Mapping):
        metadata: Any = cast(Mapping[str, Any], response).get("ResponseMetadata")
        candidates.append(
            cast(Mapping[str, Any], metadata).get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
        )
    for status in candidates:
        if isinstance(status, int) and not isinstance(status, bool) and 400 <= status <= 599:
            return f"status {int(status)}", error_rules.status_rule(int(status))
    return None


def _by_number(error: BaseException) -> tuple[str, Rule] | None:
    if isinstance(error, sqlite3.Error):
        code: Any = getattr(error, "sqlite_errorcode", None)
        if isinstance(code, int) and code & 0xFF in error_rules.SQLITE_TRANSIENT:
            return f"sqlite {getattr(error, 'sqlite_errorname', code)}", error_rules.DATABASE
    if isinstance(error, OSError) and error.errno in error_rules.TRANSIENT_ERRNOS:
        return f"errno {error.errno}", error_rules.TRANSIENT
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        return _rule(error.reason, 0)
    return None


def _by_builtin(error: BaseException, causes: int) -> tuple[str, Rule] | None:
    for kind in type(error).__mro__:
        if kind in error_rules.BUILTINS:
            rule = error_rules.BUILTINS[kind]
            caused = _by_cause(error, causes) if rule.kind == "failed" and error.__cause__ else None
            return caused or (kind.__qualname__, rule)
    return None


def _by_cause(error: BaseException, causes: int) -> tuple[str, Rule] | None:
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is None or causes == 0:
        return None
    name, rule = _rule(cause, causes - 1)
    if rule.kind == "failed" or rule is error_rules.UNKNOWN:
        return None
    return f"cause: {name}", replace(rule, surely_not_sent=False)
