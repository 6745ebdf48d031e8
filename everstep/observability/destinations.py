"""Where traces go, read from the environment: any OTLP/HTTP backend by the standard variables, Langfuse by its own.

Nothing set, nothing sent.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

_logger = logging.getLogger(__name__)

LANGFUSE_PATH: Final = "/api/public/otel/v1/traces"


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


def from_environment() -> list[Destination]:
    """The destinations that the environment names, in no case more than one of each kind.

    `OTEL_SDK_DISABLED=true` and `OTEL_TRACES_EXPORTER=none` switch all off, `LANGFUSE_TRACING_ENABLED=false` Langfuse.
    """
    exporters = {one.strip().lower() for one in _variable("OTEL_TRACES_EXPORTER").split(",") if one.strip()}
    if _variable("OTEL_SDK_DISABLED").lower() == "true" or "none" in exporters:
        return []
    found = (_otlp(exporters), _langfuse())
    return [destination for destination in found if destination is not None]


def is_recorded() -> bool:
    """Whether spans are to be kept in the record though they go nowhere: `EVERSTEP_TRACES=record`."""
    return _variable("EVERSTEP_TRACES").lower() == "record"


def _otlp(exporters: set[str]) -> OtlpDestination | None:
    endpoint = _variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or _variable("OTEL_EXPORTER_OTLP_ENDPOINT")
    if exporters and "otlp" not in exporters:
        return None
    if not endpoint and not exporters:
        return None
    protocol = _variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or _variable("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in {"", "http/protobuf"}:
        _logger.warning(
            "Traces are not sent by OTLP: the protocol %s is not supported. "
            "Next: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf and the endpoint's HTTP port (4318 by convention).",
            protocol,
        )
        return None
    return OtlpDestination(_origin(endpoint or "http://localhost:4318"))


def _langfuse() -> LangfuseDestination | None:
    public_key, secret_key = _variable("LANGFUSE_PUBLIC_KEY"), _variable("LANGFUSE_SECRET_KEY")
    host = _variable("LANGFUSE_HOST") or _variable("LANGFUSE_BASE_URL")
    if _variable("LANGFUSE_TRACING_ENABLED").lower() == "false" or not (public_key or secret_key):
        return None
    given = {"LANGFUSE_PUBLIC_KEY": public_key, "LANGFUSE_SECRET_KEY": secret_key, "LANGFUSE_HOST": host}
    missing = [name for name, value in given.items() if not value]
    if missing:
        _logger.warning("Traces are not sent to Langfuse. Next: set %s as well.", " and ".join(missing))
        return None
    return LangfuseDestination(f"{_origin(host)} (Langfuse)", host.rstrip("/") + LANGFUSE_PATH, public_key, secret_key)


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip()


def _origin(url: str) -> str:
    """Scheme, host and port alone: user names, passwords and paths do not belong in logs."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an endpoint that is no URL"
    return f"{parts.scheme}://{parts.hostname or ''}{port}"
