"""Whether the environment asks for OTLP metrics; reading it loads nothing."""

from __future__ import annotations

import logging
import os
from typing import Final

from everstep.observability.destinations import Fault, endpoint_fault

_logger = logging.getLogger(__name__)

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def is_configured() -> bool:
    """Whether metrics are sent by OTLP: an endpoint is named, or `OTEL_METRICS_EXPORTER` is `otlp`.

    `OTEL_SDK_DISABLED=true` and `OTEL_METRICS_EXPORTER=none` switch it off. Of what cannot be had, a warning tells.
    """
    if not _is_asked():
        return False
    if wrong := fault():
        _logger.warning("%s", wrong)
    return wrong is None


def fault() -> Fault | None:
    """Why metrics that the environment asks for are not sent; None if they are, or it asks for none."""
    if not _is_asked():
        return None
    protocol = _variable("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL") or _variable("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in {"", "http/protobuf"}:
        return Fault(
            f"Metrics are not sent by OTLP: the protocol {protocol} is not supported",
            "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf and the endpoint's HTTP port (4318 by convention)",
        )
    variable = next((name for name in ENDPOINTS if _variable(name)), None)
    return endpoint_fault(variable, _variable(variable), "metrics") if variable else None


def _is_asked() -> bool:
    exporters = {one.strip().lower() for one in _variable("OTEL_METRICS_EXPORTER").split(",") if one.strip()}
    if _variable("OTEL_SDK_DISABLED").lower() == "true" or "none" in exporters:
        return False
    return "otlp" in exporters or (not exporters and any(_variable(name) for name in ENDPOINTS))


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip()
