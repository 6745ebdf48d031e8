"""Legs in several processes: a pause and a resume, a process that was taken over and wakes up, a job run apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints.store import Store
from everstep.observability import tracing
from everstep.runtime import span_exporter
from everstep.runtime.trace import build
from everstep.runtime.worker import Worker
from tests.runtime.test_worker_processes import Process, gated, go
from tests.support import traced
from tests.support.jobs import chain
from tests.support.waiting import PATIENCE, until


@pytest.fixture
def receiver(start_receiver: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A collector that the environment names."""
    receiver = start_receiver()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    return receiver


def sent(store: Store, receiver: Any) -> dict[int, list[dict[str, Any]]]:
    """The spans of the only job by leg, in the order of their start, when all have arrived."""
    traces = tracing.from_environment(service_version="1.2.3")
    assert set(span_exporter.flush(store, traces, holder="test", seconds=PATIENCE).values()) == {""}
    (job,) = store.jobs()
    distinct = {span["span_id"]: span for span in receiver.spans}.values()
    return {
        leg: sorted(
            (span for span in distinct if span["trace_id"] == tracing.trace_id(job.public_id, leg)),
            key=lambda span: span["started_ns"],
        )
        for leg in range(1, job.claim_no + 1)
    }


def test_a_resume_in_another_process_is_linked_to_the_leg_before(receiver, shared, tmp_path):
    """Both legs share the session; the second links to the first's root, and tells of the question and its answer."""
    environment = {name: value for name, value in os.environ.items() if name.startswith("OTEL_")}
    shared.enqueue("asking", {"world": str(tmp_path / "world")})
    for _ in range(3):
        assert not traced.run(shared.url, "asking", environment)
        for review in shared.reviews():
            shared.answer(review.public_id, "respond", value="yes", by="somebody")
    legs = sent(shared, receiver)
    (job,) = shared.jobs()
    assert job.status == "done"
    named = {
        leg: [span["name"] for span in spans if not span["name"].startswith("effect")] for leg, spans in legs.items()
    }
    assert named == {
        1: ["invoke_agent asking", "step 1 ask"],
        2: ["review interrupt", "invoke_agent asking", "step 1 ask"],
        3: ["review interrupt", "invoke_agent asking", "step 1 ask", "step 2 end"],
    }
    everything = [span for spans in legs.values() for span in spans]
    assert {span["attributes"]["session.id"] for span in everything} == {job.thread_id}
    assert {span["status"] for span in everything} == {0}
    roots = {leg: next(span for span in spans if not span["parent_span_id"]) for leg, spans in legs.items()}
    assert roots[1]["links"] == []
    for leg in (2, 3):
        before, root = roots[leg - 1], roots[leg]
        assert root["links"] == [(before["trace_id"], before["span_id"])]
        told = root["attributes"]
        assert told["everstep.resume.checkpoint.id"] == before["attributes"]["everstep.interrupt.checkpoint.id"]
        assert (told["everstep.wait_reason"], told["everstep.wait_s"] >= 0) == ("queue", True)
        review = legs[leg][0]
        assert review["attributes"]["everstep.review.decision"] == "respond"
        assert review["started_ns"] < review["ended_ns"] <= root["started_ns"]
        for span in legs[leg]:
            assert span["attributes"]["langfuse.trace.metadata.previous_trace_id"] == before["trace_id"]


@pytest.mark.both_databases
def test_a_worker_that_was_taken_over_and_wakes_up_changes_nothing_that_was_told(receiver, shared, tmp_path):
    """Stopped in a node, taken over, continued: the root stays as it was closed, what it did is there as evidence."""
    world = str(tmp_path / "world")
    shared.enqueue("graph", {"log": []})
    zombie = Process(shared, world, lease=1.0)
    with zombie.stopped(shared):
        until(lambda: shared.jobs()[0].lease_until <= shared.clock.now_ms(), "the end of the lease")
        go(world)
        Worker(shared, {"graph": gated(world)}).run(until_idle=True)
        assert shared.jobs()[0].status == "done"
        told = sent(shared, receiver)[1]
        drawn = build.of_job(shared, shared.jobs()[0]).legs[0].node.children
        assert [(node.name, node.status) for node in drawn] == [("step 1 node_0", "ok"), ("step 2 node_1", "warning")]
        assert drawn[1].detail.endswith(": worker died")
    assert zombie.end() == 0
    legs = sent(shared, receiver)
    (root,) = [span for span in legs[1] if not span["parent_span_id"]]
    assert root in told
    assert root["status"] == 2
    assert root["message"].startswith("lease expired after step 1 (next: node_1), worker ")
    names = [span["name"] for span in legs[1] if span["name"].startswith("step")]
    assert names[0] == "step 1 node_0"
    assert set(names[1:]) <= {"step 2 node_1"}
    steps = [span["name"] for span in legs[2] if span["name"].startswith("step")]
    assert steps == ["step 2 node_1", "step 3 node_2"]
    assert legs[2][0]["links"] == [(root["trace_id"], root["span_id"])]


def isolated(folder: Path, store: Store, node: str) -> None:
    """Run a job of one node in a process of its own, by the command line."""
    folder.joinpath("graphs.py").write_text(
        textwrap.dedent(f"""
        import os, signal
        from typing import TypedDict
        from langgraph.graph import END, START, StateGraph

        class State(TypedDict, total=False):
            n: int

        def first(state):
            return {{"n": 1}}

        def second(state):
            {node}
            return {{"n": 2}}

        graph = StateGraph(State).add_node(first).add_node(second)
        graph = graph.add_edge(START, "first").add_edge("first", "second").add_edge("second", END).compile()
        """)
    )
    folder.joinpath("langgraph.json").write_text(
        json.dumps({"dependencies": ["."], "graphs": {"g": "./graphs.py:graph"}})
    )
    store.enqueue("g", {"n": 0}, max_attempts=1)
    command = [sys.executable, "-m", "everstep.cli.main", "worker", "--until-idle", "--isolate", "--store", store.url]
    subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


def test_the_spans_of_a_job_in_a_process_of_its_own_are_exported_by_its_worker(receiver, shared, tmp_path):
    """The child only records; the worker that started it sends."""
    isolated(tmp_path, shared, "pass")
    (job,) = shared.jobs()
    assert job.status == "done", job.error_json
    assert [span["name"] for span in sent(shared, receiver)[1]] == ["invoke_agent g", "step 1 first", "step 2 second"]


def test_the_root_of_a_process_that_died_alone_is_closed_by_its_worker(receiver, shared, tmp_path):
    """Its worker saw how it ended, and says so on the root; of the step that killed it there is no span."""
    isolated(tmp_path, shared, "os.kill(os.getpid(), signal.SIGKILL)")
    (job,) = shared.jobs()
    assert job.status == "failed"
    root, *steps = sent(shared, receiver)[1]
    assert [span["name"] for span in steps] == ["step 1 first"]
    assert root["status"] == 2
    assert root["message"].startswith("its process was killed by SIGKILL after step 1 (next: second), worker ")
    assert "langfuse.observation.level" not in root["attributes"], "a person is needed: an error, not a warning"
    assert root["attributes"]["everstep.resume_command"] == f"everstep retry {job.public_id}"


def test_a_child_finds_its_parent_and_the_parent_its_child(receiver, shared):
    """A job that a node enqueues has the parent's trace on its root, and the node a span that links to the child's."""
    from everstep import current_job

    def delegate(state: Any) -> Any:
        shared.enqueue("child", {"log": []}, parent=current_job())
        return {"log": []}

    graphs = {"parent": chain(delegate), "child": chain(lambda state: {"log": []})}
    parent, _ = shared.enqueue("parent", {"log": []})
    Worker(shared, graphs).run(until_idle=True)
    traces = tracing.from_environment(service_version="1.2.3")
    assert set(span_exporter.flush(shared, traces, holder="test", seconds=PATIENCE).values()) == {""}
    child = next(job for job in shared.jobs() if job.graph == "child")
    by_name = {span["name"]: span for span in receiver.spans}
    enqueue, step = by_name["enqueue child"], by_name["step 1 node_0"]
    parents = tracing.trace_id(parent.public_id, 1), tracing.root_span_id(parent.public_id, 1)
    assert enqueue["links"] == [(tracing.trace_id(child.public_id, 1), tracing.root_span_id(child.public_id, 1))]
    assert enqueue["trace_id"] == parents[0]
    assert enqueue["attributes"]["everstep.child.job.id"] == child.public_id
    assert step["name"] == "step 1 node_0"
    root = by_name["invoke_agent child"]
    assert root["links"] == [parents]
    assert root["attributes"]["everstep.parent.job.id"] == parent.public_id
    assert root["attributes"]["langfuse.observation.metadata.parent_trace_id"] == parents[0]
