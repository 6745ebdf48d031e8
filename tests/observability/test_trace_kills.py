"""The trace of a job whose worker was killed, wherever that was: a whole tree in each form, and at a receiver."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from everstep.checkpoints.store import Store
from everstep.checkpoints.trace_rows import effects_of
from everstep.cli.trace_screen import lines
from everstep.clock import ManualClock
from everstep.observability import tracing
from everstep.observability.identity import root_span_id, trace_id
from everstep.runtime import span_exporter
from everstep.runtime.trace import build
from everstep.runtime.trace.otlp import export
from everstep.runtime.trace.page import page
from everstep.runtime.trace.steps import EITHER
from everstep.runtime.trace.tree import UNFINISHED, Node, TraceTree
from tests.support import processes, traced
from tests.support.record import record
from tests.support.waiting import PATIENCE

GRAPH = "branching"
RECORDED, UNTRACED = {"EVERSTEP_TRACES": "record"}, dict[str, str]()
AN_HOUR_MS = 3_600_000
POINTS = ("job.claimed", "checkpoint.", "writes.", "effect.", "job.before_settle")
"""Where it is killed; behind the settlement the leg is over."""
Path_ = tuple[str, ...]


def drawn_paths(node: Node, above: Path_ = ()) -> Iterator[Path_]:
    """Of everything in a leg that is a span, its name and the names of what it lies in."""
    here = (*above, node.name)
    yield here
    for child in node.children:
        if child.kind not in ("review", "wait", "gap"):
            yield from drawn_paths(child, here)


def exported_paths(spans: list[Span]) -> Counter[Path_]:
    """The same of exported spans; the root is called by its leg."""
    by_id = {span.span_id: span for span in spans}

    def path(span: Span) -> Path_:
        if span.parent_span_id:
            return (*path(by_id[span.parent_span_id]), span.name)
        (number,) = [one.value.int_value for one in span.attributes if one.key == "everstep.leg"]
        return (f"leg {number}",)

    return Counter(path(span) for span in spans)


def is_forest(spans: list[Span], roots: set[str]) -> None:
    """No id twice, no parent missing or of another trace, and no roots but these."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)
    for span in spans:
        if span.parent_span_id:
            assert span.parent_span_id in by_id, f"{span.name} lies in a span that is not there"
            assert by_id[span.parent_span_id].trace_id == span.trace_id
        assert span.end_time_unix_nano >= span.start_time_unix_nano > 0
    assert {span.span_id.hex() for span in spans if not span.parent_span_id} == roots


def exported(store: Store, folder: Path) -> list[Span]:
    """The spans that `--otlp` writes."""
    (job,) = store.jobs()
    export(store, job, str(folder / "trace.bin"))
    request = ExportTraceServiceRequest.FromString((folder / "trace.bin").read_bytes())
    return [span for group in request.resource_spans for scope in group.scope_spans for span in scope.spans]


def on_page(tree: TraceTree) -> list[str]:
    """The names of the entries on the page, in order."""
    found = re.search(rb'<script[^>]*type="application/json"[^>]*>(.*?)</script>', page(tree), re.DOTALL)
    assert found is not None

    def names(nodes: list[dict[str, Any]]) -> Iterator[str]:
        for node in nodes:
            yield node["name"]
            yield from names(node.get("children", []))

    return list(names(json.loads(found[1])["nodes"]))


def on_screen(tree: TraceTree) -> list[str]:
    """The entries in the terminal: all lines but the head, and those that tell more of one."""
    told = [line.plain.strip("│├└─ !✗…") for line in lines(tree, everything=True)][1:]
    return [line for line in told if not line.startswith(("next: ", "at "))]


def is_whole(store: Store, folder: Path) -> TraceTree:
    """All forms tell the same, as one tree a leg, in which everything lies where it ran."""
    (job,) = store.jobs()
    tree = build.of_job(store, job)
    spans = exported(store, folder)
    is_forest(spans, {root_span_id(job.public_id, leg.number) for leg in tree.legs})
    assert exported_paths(spans) == Counter(path for leg in tree.legs for path in drawn_paths(leg.node))
    names = [node.name for top in tree.nodes for node in top.walk()]
    assert on_page(tree) == names
    screen = on_screen(tree)
    assert len(screen) == len(names)
    assert all(line.startswith(name) for line, name in zip(screen, names, strict=True))
    places = {row.key: row.place for row in store.read(lambda c: effects_of(c, job.id, 100))}
    nodes = {tuple(part.partition(":")[0] for part in (place or "").split("|")): place for place in places.values()}
    for leg in tree.legs:
        for path in drawn_paths(leg.node):
            if path[-1].startswith("effect"):
                assert tuple(name.split()[-1] for name in path[1:-1]) in nodes, path
            if path[-1].startswith("chat in"):
                wanted = [path[-1].split()[-1]]
                assert [name.split()[-1] for name in path[1:-1]] in (wanted, ["sub", *wanted]), path
        steps = Counter((one.facts.get("checkpoint.ns"), one.name) for one in leg.node.children if one.kind == "step")
        assert max((count for (place, _), count in steps.items() if place), default=1) == 1
    return tree


def points(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each point that a worker passes with the job, as often as it does."""
    folder.mkdir()
    passed: list[str] = []
    monkeypatch.setenv("EVERSTEP_TRACES", "record")
    with record("sqlite", folder) as store:
        store.enqueue(GRAPH, {"world": str(folder / "world")})
        passed += processes.work(store.url, GRAPH).elements()
    monkeypatch.delenv("EVERSTEP_TRACES")
    counts = Counter(point for point in passed if point.startswith(POINTS))
    return [f"{point}@{number}" for point, times in sorted(counts.items()) for number in range(1, times + 1)]


def lies_in_what_is_unfinished(tree: TraceTree) -> None:
    """What the last leg had begun and not ended lies in steps that are unfinished, each with its number."""

    def look(node: Node, above: list[Node]) -> None:
        if node.detail == "intended":
            assert above
            assert all(UNFINISHED in one.facts and re.match(r"step \d", one.name) for one in above)
        for child in node.children:
            look(child, [*above, node])

    for child in tree.legs[-1].node.children:
        look(child, [])


@pytest.mark.parametrize("first", [RECORDED, UNTRACED], ids=["traced", "untraced"])
def test_a_kill_at_any_point_leaves_a_whole_trace(
    first: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before another worker takes the job over, and after one has finished it, in turn with and without traces."""
    every = points(tmp_path / "uninterrupted", monkeypatch)
    assert len(every) > 30
    for number, point in enumerate(every):
        folder = tmp_path / point
        folder.mkdir()
        then = (RECORDED, UNTRACED)[number % 2]
        with record("sqlite", folder) as store:
            store.enqueue(GRAPH, {"world": str(folder / "world")})
            assert traced.run(store.url, GRAPH, first, crash_at=point), f"nothing died at {point}"
            is_whole(store, folder)
            later = ManualClock(store.clock.now_ms() + AN_HOUR_MS)
            with Store.open(store.url, clock=later) as looked_at:
                lies_in_what_is_unfinished(is_whole(looked_at, folder))
            assert not traced.run(store.url, GRAPH, then)
            after = is_whole(store, folder)
        ended = [
            node.name
            for leg in after.legs
            for node in leg.node.children
            if node.status == "ok" and node.detail not in (EITHER, "interrupted")
        ]
        if after.legs[0].has_spans or then:
            assert Counter(ended) == {"step 1 plan": 1, "step 2 sub": 1, "step 2 work": 2, "step 3 join": 1}, point
        else:
            known = {node.name for node in after.legs[1].node.children if node.detail != EITHER}
            assert known <= set(ended), point


@pytest.mark.both_databases
def test_a_receiver_is_sent_whole_traces(
    database: str, tmp_path: Path, start_receiver: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the leg after a killed one is exported nothing lies in a span that never came."""
    every = points(tmp_path / "uninterrupted", monkeypatch)
    receiver = start_receiver()
    sends = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_METRICS_EXPORTER": "none"}
    for name, value in sends.items():
        monkeypatch.setenv(name, value)
    traces = tracing.from_environment(service_version="1.2.3")
    died = 0
    for point in every[::4]:
        folder = tmp_path / point
        folder.mkdir()
        with record(database, folder) as store:
            job, _ = store.enqueue(GRAPH, {"world": str(folder / "world")})
            assert traced.run(store.url, GRAPH, sends, crash_at=point)
            assert not traced.run(store.url, GRAPH, sends)
            assert set(span_exporter.flush(store, traces, holder="test", seconds=PATIENCE).values()) == {""}
            is_whole(store, folder)
        legs = {trace_id(job.public_id, leg): root_span_id(job.public_id, leg) for leg in (1, 2)}
        spans = {span["span_id"]: span for span in receiver.spans if span["trace_id"] in legs}
        for span in spans.values():
            if span["parent_span_id"]:
                assert spans[span["parent_span_id"]]["trace_id"] == span["trace_id"]
            else:
                assert legs[span["trace_id"]] == span["span_id"]
            if span["attributes"].get("everstep.outcome") == "died":
                died += bool(span["parent_span_id"])
                assert span["attributes"]["error.type"] == "worker_died"
                assert span["attributes"]["langfuse.observation.level"] == "WARNING"
        assert {span["trace_id"] for span in spans.values()} == set(legs)
    assert died
