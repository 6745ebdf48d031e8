"""Whether the environment asks for OTLP metrics; reading it loads nothing."""

from __future__ import annotations

import logging
import os

_logger = logging.getLogger(__name__)


def is_configured() -> bool:
    """Whether metrics are sent by OTLP: an endpoint is named, or `OTEL_METRICS_EXPORTER` is `otlp`.

    `OTEL_SDK_DISABLED=true` and `OTEL_METRICS_EXPORTER=none` switch it off.
    """
    exporters = {one.strip().lower() for one in _variable("OTEL_METRICS_EXPORTER").split(",") if one.strip()}
    if _variable("OTEL_SDK_DISABLED").lower() == "true" or "none" in exporters:
        return False
    endpoint = _variable("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") or _variable("OTEL_EXPORTER_OTLP_ENDPOINT")
    if "otlp" not in exporters and (exporters or not endpoint):
        return False
    protocol = _variable("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL") or _variable("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in {"", "http/protobuf"}:
        _logger.warning(
            "Metrics are not sent by OTLP: the protocol %s is not supported. "
            "Next: set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf and the endpoint's HTTP port (4318 by convention).",
            protocol,
        )
        return False
    return True


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip()
