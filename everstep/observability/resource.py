"""Who sends spans and metrics, in OpenTelemetry's words."""

from __future__ import annotations

import os

from opentelemetry.sdk.resources import Resource

from everstep.observability import names


def resource(service_version: str, **more: str) -> Resource:
    """This service; `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` win over our own words.

    Args:
        service_version: This Everstep's version.
        more: Further attributes.
    """
    environment = os.environ.get("LANGFUSE_TRACING_ENVIRONMENT")
    release = os.environ.get("LANGFUSE_RELEASE")
    ours = {
        "service.name": "everstep",
        "service.version": service_version,
        **({names.ENVIRONMENT: environment} if environment else {}),
        **({names.RELEASE: release} if release else {}),
        **more,
    }
    told = Resource.create({}).attributes
    named = {key: value for key, value in told.items() if not (key == "service.name" and _is_default(value))}
    return Resource({**ours, **named})


def _is_default(service_name: object) -> bool:
    return str(service_name).startswith("unknown_service")
