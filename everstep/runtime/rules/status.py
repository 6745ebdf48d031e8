"""What an HTTP status means, whatever SDK it is from (RFC 9110, section 15; RFC 6585 for 429)."""

from __future__ import annotations

from everstep.runtime.rules.rule import Rule

SITE_IS_OVERLOADED = 529
"""Not in a standard; several providers answer it when they are overloaded."""


def status_rule(status: int) -> Rule:
    """What an HTTP status of 400 or more means.

    429 and 503 say that nothing was done and to come back; 401, 402, 403 and 407 need a person; 409 may mean that it
    was done before; any other 4xx that the request is wrong; any other 5xx that the service failed, with or without
    having acted. Only 402, 429, 503 and 529 tell of the service as a whole: a 500, 502 or 504 may be the fault of this
    one request.

    Args:
        status: The status, 400 to 599.
    """
    if status == 429:
        return Rule("retry", "the service asks for fewer requests (429)", surely_not_sent=True, outage="rate_limited")
    if status == 503:
        return Rule(
            "retry", "the service asks to come back later (503)", surely_not_sent=True, outage="service_unavailable"
        )
    if status == 425:
        return Rule("retry", "the service asks to come back later (425)", surely_not_sent=True)
    if status == SITE_IS_OVERLOADED:
        return Rule("retry", "the service is overloaded (529); it may have acted", outage="service_unavailable")
    if status in (501, 505):
        return Rule("review", f"the service cannot do this ({status})", surely_not_sent=True)
    if status in (408, 499) or status >= 500:
        return Rule("retry", f"the service failed ({status}); it may have acted")
    if status == 402:
        return Rule("review", "the service asks for a payment (402)", surely_not_sent=True, outage="subscription_ended")
    if status in (401, 403, 407):
        return Rule("review", f"the service refused access ({status}); a person must look", surely_not_sent=True)
    if status == 409:
        return Rule("review", "the service reports a conflict (409); it may have been done before")
    return Rule("failed", f"the service refused the request as invalid ({status})", surely_not_sent=True)
