"""How long a service asks to wait, read from the real errors of real SDK clients."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions as google_exceptions
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo

from everstep.runtime.classify import classify
from everstep.runtime.retry_after import CAP_MS
from tests.runtime.service import CLIENTS, Answer, raised, serving

NOW_MS = 1_800_000_000_000
FORMS: list[tuple[dict[str, str], int | None]] = [
    ({"Retry-After": "7"}, 7_000),
    ({"Retry-After": "0"}, 0),
    ({"Retry-After": "Fri, 15 Jan 2027 08:01:00 GMT"}, 60_000),
    ({"Retry-After": "Fri, 15 Jan 2027 07:59:00 GMT"}, 0),
    ({"Retry-After": "9" * 400}, CAP_MS),
    ({"Retry-After": "-5"}, None),
    ({"Retry-After": "soon"}, None),
    ({"Retry-After": "7, 8"}, None),
    ({"Retry-After": "1_000"}, None),
    ({"Retry-After": ""}, None),
    ({}, None),
    ({"retry-after-ms": "1500", "Retry-After": "2"}, 1_500),
    ({"retry-after-ms": "-1", "Retry-After": "2"}, 2_000),
    ({"retry-after-ms": "nonsense", "Retry-After": "2"}, 2_000),
    ({"x-ms-retry-after-ms": "250"}, 250),
    ({"x-amz-retry-after": "300"}, 300),
]


@pytest.mark.parametrize("client", CLIENTS)
def test_each_form_is_read_from_each_client(client: str) -> None:
    """Seconds, dates, milliseconds; garbage, negative numbers and silence ask for nothing; a day is the most."""
    for headers, wait in FORMS:
        with serving(Answer(429, headers)) as service:
            verdict = classify(raised(lambda url=service.url: CLIENTS[client](url)), now_ms=NOW_MS)
        assert (verdict.kind, verdict.retry_after_ms) == ("retry", wait), headers


def _retry_info(delay: Any) -> dict[str, Any]:
    return {"error": {"details": [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]}}


@pytest.mark.parametrize("client", ["google-genai", "google-api-core"])
@pytest.mark.parametrize(
    ("delay", "wait"), [("34s", 34_000), ("3.5s", 3_500), ("-1s", None), ("34", None), ("s", None), (34, None)]
)
def test_googles_retry_info_is_read_from_json(client: str, delay: Any, wait: int | None) -> None:
    """Google tells the delay in the details of the answer's body."""
    with serving(Answer(429, body=_retry_info(delay))) as service:
        assert classify(raised(lambda: CLIENTS[client](service.url))).retry_after_ms == wait


def test_googles_retry_info_is_read_from_a_message() -> None:
    """Over gRPC the details are messages."""
    details = [RetryInfo(retry_delay=Duration(seconds=3, nanos=500_000_000))]
    assert classify(google_exceptions.ResourceExhausted("full", details=details)).retry_after_ms == 3_500
    assert classify(google_exceptions.ResourceExhausted("full", details=[RetryInfo()])).retry_after_ms == 0


def test_a_header_goes_before_the_details() -> None:
    """What the transport says is the more direct word."""
    with serving(Answer(429, {"Retry-After": "7"}, _retry_info("34s"))) as service:
        assert classify(raised(lambda: CLIENTS["google-genai"](service.url))).retry_after_ms == 7_000
