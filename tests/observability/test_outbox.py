"""Spans are committed with what they tell of: a worker killed anywhere leaves a span for each step it had committed.

Real workers, really killed; what the collector got is what is looked at.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from sqlalchemy import func, select

from everstep.checkpoints.jobs import Job
from everstep.checkpoints.schema import span_outbox as outbox_table
from everstep.checkpoints.schema import spans as spans_table
from everstep.checkpoints.store import Store
from everstep.observability import tracing
from everstep.runtime import span_exporter
from tests.support import traced
from tests.support.processes import POINTS, work
from tests.support.record import record
from tests.support.waiting import PATIENCE

STEPS = {
    "fan_out": Counter({"step 1 plan": 1, "step 2 work": 3, "step 3 join": 1, "step 4 end": 1}),
    "asking": Counter(["step 1 ask", "step 2 end"]),
}
"""The steps that are committed once each, of an interrupted node the run that went through."""


def answer_all(store: Store) -> None:
    """A person who answers what is asked."""
    for review in store.reviews():
        store.answer(review.public_id, "respond", value=f"answer to {review.value['question']}")


def drive(
    store: Store, graph: str, environment: dict[str, str], crash: tuple[int, str] | None = None
) -> tuple[list[Counter[str]], bool]:
    """Run workers until the job is done; the points each passed that was not to be killed, and whether one was."""
    killed = False
    passed: list[Counter[str]] = []
    for number in range(12):
        if crash is not None and crash[0] == number:
            killed = traced.run(store.url, graph, environment, crash_at=crash[1])
            passed.append(Counter())
        else:
            passed.append(work(store.url, graph))
        (job,) = store.jobs()
        if job.status == "done":
            return passed, killed
        answer_all(store)
    raise AssertionError("the job did not end")


def flush(store: Store) -> None:
    """Send what is left: a worker that ends gives up after a second and a half, which a loaded machine may take."""
    traces = tracing.from_environment(service_version="1.2.3")
    assert span_exporter.flush(store, traces, holder="test", seconds=PATIENCE) == {traces.destinations[0].name: ""}


def check(store: Store, receiver: Any, graph: str) -> None:
    """What must hold of the spans of a job that is done, however its workers ended."""
    flush(store)
    (job,) = store.jobs()
    received: list[dict[str, Any]] = receiver.spans
    distinct = {(span["trace_id"], span["span_id"]): span for span in received}
    committed = store.read(lambda connection: connection.execute(select(func.count(spans_table.c.id))).scalar_one())
    waiting = store.read(lambda connection: connection.execute(select(func.count(outbox_table.c.id))).scalar_one())
    assert (len(distinct), waiting) == (committed, 0), "what is in the record arrived, and nothing else"
    steps = [span for span in distinct.values() if span["name"].startswith("step ")]
    through = Counter(span["name"] for span in steps if "everstep.outcome" not in span["attributes"])
    assert through == STEPS[graph]
    roots = {span["trace_id"]: span for span in distinct.values() if not span["parent_span_id"]}
    assert len(roots) == job.claim_no
    for leg in range(1, job.claim_no + 1):
        root = roots[tracing.trace_id(job.public_id, leg)]
        assert root["span_id"] == tracing.root_span_id(job.public_id, leg)
        previous = (tracing.trace_id(job.public_id, leg - 1), tracing.root_span_id(job.public_id, leg - 1))
        assert root["links"] == ([previous] if leg > 1 else [])
        check_root(store, job, leg, root)


def check_root(store: Store, job: Job, leg: int, root: dict[str, Any]) -> None:
    """A leg's root says how it ended; one whose worker died has status ERROR and says where that was."""
    events = [event for event in store.events(job) if event["claim_no"] == leg]
    ends = [event["to"] for event in events if event["to"] != "running"]
    if ends:
        outcome = "released" if ends[0] == "pending" else ends[0]
        assert (root["status"], root["attributes"]["everstep.outcome"]) == (0, outcome)
        return
    assert root["status"] == 2
    assert root["attributes"]["everstep.outcome"] == "died"
    assert root["message"].startswith("worker died after step ")
    assert f"worker {events[0]['actor']}" in root["message"]
    assert root["attributes"]["langfuse.observation.level"] == "WARNING"
    assert root["ended_ns"] >= root["started_ns"] > 0


@pytest.fixture
def receiver(start_receiver: Any, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A collector that the environment names."""
    receiver = start_receiver()
    environment |= {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_METRICS_EXPORTER": "none"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return receiver


@pytest.fixture
def environment() -> dict[str, str]:
    """What names it."""
    return {}


@pytest.mark.parametrize(("graph", "leg"), [("fan_out", 0), ("asking", 0), ("asking", 1)])
def test_a_worker_killed_anywhere_leaves_exactly_one_span_for_each_committed_step(
    receiver, environment, tmp_path, graph, leg
):
    """SIGKILL at every crash point: each committed step has one span, the dead leg is closed, the next one linked."""
    with record("sqlite", tmp_path) as store:
        store.enqueue(graph, {"world": str(tmp_path / "world")})
        passed, _ = drive(store, graph, environment)
        check(store, receiver, graph)
    assert {point for points in passed for point in points} >= POINTS
    for point, times in passed[leg].items():
        for count in range(1, times + 1):
            folder = tmp_path / f"{point}-{count}"
            folder.mkdir()
            receiver.requests.clear()
            with record("sqlite", folder) as store:
                store.enqueue(graph, {"world": str(folder / "world")})
                _, killed = drive(store, graph, environment, (leg, f"{point}@{count}"))
                assert killed, f"nothing died at {point}@{count}"
                check(store, receiver, graph)


@pytest.mark.parametrize(
    "point", ["checkpoint.after_put@3", "effect.called@2", "job.before_settle", "writes.after_put@2"]
)
def test_the_same_holds_on_postgres(receiver, environment, tmp_path, point):
    """On PostgreSQL as well, for a kill in each kind of write."""
    with record("postgres", tmp_path) as store:
        store.enqueue("fan_out", {"world": str(tmp_path / "world")})
        assert drive(store, "fan_out", environment, (0, point))[1]
        check(store, receiver, "fan_out")
