"""Ids that follow from job and leg."""

from __future__ import annotations

import hashlib
import random

from everstep.observability import tracing


def test_a_trace_id_follows_from_job_and_leg_alone():
    """The id is the head of a SHA-256 that anybody can compute; it never changes, for links outlive versions."""
    assert tracing.trace_id("job-1", 2) == hashlib.sha256(b"everstep/trace/job-1/2").hexdigest()[:32]
    assert tracing.root_span_id("job-1", 2) == hashlib.sha256(b"everstep/root-span/job-1/2").hexdigest()[:16]


def test_jobs_and_legs_have_traces_of_their_own():
    """No two of many neighbouring jobs and legs share a trace."""
    ids = {tracing.trace_id(f"job-{job}", leg) for job in range(100) for leg in range(1, 20)}
    assert len(ids) == 100 * 19


def test_a_node_that_seeds_random_does_not_repeat_span_ids(recording):
    """Span ids come from the operating system: `random.seed` in a node changes nothing."""
    for leg in (1, 2):
        with recording.leg(leg) as current:
            for _ in range(10):
                random.seed(42)
                with tracing.effect("roll.dice", "digest"):
                    pass
            current.outcome("done")
    assert len({span.context.span_id for span in recording.spans}) == 22
