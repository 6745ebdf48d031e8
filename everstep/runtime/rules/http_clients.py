"""HTTP clients: httpx, httpx2, requests, urllib3, aiohttp and the standard library's `http.client`.

A type that only says that a connection could not be made proves that nothing was sent, a handshake that failed
included. Requests and urllib3 raise one type for refused and lost connections, so their causes decide.
"""

from __future__ import annotations

from everstep.runtime.rules.rule import (
    BROKEN_ANSWER,
    CODE,
    LOST,
    NO_ADDRESS,
    NO_SLOT,
    REFUSED,
    TIMED_OUT,
    UNSURE,
    UNTRUSTED,
    WRAPPED_LOSS,
    WRAPPED_TLS,
    Rule,
)

_HTTPX = {
    "ConnectError": REFUSED,
    "ConnectTimeout": REFUSED,
    "PoolTimeout": NO_SLOT,
    "TimeoutException": TIMED_OUT,
    "TransportError": LOST,
    "DecodingError": BROKEN_ANSWER,
    "UnsupportedProtocol": NO_ADDRESS,
    "LocalProtocolError": CODE,
    "TooManyRedirects": UNSURE,
    "InvalidURL": NO_ADDRESS,
    "CookieConflict": CODE,
    "StreamError": CODE,
}

_REQUESTS = {
    "ConnectTimeout": REFUSED,
    "ReadTimeout": TIMED_OUT,
    "Timeout": TIMED_OUT,
    "SSLError": WRAPPED_TLS,
    "ProxyError": WRAPPED_LOSS,
    "ConnectionError": WRAPPED_LOSS,
    "RetryError": Rule("retry", "the service answered with errors to every try of the client; it may have acted"),
    "ChunkedEncodingError": LOST,
    "ContentDecodingError": BROKEN_ANSWER,
    "TooManyRedirects": UNSURE,
    "MissingSchema": NO_ADDRESS,
    "InvalidSchema": NO_ADDRESS,
    "InvalidURL": NO_ADDRESS,
    "URLRequired": NO_ADDRESS,
    "InvalidHeader": CODE,
    "StreamConsumedError": CODE,
    "UnrewindableBodyError": CODE,
}

_URLLIB3 = {
    "MaxRetryError": WRAPPED_LOSS,
    "NewConnectionError": REFUSED,
    "ConnectTimeoutError": REFUSED,
    "EmptyPoolError": NO_SLOT,
    "ReadTimeoutError": TIMED_OUT,
    "TimeoutError": TIMED_OUT,
    "SSLError": WRAPPED_TLS,
    "ProxyError": WRAPPED_LOSS,
    "ProtocolError": LOST,
    "IncompleteRead": LOST,
    "InvalidChunkLength": LOST,
    "DecodeError": BROKEN_ANSWER,
    "LocationValueError": NO_ADDRESS,
}

_AIOHTTP = {
    "ClientConnectorCertificateError": UNTRUSTED,
    "ServerFingerprintMismatch": UNTRUSTED,
    "ClientConnectorError": REFUSED,
    "ConnectionTimeoutError": REFUSED,
    "SocketTimeoutError": TIMED_OUT,
    "ServerTimeoutError": TIMED_OUT,
    "ClientConnectionError": WRAPPED_LOSS,
    "ClientOSError": LOST,
    "ServerDisconnectedError": LOST,
    "ClientPayloadError": LOST,
    "InvalidURL": NO_ADDRESS,
    "NonHttpUrlClientError": NO_ADDRESS,
    "RedirectClientError": UNSURE,
    "TooManyRedirects": UNSURE,
    "ContentTypeError": Rule("review", "the answer is not of the kind the code reads; the request has arrived"),
}

HTTP_CLIENTS: dict[str, dict[str, Rule]] = {
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "requests.exceptions": _REQUESTS,
    "urllib3.exceptions": _URLLIB3,
    "aiohttp": _AIOHTTP,
    "http.client": {"IncompleteRead": LOST, "RemoteDisconnected": LOST, "BadStatusLine": LOST},
}
