"""Model providers' SDKs: openai and anthropic, which are built alike.

Both raise one type for every failed connection and one for every timeout and keep the transport's error as the cause,
so the cause decides. An answer with an error status is judged by its code (`codes`) or its status.
"""

from __future__ import annotations

from everstep.runtime.rules.rule import (
    CODE,
    LOST,
    NO_CREDENTIALS,
    REFUSAL,
    UNSURE,
    WRAPPED_LOSS,
    WRAPPED_TIMEOUT,
    Rule,
)

_UNREADABLE = Rule("retry", "the answer does not have the form the client expects; the request has arrived")

PROVIDERS: dict[str, dict[str, Rule]] = {
    "openai": {
        "APITimeoutError": WRAPPED_TIMEOUT,
        "APIConnectionError": WRAPPED_LOSS,
        "APIResponseValidationError": _UNREADABLE,
        "LengthFinishReasonError": Rule("review", "the model's answer was cut off at its length limit"),
        "ContentFilterFinishReasonError": REFUSAL,
        "OAuthError": NO_CREDENTIALS,
        "WebSocketConnectionClosedError": LOST,
        "WebSocketQueueFullError": CODE,
    },
    "anthropic": {
        "APITimeoutError": WRAPPED_TIMEOUT,
        "APIConnectionError": WRAPPED_LOSS,
        "APIResponseValidationError": _UNREADABLE,
        "RetryableError": UNSURE,
        "CredentialsError": NO_CREDENTIALS,
    },
}
