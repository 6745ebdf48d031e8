"""botocore, and so boto3: what the client raises itself. A service's own errors are told apart by code (`codes`)."""

from __future__ import annotations

from everstep.runtime.rules.rule import (
    BROKEN_ANSWER,
    LOST,
    MISCONFIGURED,
    NO_CREDENTIALS,
    NOT_SENDABLE,
    REFUSED,
    TIMED_OUT,
    UNSURE,
    WRAPPED_LOSS,
    WRAPPED_TLS,
    Rule,
)

_WITHOUT_CREDENTIALS = (
    "NoCredentialsError PartialCredentialsError CredentialRetrievalError TokenRetrievalError NoAuthTokenError SSOError "
    "LoginError MetadataRetrievalError RefreshWithMFAUnsupportedError UnknownCredentialError ProfileNotFound"
).split()
_MISCONFIGURED = (
    "DataNotFoundError UnknownRegionError BaseEndpointResolverError EndpointProviderError ServiceNotInRegionError "
    "ConfigNotFound ConfigParseError InvalidConfigError InvalidProxiesConfigError InvalidEndpointConfigurationError "
    "InvalidRetryConfigurationError InvalidDefaultsMode UnknownSignatureVersionError UnsupportedSignatureVersionError "
    "MissingDependencyException"
).split()

AWS: dict[str, dict[str, Rule]] = {
    "botocore.exceptions": {
        "EndpointConnectionError": REFUSED,
        "ConnectTimeoutError": REFUSED,
        "ProxyConnectionError": REFUSED,
        "SSLError": WRAPPED_TLS,
        "ReadTimeoutError": TIMED_OUT,
        "ConnectionClosedError": LOST,
        "ResponseStreamingError": LOST,
        "IncompleteReadError": LOST,
        "HTTPClientError": WRAPPED_LOSS,
        "ChecksumError": BROKEN_ANSWER,
        "FlexibleChecksumError": BROKEN_ANSWER,
        "CapacityNotAvailableError": Rule("retry", "the client holds requests back; none was sent", True),
        "ParamValidationError": NOT_SENDABLE,
        "ValidationError": NOT_SENDABLE,
        "MissingParametersError": NOT_SENDABLE,
        "WaiterError": Rule("review", "what was waited for did not come about"),
        "PaginationError": UNSURE,
        "EventStreamError": Rule("retry", "the service failed in the middle of its answer"),
        **dict.fromkeys(_WITHOUT_CREDENTIALS, NO_CREDENTIALS),
        **dict.fromkeys(_MISCONFIGURED, MISCONFIGURED),
    }
}
