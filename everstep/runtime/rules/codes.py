"""Codes in a service's error: the fields an SDK parses for programs to read, never the text for people.

`CODES` are more precise than the HTTP status: OpenAI answers 429 both for a moment's rate and for an account without
credit. `CODES_WITHOUT_STATUS` are asked only when there is no error status, as in the middle of a stream, when the
request has arrived.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from everstep.runtime.attributes import libraries_of, read
from everstep.runtime.rules.grpc_status import grpc_details, is_rpc_error
from everstep.runtime.rules.rule import (
    ABORTED,
    CONFLICT,
    ENDED,
    FAILING,
    LIMIT,
    NO_MODEL,
    NO_WAY,
    OUT_OF_QUOTA,
    OVERLOADED,
    SLOW_DOWN,
    TIMED_OUT,
    TOO_LONG,
    UNPAID,
    Rule,
)

_AWS_THROTTLED = (
    "Throttling ThrottlingException ThrottledException RequestThrottled RequestThrottledException "
    "EC2ThrottledException TooManyRequestsException ProvisionedThroughputExceededException RequestLimitExceeded "
    "BandwidthLimitExceeded SlowDown PriorRequestNotComplete"
).split()
_AWS_NO_WAY = (
    "AccessDenied AccessDeniedException UnauthorizedOperation UnauthorizedException AuthFailure NotAuthorized "
    "ExpiredToken ExpiredTokenException RequestExpired InvalidClientTokenId InvalidAccessKeyId InvalidToken "
    "UnrecognizedClientException SignatureDoesNotMatch InvalidSignatureException IncompleteSignature "
    "MissingAuthenticationToken MissingAuthenticationTokenException"
).split()

CODES: dict[str, dict[str, Rule]] = {
    "openai": {
        "insufficient_quota": OUT_OF_QUOTA,
        "billing_hard_limit_reached": OUT_OF_QUOTA,
        "billing_not_active": ENDED,
        "account_deactivated": ENDED,
        "context_length_exceeded": TOO_LONG,
        "model_not_found": NO_MODEL,
    },
    "anthropic": {
        "contract_spend_limit_reached": OUT_OF_QUOTA,
        "enforced_spend_limit_reached": OUT_OF_QUOTA,
        "linked_organization_spend_limit_reached": OUT_OF_QUOTA,
        "linked_organization_billing_unavailable": UNPAID,
        "user_profile_not_billable": UNPAID,
        "organization_on_hold": NO_WAY,
        "billing_error": UNPAID,
    },
    "google": {
        "BILLING_DISABLED": UNPAID,
        "CONSUMER_SUSPENDED": ENDED,
        "RESOURCE_QUOTA_EXCEEDED": OUT_OF_QUOTA,
        "API_KEY_INVALID": NO_WAY,
        "API_KEY_EXPIRED": NO_WAY,
    },
    "botocore": {
        **dict.fromkeys(_AWS_THROTTLED, SLOW_DOWN),
        **dict.fromkeys(_AWS_NO_WAY, NO_WAY),
        "OptInRequired": ENDED,
        "SubscriptionRequiredException": ENDED,
        "ServiceQuotaExceededException": Rule("review", "a quota of the account is used up", True, "usage_limit"),
        "LimitExceededException": LIMIT,
        "RequestTimeout": TIMED_OUT,
        "RequestTimeoutException": TIMED_OUT,
        "TransactionInProgressException": ABORTED,
        "TransactionConflictException": ABORTED,
        "ConditionalCheckFailedException": CONFLICT,
    },
}

CODES_WITHOUT_STATUS: dict[str, dict[str, Rule]] = {
    "openai": {
        "rate_limit_exceeded": Rule("retry", "the service asks for fewer requests", outage="rate_limited"),
        "server_error": FAILING,
    },
    "anthropic": {
        "rate_limit_error": Rule("retry", "the service asks for fewer requests", outage="rate_limited"),
        "overloaded_error": OVERLOADED,
        "api_error": FAILING,
        "timeout_error": TIMED_OUT,
    },
}


def rule_by_code(error: BaseException, tables: dict[str, dict[str, Rule]]) -> tuple[str, Rule] | None:
    """The rule of the first code that the exception's library knows, with a name such as `openai insufficient_quota`.

    Args:
        error: The exception.
        tables: `CODES` or `CODES_WITHOUT_STATUS`.
    """
    for library in libraries_of(error):
        known = tables.get("google" if library == "grpc" else library)
        for code in codes_of(error) if known else ():
            if known and code in known:
                return f"{library} {code}", known[code]
    return None


def codes_of(error: BaseException) -> Iterator[str]:
    """The codes an exception carries, the most precise first.

    OpenAI's `code` and `type`, Anthropic's `error_code` and `type`, botocore's `Error.Code`, and the `reason` of
    Google's `ErrorInfo`.
    """
    response = read(error, "response")
    if isinstance(response, Mapping):
        described: Any = cast(Mapping[str, Any], response).get("Error")
        if isinstance(described, Mapping):
            yield from _text(cast(Mapping[str, Any], described).get("Code"))
    for name in ("code", "error_code", "type", "reason"):
        yield from _text(read(error, name))
    for detail in details_of(error):
        yield from _text(detail.get("reason") if isinstance(detail, Mapping) else read(detail, "reason"))


def details_of(error: BaseException) -> list[Any]:
    """Google's list of error details, each a JSON object or a protobuf message; empty if there is none.

    Its form is that of `google.rpc.Status` (https://google.aip.dev/193).
    """
    if is_rpc_error(error):
        return grpc_details(error)
    details: Any = read(error, "details")
    if isinstance(details, Mapping):
        answer = cast(Mapping[str, Any], details)
        described: Any = answer.get("error", answer)
        details = cast(Mapping[str, Any], described).get("details") if isinstance(described, Mapping) else None
    return cast(list[Any], details) if isinstance(details, list) else []


def _text(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
