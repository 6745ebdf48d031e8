"""The form of a rule, and the rules that several tables share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["retry", "review", "failed"]
Symptom = Literal["service_unavailable", "rate_limited", "usage_limit", "payment_failed", "subscription_ended"]


@dataclass(frozen=True)
class Rule:
    """What an exception type means.

    Attributes:
        kind: What becomes of the job.
        reason: Why, for the person who reads the job's evidence.
        surely_not_sent: Whether the outside world surely did not act.
        outage: What it tells of the service as a whole, if it tells anything certain: then other jobs that need the
            service meet the same.
        wraps: The library raises this type for several causes, so the cause decides if a rule knows it, and this rule
            otherwise.
    """

    kind: Kind
    reason: str
    surely_not_sent: bool = False
    outage: Symptom | None = None
    wraps: bool = False


REFUSED = Rule("retry", "no connection could be made", surely_not_sent=True, outage="service_unavailable")
NO_SLOT = Rule("retry", "no connection of the pool became free in time", surely_not_sent=True)
LOST = Rule("retry", "the connection was lost; the request may have arrived")
TIMED_OUT = Rule("retry", "no answer came in time; the request may have arrived")
BROKEN_ANSWER = Rule("retry", "the answer arrived damaged; the request has arrived")
WRAPPED_LOSS = Rule("retry", "the connection failed; the request may have arrived", wraps=True)
WRAPPED_TIMEOUT = Rule("retry", "no answer came in time; the request may have arrived", wraps=True)
UNTRUSTED = Rule("review", "the server's certificate is not trusted", surely_not_sent=True)
WRAPPED_TLS = Rule("retry", "no secure connection could be made", wraps=True)
NO_WAY = Rule(
    "review", "access was refused; a person must look at the credentials or permissions", surely_not_sent=True
)
NO_CREDENTIALS = Rule("review", "this machine has no usable credentials for the service", surely_not_sent=True)
MISCONFIGURED = Rule("review", "the client is not configured for this call; nothing was sent", surely_not_sent=True)
INPUT = Rule("failed", "the input is invalid")
NO_ADDRESS = Rule("failed", "the address is invalid; nothing was sent", surely_not_sent=True)
NOT_SENDABLE = Rule("failed", "the client refused the arguments as invalid; nothing was sent", surely_not_sent=True)
REFUSED_REQUEST = Rule("failed", "the service refused the request as invalid", surely_not_sent=True)
CODE = Rule("review", "the graph's code failed; mend it, then let the job go on from its last checkpoint")
LIMIT = Rule("review", "a limit was reached; a person decides whether to go on")
OUTPUT = Rule("retry", "the model's output could not be understood; another try may give a better one")
REFUSAL = Rule("review", "the model declined; asking again is unlikely to help")
TOO_LONG = Rule("review", "the conversation no longer fits into the model's context", surely_not_sent=True)
NO_MODEL = Rule("review", "the provider has no such model", surely_not_sent=True)
CONFLICT = Rule("review", "the service reports a conflict; it may have been done before")
ABORTED = Rule("retry", "the service aborted it because of another change at the same time")
SLOW_DOWN = Rule("retry", "the service asks for fewer requests", surely_not_sent=True, outage="rate_limited")
OVERLOADED = Rule("retry", "the service is overloaded; it may have acted", outage="service_unavailable")
FAILING = Rule("retry", "the service failed; it may have acted")
OUT_OF_QUOTA = Rule("retry", "the account's usage limit is reached", surely_not_sent=True, outage="usage_limit")
UNPAID = Rule("review", "the service could not bill the account", surely_not_sent=True, outage="payment_failed")
ENDED = Rule("review", "the account is not active or not subscribed", surely_not_sent=True, outage="subscription_ended")
BUSY = Rule("retry", "the machine is short of something; that may pass")
DATABASE = Rule("retry", "the database was busy or could not be reached")
UNSURE = Rule("review", "what happened cannot be told from the error; a person must look")
UNKNOWN = Rule("review", "no rule knows this error; when in doubt, a person decides")
INVALID_ANSWER = Rule("review", "a person's answer does not have the form the question asks for")
