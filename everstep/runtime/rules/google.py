"""Google's libraries: google-api-core (the cloud clients), google-auth and google-genai.

The cloud clients raise the same types over REST and gRPC, with the HTTP status that corresponds, which decides where no
type is named here. google-genai's errors carry the HTTP status too.
"""

from __future__ import annotations

from everstep.runtime.rules.rule import (
    ABORTED,
    CONFLICT,
    NO_CREDENTIALS,
    TIMED_OUT,
    UNSURE,
    WRAPPED_LOSS,
    Rule,
)

GOOGLE: dict[str, dict[str, Rule]] = {
    "google.api_core.exceptions": {
        "DeadlineExceeded": TIMED_OUT,
        "Aborted": ABORTED,
        "AlreadyExists": CONFLICT,
        "FailedPrecondition": Rule("review", "the service is not in a state that allows this", surely_not_sent=True),
        "Cancelled": UNSURE,
        "Unknown": UNSURE,
        "DataLoss": UNSURE,
        "Redirection": UNSURE,
        "RetryError": WRAPPED_LOSS,
        "ResumableTransferError": Rule("retry", "a transfer broke off; a part of it may have arrived"),
    },
    "google.auth.exceptions": {
        "TransportError": WRAPPED_LOSS,
        "TimeoutError": TIMED_OUT,
        "GoogleAuthError": NO_CREDENTIALS,
    },
    "google.genai.errors": {
        "UnknownApiResponseError": Rule("retry", "the answer cannot be read; the request has arrived"),
        "ContinuationInterruptedError": Rule("review", "a generation broke off after a part was made and billed"),
    },
}
