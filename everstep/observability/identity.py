"""Trace and span ids that follow from the job and the leg, so that a link can be printed before the leg has run.

Both come from SHA-256 over a labelled text: any process, at any time, names the same trace.
"""

from __future__ import annotations

import hashlib


def trace_id(job_id: str, leg: int) -> str:
    """The trace of a leg.

    Args:
        job_id: The job's public id.
        leg: The leg's number within the job, from 1; it must never be used twice.

    Returns:
        32 lower-case hexadecimal digits (a W3C trace id).
    """
    return _digest("trace", job_id, leg)[:32]


def root_span_id(job_id: str, leg: int) -> str:
    """The root span of a leg, as 16 lower-case hexadecimal digits."""
    return _digest("root-span", job_id, leg)[:16]


def _digest(kind: str, job_id: str, leg: int) -> str:
    return hashlib.sha256(f"everstep/{kind}/{job_id}/{leg}".encode("utf-8", "backslashreplace")).hexdigest()
