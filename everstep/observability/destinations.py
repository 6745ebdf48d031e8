"""Where traces go, read from the environment: any OTLP/HTTP backend by the standard variables, Langfuse by its own.

Nothing set, nothing sent.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from everstep.credentials import without_secrets

_logger = logging.getLogger(__name__)

LANGFUSE_PATH: Final = "/api/public/otel/v1/traces"
TRACES_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass(frozen=True)
class OtlpDestination:
    """An OTLP/HTTP backend; the exporter itself reads endpoint, headers, certificates and timeout from the environment.

    Attributes:
        name: The endpoint's scheme, host and port: fit for logs, no credentials in it.
    """

    name: str


@dataclass(frozen=True)
class LangfuseDestination:
    """A Langfuse project.

    Attributes:
        name: The endpoint's scheme, host and port, and that it is a Langfuse: a collector may have the same.
        endpoint: Where OTLP is posted to.
        public_key: The project's public key.
        secret_key: The project's secret key.
    """

    name: str
    endpoint: str
    public_key: str
    secret_key: str

    def __repr__(self) -> str:
        return f"LangfuseDestination({self.endpoint!r})"


Destination = OtlpDestination | LangfuseDestination


@dataclass(frozen=True)
class Fault:
    """Why something that the environment asks for is not sent.

    Attributes:
        message: What is wrong, without a credential in it.
        next_step: What to set.
        is_langfuse: Whether it keeps traces from Langfuse, and not from an OTLP backend.
    """

    message: str
    next_step: str
    is_langfuse: bool = False

    def __str__(self) -> str:
        return f"{self.message}. Next: {self.next_step}."


@dataclass(frozen=True)
class Reading:
    """What the environment says of where traces go.

    Attributes:
        destinations: Those it names, in no case more than one of each kind.
        faults: What it asks for and cannot be had.
        named_by: The variables that switched tracing on.
    """

    destinations: tuple[Destination, ...] = ()
    faults: tuple[Fault, ...] = ()
    named_by: tuple[str, ...] = ()


def from_environment() -> list[Destination]:
    """The destinations that the environment names; of what it asks for and cannot be had, a warning tells."""
    found = read()
    for fault in found.faults:
        _logger.warning("%s", fault)
    return list(found.destinations)


def read() -> Reading:
    """As `from_environment`, without a word in the log.

    `OTEL_SDK_DISABLED=true` and `OTEL_TRACES_EXPORTER=none` switch all off, `LANGFUSE_TRACING_ENABLED=false` Langfuse.
    """
    exporters = {one.strip().lower() for one in _variable("OTEL_TRACES_EXPORTER").split(",") if one.strip()}
    recorded: tuple[str, ...] = ("EVERSTEP_TRACES",) if is_recorded() else ()
    if _variable("OTEL_SDK_DISABLED").lower() == "true" or "none" in exporters:
        return Reading(faults=_record_fault(), named_by=recorded)
    otlp, langfuse = _otlp(exporters), _langfuse()
    found = [one for one in (otlp, langfuse) if one is not None]
    named_by: list[str] = [*recorded]
    if isinstance(langfuse, LangfuseDestination):
        named_by.insert(0, "LANGFUSE_PUBLIC_KEY")
    if isinstance(otlp, OtlpDestination):
        named_by.insert(0, _first(*TRACES_ENDPOINTS)[0] or "OTEL_TRACES_EXPORTER")
    return Reading(
        tuple(one for one in found if not isinstance(one, Fault)),
        (*(one for one in found if isinstance(one, Fault)), *_record_fault()),
        tuple(named_by),
    )


def _record_fault() -> tuple[Fault, ...]:
    given = _variable("EVERSTEP_TRACES")
    if given.lower() in ("", "record"):
        return ()
    return (
        Fault(
            f"EVERSTEP_TRACES={without_secrets(given)[:60]} is not known, and changes nothing",
            "set EVERSTEP_TRACES=record to keep spans in the record, or leave it out",
        ),
    )


def is_recorded() -> bool:
    """Whether spans are to be kept in the record though they go nowhere: `EVERSTEP_TRACES=record`."""
    return _variable("EVERSTEP_TRACES").lower() == "record"


def endpoint_fault(variable: str, url: str, what: str, *, is_langfuse: bool = False) -> Fault | None:
    """Why nothing can be sent to an endpoint; None if it is a URL for HTTP.

    Args:
        variable: The variable that names it.
        url: Its value.
        what: What is to be sent: `traces`.
        is_langfuse: Whether it is a Langfuse.
    """
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if is_usable and not re.search(r"\s", url):
        return None
    where, example = (" to Langfuse", "https://cloud.langfuse.com") if is_langfuse else ("", "http://127.0.0.1:4318")
    return Fault(
        f"{variable}={_shown(url)} is no http:// or https:// URL; {what} are not sent{where}",
        f"set {variable} to scheme, host and port, such as {example}",
        is_langfuse,
    )


def _otlp(exporters: set[str]) -> OtlpDestination | Fault | None:
    variable, endpoint = _first(*TRACES_ENDPOINTS)
    if exporters and "otlp" not in exporters:
        return None
    if not endpoint and not exporters:
        return None
    protocol = _variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or _variable("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in {"", "http/protobuf"}:
        return Fault(
            f"Traces are not sent by OTLP: the protocol {protocol} is not supported",
            "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf and the endpoint's HTTP port (4318 by convention)",
        )
    endpoint = endpoint or "http://localhost:4318"
    return endpoint_fault(variable, endpoint, "traces") or OtlpDestination(_origin(endpoint))


def _langfuse() -> LangfuseDestination | Fault | None:
    public_key, secret_key = _variable("LANGFUSE_PUBLIC_KEY"), _variable("LANGFUSE_SECRET_KEY")
    variable, host = _first("LANGFUSE_HOST", "LANGFUSE_BASE_URL")
    if _variable("LANGFUSE_TRACING_ENABLED").lower() == "false" or not (public_key or secret_key):
        return None
    given = {"LANGFUSE_PUBLIC_KEY": public_key, "LANGFUSE_SECRET_KEY": secret_key, "LANGFUSE_HOST": host}
    missing = [name for name, value in given.items() if not value]
    if missing:
        return Fault("Traces are not sent to Langfuse", f"set {' and '.join(missing)} as well", is_langfuse=True)
    return endpoint_fault(variable, host, "traces", is_langfuse=True) or LangfuseDestination(
        f"{_origin(host)} (Langfuse)", host.rstrip("/") + LANGFUSE_PATH, public_key, secret_key
    )


def _first(*names: str) -> tuple[str, str]:
    """The first of these variables that is set, and its value; two empty texts if none is."""
    return next(((name, value) for name in names if (value := _variable(name))), ("", ""))


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip()


def _origin(url: str) -> str:
    """Scheme, host and port alone: user names, passwords and paths do not belong in logs."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}"


def _shown(value: str) -> str:
    """What a log may hold of an endpoint that is no URL: no user, password, path or query, as far as one can tell."""
    scheme = re.match(r"(?:[A-Za-z][A-Za-z0-9+.-]*:/+)?", value)
    start = scheme.group() if scheme else ""
    before, _, rest = value[len(start) :].rpartition("@")
    if re.search(r"[?#]", before):
        return f"{start}…"
    return start + without_secrets(re.split(r"[/?#]", rest)[0])
