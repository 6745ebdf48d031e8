"""Sending OTLP bytes to a destination by HTTP: one try, and what came of it.

OpenTelemetry's own exporter takes spans, not bytes, repeats a request for a minute inside one call, and tells neither
status nor `Retry-After`. So the request is made here, by the same environment variables.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Final

import requests
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Status
from requests.auth import HTTPBasicAuth

from everstep.observability import otlp_settings, stored_form
from everstep.observability.destinations import Destination, LangfuseDestination
from everstep.observability.varint import varint

INGESTION_VERSION: Final = ("x-langfuse-ingestion-version", "4")
"""Asks Langfuse for its direct write: without it spans may take ten minutes to show."""
UNFIT: Final = frozenset({400, 413, 422})
"""Statuses that speak of what was sent; all others, 401 or 404 say, of the destination or of who sends."""
_ANSWER_LIMIT: Final = 64 * 1024


@dataclass(frozen=True)
class Answer:
    """What came of a request.

    Attributes:
        is_taken: Whether the destination has it.
        is_unfit: Whether it is refused for what is in it: sent again, it would be refused again.
        reason: Why it was not taken, or not all of it.
        rejected: Spans in it that were refused though the rest was taken.
        retry_after: The header of this name.
    """

    is_taken: bool
    is_unfit: bool = False
    reason: str = ""
    rejected: int = 0
    retry_after: str | None = None


class Sender:
    """Sends to one destination.

    Args:
        destination: Where to.

    Raises:
        Exception: What the environment says of certificates or credentials cannot be used.
    """

    def __init__(self, destination: Destination) -> None:
        self.name = destination.name
        self._session = requests.Session()
        self._headers = {"content-type": "application/x-protobuf", "user-agent": "everstep"}
        if isinstance(destination, LangfuseDestination):
            self._endpoint, self._compression = destination.endpoint, "gzip"
            self._session.auth = HTTPBasicAuth(destination.public_key, destination.secret_key)
            self._headers |= [INGESTION_VERSION]
        else:
            self._session = _session_of_provider() or self._session
            self._endpoint, self._compression = _endpoint(), otlp_settings.compression("TRACES")
            self._headers |= otlp_settings.headers("TRACES")
            self._session.verify = otlp_settings.variable("TRACES", "CERTIFICATE")[1] or self._session.verify
            if certificate := otlp_settings.variable("TRACES", "CLIENT_CERTIFICATE")[1]:
                key = otlp_settings.variable("TRACES", "CLIENT_KEY")[1]
                self._session.cert = (certificate, key) if key else certificate
        self.timeout_s = otlp_settings.timeout_s("TRACES")
        if self._compression in ("gzip", "deflate"):
            self._headers["content-encoding"] = self._compression

    def send(self, body: bytes, *, timeout_s: float | None = None) -> Answer:
        """Send one `ExportTraceServiceRequest`; never raises.

        Args:
            body: The request, not compressed.
            timeout_s: Seconds to wait for a connection, and for each part of an answer.
        """
        compress = {"gzip": gzip.compress, "deflate": zlib.compress}.get(self._compression, bytes)
        timeout = self.timeout_s if timeout_s is None else min(timeout_s, self.timeout_s)
        try:
            with self._session.post(
                self._endpoint,
                data=compress(body),
                headers=self._headers,
                timeout=timeout,
                allow_redirects=False,
                stream=True,
            ) as answer:
                status = answer.status_code
                if 200 <= status < 300:
                    return _taken(answer)
                reason = f"HTTP {status}" + (f" {answer.reason}" if answer.reason else "")
                return Answer(False, status in UNFIT, reason, retry_after=answer.headers.get("retry-after"))
        except (requests.RequestException, OSError, ValueError) as error:
            return Answer(False, reason=_why(error))

    def close(self) -> None:
        """Close its connections."""
        self._session.close()


def _taken(answer: requests.Response) -> Answer:
    """The answer of a destination that took the request, perhaps not all of it (`partial_success`)."""
    said = ExportTraceServiceResponse()
    if "protobuf" in answer.headers.get("content-type", ""):
        try:
            said.ParseFromString(answer.raw.read(_ANSWER_LIMIT, decode_content=True))
        except Exception:  # what it says besides is not worth sending it again
            return Answer(True)
    partial = said.partial_success
    return Answer(True, reason=partial.error_message[:200], rejected=max(partial.rejected_spans, 0))


def _why(error: BaseException) -> str:
    """The class of an error, and what the system said; not its text, which shows the address with what is in it."""
    inner: BaseException | None = error
    seen: set[int] = set()
    while inner is not None and id(inner) not in seen:
        seen.add(id(inner))
        if isinstance(inner, OSError) and inner.strerror and not isinstance(inner, requests.RequestException):
            return f"{type(error).__name__}: {inner.strerror}"
        reason = getattr(inner, "reason", None) or next((one for one in inner.args if isinstance(one, Exception)), None)
        inner = reason if isinstance(reason, BaseException) else inner.__cause__ or inner.__context__
    return type(error).__name__


def _endpoint() -> str:
    exact = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    base = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip() or "http://localhost:4318"
    return exact or f"{base.removesuffix('/')}/v1/traces"


def _session_of_provider() -> requests.Session | None:
    """The session of the credential provider that the environment names, as OpenTelemetry's exporter has it."""
    variable = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_{}CREDENTIAL_PROVIDER"
    name = os.environ.get(variable.format("")) or os.environ.get(variable.format("TRACES_"))
    if not name:
        return None
    for provider in entry_points(group="opentelemetry_otlp_credential_provider", name=name):
        session = provider.load()()
        if isinstance(session, requests.Session):
            return session
    raise RuntimeError(f"there is no credential provider {name!r} that gives a requests.Session")


def request_of(bodies: Iterable[bytes]) -> bytes:
    """An `ExportTraceServiceRequest` of stored spans, each a `ResourceSpans` of its own.

    That message is its field number 1, so each is put behind that field's tag and its own length (protobuf's varint).
    """
    return b"".join(b"\x0a" + varint(len(body)) + body for body in map(stored_form.otlp, bodies))


def is_essential(body: bytes) -> bool:
    """Whether a span is the root of its leg, or tells of a failure: what is given up last."""
    spans = [span for scope in ResourceSpans.FromString(stored_form.otlp(body)).scope_spans for span in scope.spans]
    return any(not span.parent_span_id or span.status.code == Status.STATUS_CODE_ERROR for span in spans)
