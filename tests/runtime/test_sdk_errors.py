"""The real exceptions of real SDK clients, asked of a real service on this machine: what each means for a job."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import httpx
import openai
import psycopg
import pytest
import requests
import sqlalchemy
import tenacity
from google.api_core import exceptions as google_exceptions
from google.api_core.retry import Retry
from google.rpc.error_details_pb2 import ErrorInfo
from langchain_core.exceptions import ModelAPIError, ModelConnectionError
from requests.adapters import HTTPAdapter
from sqlalchemy import exc
from urllib3.util import Retry as Urllib3Retry

from everstep.runtime.classify import Verdict, classify, register
from everstep.runtime.rules.loaded import LIBRARIES
from tests.runtime.service import CLIENTS, IMPATIENCE_S, PATIENCE_S, RETRYING, Answer, nobody, raised, serving

NOW_MS = 1_800_000_000_000


def verdict_of(client: Callable[[str], None], *answers: Answer) -> Verdict:
    """What the error means that a client raises when the service gives these answers."""
    with serving(*answers) as service:
        return classify(raised(lambda: client(service.url)), now_ms=NOW_MS)


def meaning(verdict: Verdict) -> tuple[str, bool, str | None]:
    """Kind, surely not sent, outage."""
    return verdict.kind, verdict.surely_not_sent, verdict.outage


STATUSES: dict[int, tuple[str, bool, str | None]] = {
    400: ("failed", True, None),
    401: ("review", True, None),
    402: ("review", True, "subscription_ended"),
    403: ("review", True, None),
    404: ("failed", True, None),
    409: ("review", False, None),
    429: ("retry", True, "rate_limited"),
    500: ("retry", False, None),
    501: ("review", True, None),
    502: ("retry", False, None),
    503: ("retry", True, "service_unavailable"),
    504: ("retry", False, None),
    529: ("retry", False, "service_unavailable"),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_status_means_the_same_whatever_client_saw_it(client: str) -> None:
    """Kind, certainty and outage come from the status, and the service is the host that answered."""
    for status, expected in STATUSES.items():
        with serving(Answer(status)) as service:
            verdict = classify(raised(lambda url=service.url: CLIENTS[client](url)), now_ms=NOW_MS)
            assert meaning(verdict) == expected, (status, verdict)
            assert verdict.service == service.host, status
            assert service.requests == 1


@pytest.mark.parametrize("client", CLIENTS)
def test_a_refused_connection_proves_that_nothing_was_sent(client: str) -> None:
    """Where nobody listens nothing can have happened, and the whole service is away."""
    with nobody() as url:
        verdict = classify(raised(lambda: CLIENTS[client](url)))
    assert meaning(verdict) == ("retry", True, "service_unavailable"), verdict
    assert verdict.service == url.removeprefix("http://")


@pytest.mark.parametrize("action", ["drop", "keep_silent"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_lost_answer_proves_nothing(client: str, action: str) -> None:
    """A connection dropped after the request, and an answer that does not come: retried, but perhaps done."""
    patience_s = IMPATIENCE_S if action == "keep_silent" else PATIENCE_S
    with serving(Answer(action=action)) as service:
        verdict = classify(raised(lambda: CLIENTS[client](service.url, patience_s)))
        assert meaning(verdict) == ("retry", False, None), verdict
        assert verdict.service == service.host
        assert service.requests == 1


@pytest.mark.parametrize("client", RETRYING)
def test_the_last_of_several_tries_proves_nothing(client: str) -> None:
    """A client that tried twice got 429 in the end; its first try may have been carried out."""
    answers = (Answer(500, {"retry-after-ms": "1"}), Answer(429))
    with serving(*answers) as service:
        verdict = classify(raised(lambda: RETRYING[client](service.url)))
        assert service.requests == 2
    assert meaning(verdict) == ("retry", False, "rate_limited")


def _with_tenacity(url: str) -> None:
    @tenacity.retry(stop=tenacity.stop_after_attempt(2), reraise=True)
    def ask() -> None:
        httpx.post(url, trust_env=False)

    ask()


async def _with_async_tenacity(url: str) -> None:
    @tenacity.retry(stop=tenacity.stop_after_attempt(2), reraise=True)
    async def ask() -> None:
        async with aiohttp.ClientSession() as session:
            await session.post(url)

    await ask()


async def _put_with_aiohttp(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        await session.put(url)


def _with_an_adapter_that_retries(url: str) -> None:
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Urllib3Retry(1, allowed_methods=None, backoff_factor=0)))
    session.post(url, timeout=5)


def _with_googles_retry(url: str) -> None:
    def ask() -> None:
        try:
            httpx.post(url, trust_env=False)
        except httpx.RemoteProtocolError as error:
            raise google_exceptions.ServiceUnavailable("lost") from error

    Retry(initial=0.001, maximum=0.001)(ask)()


@pytest.mark.parametrize(
    "client",
    [
        _with_tenacity,
        lambda url: asyncio.run(_with_async_tenacity(url)),
        lambda url: asyncio.run(_put_with_aiohttp(url)),
        _with_an_adapter_that_retries,
        _with_googles_retry,
        RETRYING["botocore"],
    ],
    ids=["tenacity", "tenacity async", "aiohttp", "urllib3", "google-api-core", "botocore"],
)
def test_refused_after_an_earlier_try_proves_nothing(client: Callable[[str], None]) -> None:
    """The first request arrived and its connection was lost, the second was refused: it may have been done."""
    with serving(Answer(action="leave")) as service:
        verdict = classify(raised(lambda: client(service.url)))
        assert service.requests == 1
    assert meaning(verdict) == ("retry", False, "service_unavailable"), verdict


BODIES: list[tuple[str, int, dict[str, Any], tuple[str, bool, str | None]]] = [
    ("openai", 429, {"error": {"code": "insufficient_quota"}}, ("retry", True, "usage_limit")),
    ("openai", 429, {"error": {"code": None, "type": "insufficient_quota"}}, ("retry", True, "usage_limit")),
    ("openai", 429, {"error": {"code": "rate_limit_exceeded"}}, ("retry", True, "rate_limited")),
    ("openai", 429, {"error": {"message": "insufficient_quota"}}, ("retry", True, "rate_limited")),
    ("openai", 429, {"error": {"code": "billing_not_active"}}, ("review", True, "subscription_ended")),
    ("openai", 400, {"error": {"code": "context_length_exceeded"}}, ("review", True, None)),
    ("openai", 404, {"error": {"code": "model_not_found"}}, ("review", True, None)),
    ("anthropic", 402, {"error": {"type": "billing_error"}}, ("review", True, "payment_failed")),
    ("anthropic", 429, {"error": {"type": "rate_limit_error"}}, ("retry", True, "rate_limited")),
    (
        "anthropic",
        429,
        {"error": {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}}},
        ("retry", True, "usage_limit"),
    ),
    (
        "anthropic",
        400,
        {"error": {"type": "invalid_request_error", "details": {"error_code": "organization_on_hold"}}},
        ("review", True, None),
    ),
    ("anthropic", 529, {"error": {"type": "overloaded_error"}}, ("retry", False, "service_unavailable")),
    ("botocore", 400, {"__type": "ThrottlingException"}, ("retry", True, "rate_limited")),
    ("botocore", 400, {"__type": "ExpiredTokenException"}, ("review", True, None)),
    ("botocore", 400, {"__type": "ServiceQuotaExceededException"}, ("review", True, "usage_limit")),
    ("botocore", 400, {"__type": "ConditionalCheckFailedException"}, ("review", False, None)),
    ("botocore", 400, {"__type": "SerializationException"}, ("failed", True, None)),
    ("google-genai", 400, {"error": {"details": [{"reason": "API_KEY_INVALID"}]}}, ("review", True, None)),
    ("google-genai", 403, {"error": {"details": [{"reason": "BILLING_DISABLED"}]}}, ("review", True, "payment_failed")),
    ("google-api-core", 400, {"error": {"details": [{"reason": "API_KEY_INVALID"}]}}, ("review", True, None)),
]


@pytest.mark.parametrize(("client", "status", "body", "expected"), BODIES)
def test_a_code_in_the_answer_says_more_than_its_status(
    client: str, status: int, body: dict[str, Any], expected: tuple[str, bool, str | None]
) -> None:
    """The codes that SDKs parse are read; the message for people never is."""
    assert meaning(verdict_of(CLIENTS[client], Answer(status, body=body))) == expected


def test_an_error_in_the_middle_of_a_stream() -> None:
    """Answers that begin well and end with an error event are told apart by its code, and have surely arrived."""
    request = httpx.Request("POST", "https://api.example.com/v1")
    stopped = openai.APIError("stopped", request, body={"code": "rate_limit_exceeded"})  # type: ignore[arg-type]
    assert meaning(classify(stopped)) == ("retry", False, "rate_limited")
    assert classify(stopped).service == "api.example.com"
    answer = httpx.Response(200, request=request)
    body = {"type": "error", "error": {"type": "overloaded_error"}}
    overloaded = anthropic.APIStatusError("overloaded", response=answer, body=body)  # type: ignore[arg-type]
    assert meaning(classify(overloaded)) == ("retry", False, "service_unavailable")


def test_a_langchain_model_keeps_what_its_sdk_knows() -> None:
    """An integration's error is both LangChain's and the SDK's; status, code and cause decide as in the SDK's."""

    class Down(openai.InternalServerError, ModelAPIError):
        pass

    class Unreachable(openai.APIConnectionError, ModelConnectionError):
        pass

    with serving(Answer(503, {"Retry-After": "7"})) as service:
        real: Any = raised(lambda: CLIENTS["openai"](service.url))
    down = classify(Down("down", response=real.response, body=None))
    assert (*meaning(down), down.retry_after_ms) == ("retry", True, "service_unavailable", 7_000)
    with nobody() as url:
        refused: Any = raised(lambda: CLIENTS["openai"](url))

    def wrap() -> None:
        raise Unreachable(request=refused.request) from refused

    assert meaning(classify(raised(wrap))) == ("retry", True, "service_unavailable")
    assert meaning(classify(ModelAPIError("down"))) == ("retry", False, None)


def test_grpcs_unavailable_proves_nothing() -> None:
    """Over gRPC a status says less than over HTTP: a broken connection looks like an answer."""
    unavailable = google_exceptions.ServiceUnavailable("gone")
    assert meaning(classify(unavailable)) == ("retry", False, "service_unavailable")
    assert classify(unavailable).service == "google-api-core"

    def tried_once() -> None:
        raise google_exceptions.ServiceUnavailable("gone")

    assert not classify(raised(Retry(predicate=lambda error: False)(tried_once))).surely_not_sent
    assert meaning(classify(google_exceptions.ResourceExhausted("full"))) == ("retry", False, "rate_limited")
    assert classify(google_exceptions.Aborted("again")).kind == "retry"
    assert classify(google_exceptions.FailedPrecondition("not now")).kind == "review"
    assert classify(google_exceptions.Cancelled("gone")).kind == "review"
    disabled = google_exceptions.PermissionDenied("no", details=[ErrorInfo(reason="BILLING_DISABLED")])
    assert classify(disabled).outage == "payment_failed"


def test_a_certificate_that_is_not_trusted_waits_for_a_person() -> None:
    """It does not pass by itself, whichever client finds it; and nothing was sent."""
    import ssl

    def untrusted(wrapper: BaseException) -> BaseException:
        def action() -> None:
            try:
                raise ssl.SSLCertVerificationError("self-signed")
            except ssl.SSLCertVerificationError as error:
                raise wrapper from error

        return raised(action)

    assert meaning(classify(untrusted(httpx.ConnectError("x")))) == ("review", True, None)
    assert classify(untrusted(requests.exceptions.SSLError())).kind == "review"
    assert classify(httpx.ConnectError("x")).kind == "retry"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exc.TimeoutError(), "retry"),
        (exc.OperationalError("SELECT 1", {}, Exception()), "retry"),
        (exc.IntegrityError("INSERT", {}, Exception()), "review"),
        (exc.ProgrammingError("SELEC", {}, Exception()), "review"),
        (exc.NoResultFound(), "review"),
    ],
)
def test_errors_of_sqlalchemy(error: BaseException, kind: str) -> None:
    """What passes is retried; a duplicate may have been done before; the rest is the code's fault."""
    verdict = classify(error)
    assert (verdict.kind, verdict.service) == (kind, "sqlalchemy")
    assert verdict.surely_not_sent == isinstance(error, exc.TimeoutError)
    with pytest.raises(exc.NoResultFound) as missing:
        sqlalchemy.create_engine("sqlite://").connect().execute(sqlalchemy.text("SELECT 1 WHERE 0")).one()
    assert classify(missing.value).kind == "review"


@pytest.mark.parametrize("through_sqlalchemy", [False, True])
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("40001", "retry"),
        ("40P01", "retry"),
        ("40002", "review"),
        ("55P03", "retry"),
        ("08006", "retry"),
        ("53300", "retry"),
        ("57P01", "retry"),
        ("57014", "retry"),
        ("23505", "review"),
        ("22003", "review"),
        ("42P01", "review"),
        ("42501", "review"),
        ("28P01", "review"),
    ],
)
def test_an_error_of_postgresql_is_told_by_its_sqlstate(code: str, kind: str, through_sqlalchemy: bool) -> None:
    """What passes when it is tried again is retried, whatever type it has; no code proves that nothing was done."""
    error: BaseException = psycopg.errors.lookup(code)("said")
    if through_sqlalchemy:
        error = exc.DBAPIError("SELECT 1", {}, error)
    verdict = classify(error)
    assert (verdict.kind, verdict.rule) == (kind, f"sqlstate {code}")
    assert not verdict.surely_not_sent


def test_a_code_of_another_library_is_no_sqlstate() -> None:
    """A program's own error may have an attribute of that name."""

    class Own(Exception):
        sqlstate = "40001"

    assert classify(Own()).kind == "review"
    lost = classify(psycopg.OperationalError("the connection was lost"))
    assert (lost.kind, lost.rule) == ("retry", "psycopg.OperationalError")


def test_a_cause_brings_its_wait_outage_and_service() -> None:
    """A program's own error around an SDK's keeps what the service asked for."""

    def own(url: str) -> None:
        try:
            CLIENTS["httpx"](url)
        except httpx.HTTPError as error:
            raise RuntimeError("could not") from error

    verdict = verdict_of(own, Answer(429, {"Retry-After": "7"}))
    assert (verdict.kind, verdict.retry_after_ms, verdict.outage) == ("retry", 7_000, "rate_limited")
    assert verdict.service is not None
    assert verdict.service.startswith("127.0.0.1:")
    assert not verdict.surely_not_sent


def test_a_group_waits_as_long_as_its_slowest_service_asks() -> None:
    """Two services were asked at once and both said 429."""
    with serving(Answer(429, {"Retry-After": "7"})) as one, serving(Answer(429, {"Retry-After": "70"})) as other:
        errors = [raised(lambda url=url: CLIENTS["requests"](url)) for url in (one.url, other.url)]
    assert classify(ExceptionGroup("", errors)).retry_after_ms == 70_000  # type: ignore[type-var]


def test_a_service_is_named_without_credentials() -> None:
    """Of an address only the host is told, and the port if it is not the usual one."""
    for address, service in {
        "https://user:secret@API.Example.com/v1?key=secret": "api.example.com",
        "https://api.example.com:443/": "api.example.com",
        "http://[::1]:8080/": "[::1]:8080",
    }.items():
        error = httpx.ReadError("lost", request=httpx.Request("GET", address))
        assert classify(error).service == service
    assert classify(httpx.ReadError("lost")).service == "httpx"
    assert classify(ConnectionResetError()).service is None


def test_a_registration_may_name_an_outage() -> None:
    """A program's own type can tell of an outage too."""
    from everstep.runtime import classify as classifying

    class Closed(Exception):
        pass

    before = dict(classifying._registered)
    try:
        register(Closed, "retry", surely_not_sent=True, outage="service_unavailable")
        assert meaning(classify(Closed())) == ("retry", True, "service_unavailable")
    finally:
        classifying._registered.clear()
        classifying._registered.update(before)


@pytest.mark.parametrize("module", LIBRARIES)
def test_every_rule_is_about_a_type_that_exists(module: str) -> None:
    """A type that a library renames would lose its rule in silence."""
    loaded = importlib.import_module(module)
    for name in LIBRARIES[module]:
        kind = getattr(loaded, name, None)
        assert isinstance(kind, type), f"{module}.{name}"
        assert issubclass(kind, BaseException)


def test_no_sdk_is_imported_to_classify() -> None:
    """The tables name types; none of the libraries is loaded for it."""
    script = (
        "import sys; from everstep.runtime.classify import classify; classify(RuntimeError('x'));"
        "print({name.partition('.')[0] for name in sys.modules} & set(sys.argv[1:]))"
    )
    sdks = ["openai", "anthropic", "google", "grpc", "botocore", "aiohttp", "sqlalchemy"]
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script, *sdks], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "set()"
