"""What a leg's root tells of the time before it, and of the service it met."""

from __future__ import annotations

from functools import partial
from typing import Any

import httpx
import pytest

from everstep.checkpoints import spans
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.observability import tracing
from tests.observability.conftest import stored_spans
from tests.support.jobs import TWO_DAYS_MS, chain, run


@pytest.fixture(autouse=True)
def _recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_TRACES", "record")


def root(store: Store, job: Job, leg: int) -> dict[str, Any]:
    """The root of a leg, as the record has it."""
    bodies = dict(store.read(partial(spans.of_leg, job_id=job.id, leg=leg)))
    (span,) = stored_spans(bodies[tracing.root_span_id(job.public_id, leg)])
    return span


def once(error: Exception) -> Any:
    """A graph whose node fails once."""
    errors = [error]

    def node(state: Any) -> Any:
        if errors:
            raise errors.pop()
        return {"log": []}

    return chain(node)


def test_a_leg_tells_how_long_its_job_waited_and_what_for(store, clock):
    """The first waited in the queue, the second for its backoff; both in seconds, and for Langfuse as metadata."""
    job, _ = store.enqueue("graph", {"log": []})
    clock.advance(5_000)
    run(store, once(ConnectionResetError("gone")))
    first, second = (root(store, job, leg)["attributes"] for leg in (1, 2))
    assert (first["everstep.wait_reason"], first["everstep.wait_s"]) == ("queue", 5.0)
    assert (second["everstep.wait_reason"], second["everstep.wait_s"]) == ("backoff", TWO_DAYS_MS / 1000)
    assert second["langfuse.observation.metadata.wait_reason"] == "backoff"
    assert "everstep.service" not in first


def test_a_leg_that_met_an_outage_names_service_and_symptom(store):
    """The root of the leg that met it says what was out; the next one that it waited for a service."""
    request = httpx.Request("GET", "https://api.example.com/v1")
    error = httpx.HTTPStatusError("away", request=request, response=httpx.Response(503, request=request))
    job = run(store, once(error))
    first, second = (root(store, job, leg)["attributes"] for leg in (1, 2))
    assert (first["everstep.service"], first["everstep.outage"]) == ("api.example.com", "service_unavailable")
    assert first["langfuse.observation.metadata.service"] == "api.example.com"
    assert second["everstep.wait_reason"] == "service"


def test_a_legs_spans_keep_the_records_time(store, clock):
    """Root and steps stand at the record's time, whatever this machine's clock says, and the root around its steps."""
    began = clock.now_ms() * 1_000_000
    job = run(store, chain(lambda state: {"log": []}))
    bodies = [body for _, body in store.read(partial(spans.of_leg, job_id=job.id, leg=1))]
    leg, step = (stored_spans(body)[0] for body in bodies)
    assert leg["started_ns"] == began
    assert began <= step["started_ns"] <= step["ended_ns"] <= leg["ended_ns"] < began + 600 * 10**9
