"""The trace of a job from the record alone: legs, steps, effects, reviews, failures, waits and gaps."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from everstep import effect
from everstep.checkpoints import spans, trace_rows
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.checkpoints.trace_rows import SavedStep
from everstep.clock import ManualClock
from everstep.errors import FileNotWritten, LegNotFound
from everstep.observability.identity import root_span_id, trace_id
from everstep.observability.span_buffer import FinishedSpan
from everstep.runtime.trace import build, deaths
from everstep.runtime.trace.legs import LegRow
from everstep.runtime.trace.otlp import export
from everstep.runtime.trace.page import page
from everstep.runtime.trace.tree import UNFINISHED, Node, TraceTree
from everstep.runtime.worker import Worker
from tests.support.jobs import Log, beside, chain, run, work
from tests.support.record import begin_running, claim, settled
from tests.support.waiting import PATIENCE, until

CANARY = "canary-4711"


@effect("push", idempotent=True)
def push(where: str) -> str:
    """An effect whose argument and result nobody must see."""
    return f"{CANARY} pushed {where}"


def one(state: Log) -> Log:
    """A step."""
    return {"log": [CANARY]}


def pushes(state: Log) -> Log:
    """A step with an effect."""
    push(CANARY)
    return {"log": [2]}


def asks(state: Log) -> Log:
    """A step that needs a person."""
    interrupt({"question": CANARY})
    return {"log": [3]}


def breaks(state: Log) -> Log:
    """A step that fails for good."""
    raise ValueError("the input is wrong")


def outline(nodes: list[Node], depth: int = 0) -> str:
    """A tree as text: kind or name, and the status where it is not `ok`."""
    told = ""
    for node in nodes:
        status = "" if node.status == "ok" else f" [{node.status}]"
        told += f"{'  ' * depth}{node.name}{status}\n" + outline(node.children, depth + 1)
    return told


def told(store: Store, job: Job, **options: Any) -> TraceTree:
    """The trace of a job as it is now."""
    return build.of_job(store, store.job(job.public_id), **options)


def answered(store: Store) -> None:
    """Answer the open question."""
    (review,) = store.reviews()
    store.answer(review.public_id, "respond", value=CANARY, by="alice")


def with_spans(store: Store, job: Job, bodies: list[bytes], leg: int = 1) -> None:
    """Store spans as a leg does."""
    read = [(ResourceSpans.FromString(body).scope_spans[0].spans[0], body) for body in bodies]
    finished = [FinishedSpan(span.span_id.hex(), span.start_time_unix_nano, body) for span, body in read]
    store.write(lambda c: spans.write(c, job.id, leg, finished, destinations=[], now=0)).result()


def a_span(
    number: int, name: str, parent: str = "", *, took_ns: int = 5, error: str | None = None, **attributes: Any
) -> bytes:
    """A span as OTLP bytes; it begins at its number, and its id is that number."""
    group = ResourceSpans()
    span = group.scope_spans.add().spans.add()
    span.span_id, span.parent_span_id = number.to_bytes(8, "big"), bytes.fromhex(parent)
    span.name, span.start_time_unix_nano, span.end_time_unix_nano = name, number, number + took_ns
    if error is not None:
        span.status.code, span.status.message = 2, error
    for key, value in attributes.items():
        stored = span.attributes.add(key=key.replace("__", ".")).value
        kind = "int_value" if isinstance(value, int) else "double_value" if isinstance(value, float) else "string_value"
        setattr(stored, kind, value)
    return group.SerializeToString()


@pytest.mark.both_databases
def test_a_whole_life(shared: Store) -> None:
    """A job that asked, went on, and failed: its legs, the steps of its subgraph, its effect, its review, its error."""
    job = run(shared, chain(one, chain(one, pushes), asks, breaks))
    answered(shared)
    work(shared, chain(one, chain(one, pushes), asks, breaks))
    found = told(shared, job)
    assert (
        outline(found.nodes)
        == """\
queued
leg 1
  step 1 node_0
  step 2 node_1
    step 1 node_0
    step 2 node_1
      effect push
  step 3 node_2
  review interrupt
waits for a person
queued
leg 2 [error]
  step 3 node_2
  step 4 node_3 [error]
"""
    )
    failed = found.legs[1].node.children[1]
    assert failed.detail == "ValueError: the input is wrong"
    assert failed.resume == f"everstep retry {job.public_id}"
    assert "test_trace.py" in (failed.stack or "")
    assert found.legs[0].node.children[-1].detail == "respond by alice"
    assert all((node.duration_ns or 0) >= 0 for top in found.nodes for node in top.walk())
    assert outline(found.only_errors().nodes) == "leg 2 [error]\n  step 4 node_3 [error]\n"
    assert outline(told(shared, job, leg=1).only_leg(1).nodes).startswith("leg 1\n")


def test_fan_out_is_told_by_its_nodes(shared: Store) -> None:
    """Nodes that ran at the same time stand beside each other; those that were sent to have their names, too."""
    assert outline(told(shared, run(shared, beside(one, pushes))).nodes).count("step 1 node_") == 2
    builder = StateGraph(Log).add_node("plan", one).add_node("work", one).add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", {}), Send("work", {})]).add_edge("work", END)
    assert outline(told(shared, run(shared, builder.compile(), {"log": [7]})).nodes).count("step 2 work") == 2


def test_a_workflow_of_the_functional_api(shared: Store) -> None:
    """A workflow has one step, which is its entrypoint."""

    @task
    def add(number: int) -> int:
        return number + 1

    @entrypoint()
    def workflow(input: Any) -> int:
        return add(1).result()

    assert "step 0 workflow" in outline(told(shared, run(shared, workflow, {"n": 1})).nodes)


@pytest.mark.both_databases
def test_a_dead_worker_leaves_a_gap(store: Store, clock: ManualClock) -> None:
    """A leg whose worker vanished is wrong, and the time until another took the job over is a gap."""
    store.enqueue("graph", {})
    job = begin_running(store, "first")
    clock.advance(12_000)
    claim(store, "second")
    found = told(store, job)
    assert outline(found.nodes) == "queued\nleg 1 [warning]\nworker first gone [warning]\nleg 2 [open]\n"
    gap = found.nodes[2]
    assert gap.duration_ns == 12_000_000_000
    assert found.legs[0].node.detail == "taken over from first, which is gone, at step 0"
    assert gap.detail == "", "it is told once"
    assert outline(found.only_errors().nodes) == "leg 1 [warning]\nworker first gone [warning]\n"


def test_a_worker_that_nobody_replaced_yet(store: Store, clock: ManualClock) -> None:
    """A lease that ended shows as a gap that lasts, with what to do."""
    store.enqueue("graph", {})
    job = begin_running(store, "first")
    clock.advance(60_000)
    gap = told(store, job).nodes[-1]
    assert (gap.kind, gap.status, gap.ended_ns, gap.resume) == ("gap", "error", None, "everstep worker")


class Dying:
    """A node as whose first run its worker is taken for dead: the lease is over, and another takes the job over."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self._store, self._clock = store, clock
        self.seen: list[TraceTree] = []

    def __call__(self, state: Log) -> Log:
        if not self.seen:
            (job,) = self._store.jobs()
            self._clock.advance(600_000)
            self.seen.append(told(self._store, job))
            claim(self._store, "second")
            self.seen.append(told(self._store, job))
            self._clock.advance(600_000)
        return {"log": [2]}


def legs_of(tree: TraceTree) -> str:
    """Its legs alone, as text."""
    return outline([leg.node for leg in tree.legs])


def unfinished(tree: TraceTree) -> list[Node]:
    """What nobody saw the end of."""
    return [node for leg in tree.legs for node in leg.node.walk() if UNFINISHED in node.facts]


@pytest.mark.parametrize(("told", "finished", "left"), [(2, 2, 5), (2, 3, 4), (2, None, 5), (0, 2, 5), (3, 2, 4)])
def test_branches_of_one_name_that_finished_are_taken_away_once(told: int, finished: int | None, left: int) -> None:
    """Of seven that were sent to one node, the spans and the record may both know the same ones that ended."""
    row = LegRow(1, "worker", 1_000, 2_000, "gone")
    last = SavedStep("", "id", None, 1, "loop", 1, 1_500_000_000)
    known = None if finished is None else ["part"] * finished
    nodes = deaths.under_way(row, last, ["part"] * 7, told=["part"] * told, finished=known, resume=None)
    assert [node.name for node in nodes] == ["step 2 part"] * left


@pytest.mark.both_databases
@pytest.mark.parametrize("traces", ["", "record"])
def test_what_ran_as_the_worker_died_is_drawn(
    store: Store, clock: ManualClock, traces: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of a killed leg stands there as unfinished with its start, before and after others take the job over."""
    monkeypatch.setenv("EVERSTEP_TRACES", traces)
    node = Dying(store, clock)
    job = run(store, chain(one, node, one))
    alone, taken, after = *node.seen, told(store, job)
    assert legs_of(alone) == "leg 1 [open]\n  step 1 node_0\n  step 2 node_1 [error]\n"
    assert legs_of(taken) == "leg 1 [warning]\n  step 1 node_0\n  step 2 node_1 [warning]\nleg 2 [open]\n"
    assert legs_of(after).endswith("leg 3\n  step 2 node_1\n  step 3 node_2\n")
    (lost,) = unfinished(taken)
    assert (lost.ended_ns, lost.facts["step"], lost.facts["node"]) == (None, 2, "node_1")
    assert (lost.started_ns or 0) >= (taken.legs[0].node.started_ns or 0)
    assert re.fullmatch(r"unfinished since \S+Z: worker died", lost.detail)
    assert "step 2 node_1 [warning]" in outline(taken.only_errors().nodes)
    assert lost.detail.encode() in page(taken)


def test_what_did_not_finish_is_exported_as_failed(store: Store, clock: ManualClock, tmp_path: Path) -> None:
    """An export has a span for it, marked as made up, under the leg's root; each committed step has one besides."""
    job = run(store, chain(one, Dying(store, clock)))
    file = tmp_path / "trace.bin"
    export(store, job, str(file))
    first = file.read_bytes()
    export(store, job, str(file))
    assert file.read_bytes() == first
    request = ExportTraceServiceRequest.FromString(first)
    exported = [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]
    assert len({span.span_id for span in exported}) == len(exported)
    steps = [span for span in exported if span.name.startswith("step")]
    lost = [span for span in steps if span.status.code == 2]
    assert sorted(span.name for span in steps if span not in lost) == ["step 1 node_0", "step 2 node_1"]
    assert [span.name for span in lost] == ["step 2 node_1"] * 2
    for leg, span in enumerate(sorted(lost, key=lambda span: span.start_time_unix_nano), start=1):
        facts = {one.key: one.value for one in span.attributes}
        assert facts["everstep.synthesised"].bool_value
        assert facts["error.type"].string_value == "worker_died"
        assert span.parent_span_id.hex() == root_span_id(job.public_id, leg)
        assert span.end_time_unix_nano >= span.start_time_unix_nano


def test_of_nodes_beside_each_other_only_those_that_had_not_finished(store: Store, clock: ManualClock) -> None:
    """What is stored beside the last checkpoint had finished; once another leg stored there, that cannot be told."""
    arrived = threading.Event()

    class Late(Dying):
        def __call__(self, state: Log) -> Log:
            assert arrived.wait(PATIENCE)
            until(lambda: any(task.node == "fast" for task in self._tasks()), "the other node's writes")
            return super().__call__(state)

        def _tasks(self) -> list[trace_rows.SavedTask]:
            (job,) = self._store.jobs()
            steps = self._store.read(lambda c: list(trace_rows.steps(c, job.thread_id, job.public_id)))
            if not steps:
                return []
            step = steps[-1]
            found = self._store.read(
                lambda c: trace_rows.tasks(
                    c, job.thread_id, [step.checkpoint_id], self._store.database.checkpoint_tables
                )
            )
            return found.get(step.checkpoint_id, [])

    def fast(state: Log) -> Log:
        arrived.set()
        return {"log": [1]}

    late = Late(store, clock)
    builder = StateGraph(Log).add_node("fast", fast).add_node("late", late).add_node("join", one)
    builder.add_edge(START, "fast").add_edge(START, "late").add_edge(["fast", "late"], "join").add_edge("join", END)
    job = run(store, builder.compile())
    assert [node.name for node in unfinished(late.seen[0])] == ["step 1 late"]
    first = told(store, job).legs[0].node.children
    assert sorted(node.name for node in first) == ["step 1 fast", "step 1 late"]
    assert all(node.detail.endswith("worker died; it may have finished before") for node in first)


def test_within_a_subgraph(store: Store, clock: ManualClock) -> None:
    """The steps that a subgraph came to hang under the node that did not finish."""
    node = Dying(store, clock)
    job = run(store, chain(one, chain(one, node)))
    expected = "leg 1 [warning]\n  step 1 node_0\n  step 2 node_1 [warning]\n    step 1 node_0\n"
    assert legs_of(told(store, job)).startswith(expected)


def test_what_comes_next_is_told_by_the_channels() -> None:
    """Channels that call a node, joins whose branches all arrived, what was sent, and a start that nothing came of."""
    sent = [Send("work", 1), Send("rest", 2)]
    channels = {
        "log": [1],
        "__pregel_tasks": sent,
        "branch:to:plan": None,
        "join:a+b:both": {"a", "b"},
        "join:a+c:rather": {"a"},
    }
    assert deaths.due(channels) == ["work", "rest", "plan", "both"]
    assert deaths.due({"__start__": {"log": []}}) == [""]
    assert deaths.due({"__pregel_tasks": None}) == []
    tasks = [
        trace_rows.SavedTask("1", "", failed=False, paused=False, sent=1),
        trace_rows.SavedTask("2", "plan", failed=False, paused=False),
        trace_rows.SavedTask("3", "both", failed=True, paused=False),
    ]
    finished = list(deaths.ended(tasks, channels).values())
    assert finished == ["rest", "plan"]
    assert deaths.without(deaths.due(channels), finished) == ["work", "both"]


@pytest.mark.parametrize("traces", ["", "record"])
@pytest.mark.parametrize("failure", [ValueError("the input is wrong"), KeyError("price"), ConnectionError("no route")])
def test_a_leg_says_what_its_span_says(
    store: Store, failure: Exception, traces: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A leg's line and its exported span have the message and the reason, word for word."""
    monkeypatch.setenv("EVERSTEP_TRACES", traces)

    def fails(state: Log) -> Log:
        raise failure

    job = run(store, chain(fails))
    tree = told(store, job)
    file = tmp_path / "trace.bin"
    export(store, job, str(file))
    request = ExportTraceServiceRequest.FromString(file.read_bytes())
    exported = [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]
    said = {span.trace_id.hex(): span.status.message for span in exported if not span.parent_span_id}
    assert said == {leg.trace_id: leg.node.detail for leg in tree.legs}
    reasons = [move.reason.partition(": ")[2] for move in store.read(lambda c: trace_rows.moves(c, job.id))]
    ended = [reason for reason in reasons if reason]
    assert [leg.node.detail for leg in tree.legs] == [
        f"{type(failure).__name__}: {failure} ({reason})" for reason in ended
    ]


def test_a_failure_is_told_by_the_user_s_own_places(store: Store) -> None:
    """The first stack has no place of a library, the whole one has them; both name the function that failed."""

    def fails(state: Log) -> Log:
        return {"log": [json.loads("{")]}

    (node,) = [one for one in told(store, run(store, chain(fails))).legs[0].node.walk() if one.stack]
    assert " fails" in (node.stack or "").splitlines()[1]
    assert "langgraph" not in (node.stack or "")
    assert "json/decoder.py" in (node.whole_stack or "").splitlines()[1]
    assert "langgraph" in (node.whole_stack or "")


def test_a_failure_that_is_tried_again_is_a_warning(store: Store) -> None:
    """Backoff shows as a wait, the failed try as a warning, the try that went well as it is."""
    tries: list[int] = []

    def flaky(state: Log) -> Log:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("no route")
        return {"log": [1]}

    shown = outline(told(store, run(store, chain(flaky))).nodes)
    assert shown.count("step 1 node_0 [warning]") == 2
    assert shown.count("waits to try again\n") == 2
    assert shown.endswith("leg 3\n  step 1 node_0\n")


def test_tokens_that_no_span_tells_are_the_only_leg_s(store: Store) -> None:
    """Without spans the job's tokens and cost are those of its leg, if there is but one."""
    job = run(store, chain(one))
    used = {"input_tokens": 120, "output_tokens": 30, "cost_micros": 700}
    store.write(
        lambda c: c.exec_driver_sql("UPDATE agent_jobs SET input_tokens=120, output_tokens=30, cost_micros=700")
    ).result()
    found = told(store, store.job(job.public_id))
    assert vars(found.use) == used
    assert vars(found.legs[0].node.use) == used


@pytest.mark.both_databases
def test_spans_are_shown_where_they_are_stored(shared: Store) -> None:
    """A leg with spans shows them: nested as they are, with tokens and cost summed, without any content."""
    job = run(shared, chain(one))
    root = root_span_id(job.public_id, 1)
    chat = {"gen_ai__operation__name": "chat", "gen_ai__usage__input_tokens": 11, "gen_ai__usage__output_tokens": 4}
    with_spans(
        shared,
        job,
        [
            a_span(10, "step 1 plan", root, everstep__step=1, everstep__node="plan"),
            a_span(
                11,
                "chat gpt",
                f"{10:016x}",
                **chat,
                gen_ai__usage__cost=0.002,
                gen_ai__input__messages=CANARY,
                http__url=CANARY,
            ),
            a_span(
                12, "execute_tool read", f"{10:016x}", gen_ai__operation__name="execute_tool", error="OSError: gone"
            ),
            a_span(13, "step 2 lost", f"{99:016x}", everstep__step=2),
        ],
    )
    found = told(shared, job)
    assert outline(found.nodes) == (
        "queued\nleg 1\n  step 1 plan\n    chat gpt\n    execute_tool read [error]\n  not kept\n    step 2 lost\n"
    )
    leg = found.legs[0].node
    assert (leg.use.input_tokens, leg.use.output_tokens, leg.use.cost_micros) == (11, 4, 2000)
    assert leg.children[0].use == leg.use
    assert [node.kind for node in leg.walk()] == ["leg", "step", "model", "tool", "span", "step"]
    assert CANARY not in json.dumps(found.as_dict())


def test_spans_in_a_circle_and_endless_depth_are_still_a_tree(shared: Store) -> None:
    """Spans that name each other as parents, or nest without end, are all shown, and nothing recurses without end."""
    job = run(shared, chain(one))
    circle = [a_span(1, "a", f"{2:016x}"), a_span(2, "b", f"{1:016x}"), a_span(3, "c", f"{3:016x}")]
    deep = [a_span(number, f"deep {number}", f"{number - 1:016x}") for number in range(10, 2_000)]
    with_spans(shared, job, [*circle, *deep, b"\xff no protobuf"][:-1])
    shown = outline(told(shared, job).nodes)
    assert len(re.findall(r"(?m)^ +(?:[abc]|deep \d+)$", shown)) == len(circle) + len(deep)


@pytest.mark.parametrize("has_spans", [False, True])
def test_of_too_many_steps_the_first_the_last_and_the_failed_are_held(shared: Store, has_spans: bool) -> None:
    """What is held at once is bounded; how much was left out is told, and the end of the leg is always there."""
    nodes = [one] * 30
    job = run(shared, chain(*nodes))
    if has_spans:
        wrong = {15: "ValueError: in the middle"}
        bodies = [
            a_span(number, f"step {number} n", everstep__step=number, error=wrong.get(number))
            for number in range(1, 31)
        ]
        with_spans(shared, job, bodies)
    found = told(shared, job, limit=20)
    steps = [node.name.split()[1] for node in found.legs[0].node.children]
    assert steps[:3] == ["1", "2", "3"]
    assert steps[-3:] == ["28", "29", "30"]
    assert len(steps) + found.omitted == 30
    assert len(steps) <= 21
    assert not has_spans or "15" in steps


def test_a_leg_that_is_not_there(shared: Store) -> None:
    """Asking for a leg the job does not have tells which ones it has."""
    with pytest.raises(LegNotFound, match="legs 1 to 1"):
        told(shared, run(shared, chain(one)), leg=4)
    job, _ = shared.enqueue("graph", {"log": [7]})
    with pytest.raises(LegNotFound, match="not run yet"):
        told(shared, job, leg=1)


@pytest.mark.both_databases
def test_an_export_has_the_ids_of_a_live_one(shared: Store, tmp_path: Path) -> None:
    """A leg without spans is exported with the trace and root ids that tracing would have given it; twice is once."""
    job = run(shared, chain(one, pushes, breaks))
    file = tmp_path / "trace.bin"
    assert export(shared, shared.job(job.public_id), str(file)) == 5
    first = file.read_bytes()
    request = ExportTraceServiceRequest.FromString(first)
    spans_ = [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]
    assert {span.trace_id.hex() for span in spans_} == {trace_id(job.public_id, 1)}
    (root,) = [span for span in spans_ if not span.parent_span_id]
    assert root.span_id.hex() == root_span_id(job.public_id, 1)
    assert {span.name for span in spans_} == {
        "invoke_agent graph",
        "step 1 node_0",
        "step 2 node_1",
        "effect push",
        "step 3 node_2",
    }
    assert {span.parent_span_id for span in spans_ if span.name.startswith("step")} == {root.span_id}
    failed = next(span for span in spans_ if span.name == "step 3 node_2")
    assert (failed.status.code, failed.status.message) == (2, "ValueError: the input is wrong")
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano > 0 for span in spans_)
    assert CANARY.encode() not in first
    export(shared, shared.job(job.public_id), str(file))
    assert file.read_bytes() == first


def test_an_export_as_json_follows_otlp(shared: Store, tmp_path: Path) -> None:
    """OTLP's JSON has hexadecimal ids, integers as strings and enums as numbers; stored spans go out as they are."""
    job = run(shared, chain(one))
    body = a_span(16, "step 1 plan", root_span_id(job.public_id, 1), everstep__step=1)
    with_spans(shared, job, [body])
    file = tmp_path / "trace.json"
    assert export(shared, shared.job(job.public_id), str(file)) == 1
    (group,) = json.loads(file.read_bytes())["resourceSpans"]
    (span,) = group["scopeSpans"][0]["spans"]
    assert (span["spanId"], span["parentSpanId"]) == (f"{16:016x}", root_span_id(job.public_id, 1))
    assert span["attributes"] == [{"key": "everstep.step", "value": {"intValue": "1"}}]
    binary = tmp_path / "trace.bin"
    export(shared, shared.job(job.public_id), str(binary))
    assert ExportTraceServiceRequest.FromString(binary.read_bytes()).resource_spans[0].SerializeToString() == body


def test_a_file_that_cannot_be_written_stays_as_it_was(shared: Store, tmp_path: Path) -> None:
    """Where a file cannot be written the error says so, and nothing half-written is left."""
    job = run(shared, chain(one))
    with pytest.raises(FileNotWritten):
        export(shared, shared.job(job.public_id), str(tmp_path / "nowhere" / "trace.bin"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotWritten):
        export(shared, shared.job(job.public_id), str(tmp_path / "folder"))
    assert not list(tmp_path.glob(".*part"))


def test_no_content_of_a_job_is_in_its_trace(shared: Store) -> None:
    """Input, state, arguments, results, questions and answers are in neither the tree nor the page."""
    job = run(shared, chain(one, pushes, asks), {"log": [CANARY]})
    answered(shared)
    work(shared, chain(one, pushes, asks))
    found = told(shared, job)
    assert found.status == "done"
    assert CANARY not in json.dumps(found.as_dict())
    assert CANARY.encode() not in page(found)


def test_a_credential_in_an_error_is_not_shown(shared: Store) -> None:
    """What looks like a credential in an error's text is masked, also where the error comes from a span."""
    secret = "sk-proj-" + "a1B2" * 12

    def leaks(state: Log) -> Log:
        raise ValueError(f"refused: {secret}")

    job = run(shared, chain(leaks))
    assert secret not in json.dumps(told(shared, job).as_dict())
    with_spans(shared, job, [a_span(1, "step 1 n", everstep__step=1, error=f"ValueError: {secret}")])
    assert secret not in json.dumps(told(shared, job).as_dict())


def test_when_a_checkpoint_was_made_is_in_its_id() -> None:
    """RFC 9562's own example of a UUIDv6; other ids tell no time."""
    assert trace_rows.made_at_ns("1EC9414C-232A-6B00-B3C8-9F6BDECED846") == 1_645_557_742_000_000_000
    assert trace_rows.made_at_ns("not an id") is None
    assert trace_rows.made_at_ns("01a22bd0-a869-77c4-8449-d353103909f3") is None


def test_a_job_that_has_not_run(shared: Store) -> None:
    """It waits, and that is all there is to draw."""
    job, _ = shared.enqueue("graph", {"log": []})
    assert outline(told(shared, job).nodes) == "queued [open]\n"


def test_every_outcome_of_a_leg_has_its_word(shared: Store) -> None:
    """A job that a draining worker gave back shows a leg that was given back, which is no error."""
    from everstep.runtime.settle import Outcome

    shared.enqueue("graph", {"log": []})
    job = begin_running(shared)
    settled(shared, job, Outcome("released"))
    leg = told(shared, job).legs[0].node
    assert (leg.facts["outcome"], leg.status) == ("given back", "ok")


def test_the_worker_s_own_spans(shared: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans that a real worker kept: with the ledger's state of an effect, and a review where it was asked."""
    monkeypatch.setenv("EVERSTEP_TRACES", "record")
    graph = chain(one, pushes, asks)
    job, _ = shared.enqueue("graph", {"log": []})
    Worker(shared, {"graph": graph}).run(until_idle=True)
    answered(shared)
    Worker(shared, {"graph": graph}).run(until_idle=True)
    found = told(shared, job)
    assert [leg.has_spans for leg in found.legs] == [True, True]
    assert outline([leg.node for leg in found.legs]) == (
        "leg 1\n  step 1 node_0\n  step 2 node_1\n    effect push\n  step 3 node_2\n  review interrupt\n"
        "leg 2\n  step 3 node_2\n"
    )
    effects = [node for node in found.legs[0].node.walk() if node.kind == "effect"]
    assert [(node.detail, node.facts["effect.calls"]) for node in effects] == [("confirmed", 1)]
