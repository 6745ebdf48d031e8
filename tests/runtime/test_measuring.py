"""What a worker measures of the jobs it runs, and when the record cannot be read for metrics."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import resource
import threading
import time
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.func import entrypoint
from langgraph.types import interrupt
from sqlalchemy import update

from everstep import effect
from everstep.checkpoints.jobs import LostClaim
from everstep.checkpoints.metrics import RecordSamples
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import StoreUnavailable
from everstep.nodes.attempt import Attempt
from everstep.observability import metric_names as names
from everstep.observability.measures import Measures
from everstep.observability.prometheus import PrometheusPage
from everstep.observability.tally import Tally
from everstep.runtime import measuring
from everstep.runtime.errand import Lines, Voice, Word
from everstep.runtime.outage import RecordOutage
from everstep.runtime.worker import Worker
from tests.support.black_hole import BlackHole
from tests.support.jobs import Log, chain, run, work
from tests.support.measured_graphs import Kept, StreamingModel, agent
from tests.support.models import MeteredModel
from tests.support.postgres import fresh_postgres
from tests.support.record import claim
from tests.support.scrape import scrape
from tests.support.waiting import until


def one(state: Log) -> Log:
    """A node."""
    return {"log": [1]}


def measured(store: Store, graph: Any, **worker: Any) -> Kept:
    """What is measured of one job of the graph."""
    kept = Kept()
    run(store, graph, measures=kept, **worker)
    return kept


def labels(kept: Kept, metric: names.Metric) -> list[tuple[str, ...]]:
    """The labels of what was measured of a metric, in order."""
    return [found for _, found in kept.of(metric)]


# ---- steps and attempts


def test_each_step_is_measured_once(store: Store) -> None:
    """Of three nodes three steps, and one attempt that was done; slots and running jobs, and an end that closes."""
    kept = measured(store, chain(one, one, one), concurrency=3)
    assert labels(kept, names.STEP_DURATION) == [("graph",)] * 3
    assert all(0 <= took < 60 for took, _ in kept.of(names.STEP_DURATION))
    assert labels(kept, names.LEG_DURATION) == [("graph", "done")]
    assert kept.of(names.SLOTS) == [(3, ())]
    assert [value for value, _ in kept.of(names.RUNNING_JOBS)] == [1, 0]
    assert kept.closed


def test_steps_of_a_subgraph_are_its_jobs_one(store: Store) -> None:
    """What a subgraph stores on its way is no step of the job; a job that goes on counts what it still does."""
    inner = chain(one, one)
    asked: list[int] = []

    def ask(_state: Log) -> Log:
        asked.append(1)
        return {"log": [interrupt("go on?")]}

    kept = Kept()
    graph = chain(inner, ask, one)
    job = run(store, graph, measures=kept)
    assert labels(kept, names.LEG_DURATION) == [("graph", "review")]
    assert len(kept.of(names.STEP_DURATION)) == 1
    (review,) = store.reviews(job)
    store.answer(review.public_id, "respond", value="yes")
    work(store, graph, measures=kept)
    assert labels(kept, names.LEG_DURATION) == [("graph", "review"), ("graph", "done")]
    assert len(kept.of(names.STEP_DURATION)) == 3


def test_a_graph_that_is_a_function_is_measured(store: Store) -> None:
    """The functional API stores its input and its end: one step."""

    @entrypoint()
    def workflow(given: dict[str, Any]) -> dict[str, Any]:
        return given

    kept = measured(store, workflow)
    assert labels(kept, names.STEP_DURATION) == [("graph",)]


@pytest.mark.parametrize(
    ("error", "outcomes"), [(TimeoutError("slow"), ["retry", "done"]), (ValueError("wrong"), ["failed"])]
)
def test_attempts_are_told_apart_by_how_they_end(store: Store, error: Exception, outcomes: list[str]) -> None:
    """An attempt that is tried again and the one that then is done are two; one that fails for good is one."""
    errors = [error]

    def node(_state: Log) -> Log:
        if errors:
            raise errors.pop()
        return {"log": [1]}

    kept = measured(store, chain(node))
    assert labels(kept, names.LEG_DURATION) == [("graph", outcome) for outcome in outcomes]


def test_a_drained_job_is_released(store: Store) -> None:
    """A job that is given back is neither done nor lost."""
    kept = Kept()
    store.enqueue("graph", {"log": []})
    drained: list[Worker] = []

    def node(_state: Log) -> Log:
        drained[0].drain()
        return {"log": [1]}

    drained.append(Worker(store, {"graph": chain(node, one)}, measures=kept))
    drained[0].run()
    assert labels(kept, names.LEG_DURATION) == [("graph", "released")]


# ---- effects and what is stored


def test_effects_are_counted_by_what_came_of_them(store: Store) -> None:
    """Confirmed, and unknown when a person has to look."""

    @effect("world.lost")
    def lost() -> None:
        raise ConnectionResetError("nobody knows")

    def node(_state: Log) -> Log:
        lost()
        return {"log": []}

    def of(graph: Any, input: Any) -> list[tuple[str, ...]]:
        kept = Kept()
        run(store, graph, input, measures=kept)
        return labels(kept, names.EFFECT_OUTCOMES)

    assert of(agent(), {"log": [1]}) == [("confirmed",)]
    assert of(chain(node), {"log": [2]}) == [("unknown",)]


def test_bytes_are_those_of_the_values_that_steps_store(store: Store) -> None:
    """A node that stores a big value is seen by its size."""
    kept = measured(store, chain(lambda _state: {"log": ["x" * 100_000]}))
    stored = sum(value for value, _ in kept.of(names.CHECKPOINT_SIZE))
    assert 100_000 < stored < 1_000_000
    assert set(labels(kept, names.CHECKPOINT_SIZE)) == {("graph",)}


@pytest.mark.both_databases
def test_every_write_of_a_lost_claim_is_counted(store: Store, clock: ManualClock) -> None:
    """The one that finds out, and those that are refused because it did."""
    store.enqueue("graph", {})
    (job,) = claim(store, "first", lease_ms=1000)
    kept = Kept()
    attempt = Attempt(
        store,
        job.id,
        job.public_id,
        job.idempotency_key,
        job.claim_no,
        lambda _error: False,
        measures=kept,
    )
    saver = StepSaver(store, attempt)
    clock.advance(2000)
    assert [taken.id for taken in claim(store, "second")] == [job.id]
    config: Any = {"configurable": {"thread_id": job.thread_id, "checkpoint_ns": ""}}
    for refused in (1, 2, 3):
        with pytest.raises(LostClaim):
            saver.put(config, empty_checkpoint(), {"step": 0, "source": "loop"}, {})
        assert kept.of(names.STALE_WRITES) == [(1.0, ())] * refused


def test_a_settlement_of_a_lost_claim_is_counted(store: Store) -> None:
    """A graph that could not even be opened is settled by nobody who lost the job meanwhile: one write is refused."""

    def opened(_config: RunnableConfig) -> Any:
        job = store.jobs()[0]
        taken = update(agent_jobs).where(agent_jobs.c.id == job.id).values(claim_no=job.claim_no + 1, leased_by="other")
        store.write(lambda connection: connection.execute(taken)).result()
        raise ValueError("no graph")

    kept = Kept()
    store.enqueue("graph", {"log": []})
    worker = Worker(store, {"graph": opened}, measures=kept)
    ended = threading.Timer(0, lambda: (until(lambda: kept.of(names.LEG_DURATION)), worker.drain()))
    ended.start()
    worker.run()
    ended.join()
    assert labels(kept, names.LEG_DURATION) == [("graph", "lost")]
    assert kept.of(names.STALE_WRITES) == [(1.0, ())]


# ---- models


def test_a_model_call_that_streams_is_measured(store: Store) -> None:
    """Its length, its first chunk, its tokens by kind, and what the provider says it cost."""
    kept = measured(store, agent())
    where = ("chat", "tests", "metered-1")
    assert labels(kept, names.MODEL_DURATION) == [(*where, "")]
    assert labels(kept, names.TIME_TO_FIRST_CHUNK) == [where]
    assert kept.of(names.TOKENS) == [(80, (*where, "input")), (20, (*where, "output"))]
    assert kept.of(names.COST) == [(0.25, ("metered-1",))]
    ((first, _),), ((whole, _),) = kept.of(names.TIME_TO_FIRST_CHUNK), kept.of(names.MODEL_DURATION)
    assert 0 <= first <= whole


def test_a_model_call_that_does_not_stream_has_no_first_chunk(store: Store) -> None:
    """Nor does one that fails have tokens; it is told by the type of its error."""

    class Broken(MeteredModel):
        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            raise PermissionError("not for you")

    def node(_state: Log) -> Log:
        MeteredModel().invoke("hi")
        with contextlib.suppress(PermissionError):
            Broken().invoke("hi")
        return {"log": []}

    kept = measured(store, chain(node))
    assert [found[-1] for found in labels(kept, names.MODEL_DURATION)] == ["", "PermissionError"]
    assert len(kept.of(names.TOKENS)) == 2
    assert kept.of(names.TIME_TO_FIRST_CHUNK) == []


def test_a_model_without_a_name_is_unknown(store: Store) -> None:
    """Neither asked for by name nor answering with one."""

    def node(_state: Log) -> Log:
        StreamingModel(name_told="").invoke("hi")
        return {"log": []}

    kept = measured(store, chain(node))
    assert labels(kept, names.MODEL_DURATION) == [("chat", "tests", "unknown", "")]


# ---- the event loop and the record


async def test_a_node_that_blocks_the_loop_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due wakes late by as long as the loop stood still; and whether the record takes writes is told."""
    monkeypatch.setattr(measuring, "LOOP_EVERY_S", 0.01)
    kept, outage = Kept(), RecordOutage()
    watching = measuring.Measuring(kept, outage, slots=4)
    watching.start()
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    stood_s, now = 0.3, loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + stood_s)  # as the loop sees it, it stood still until now
    while not kept.of(names.RECORD_UNWRITABLE):
        await asyncio.sleep(0.01)
    assert max(value for value, _ in kept.of(names.LOOP_LAG)) >= stood_s - measuring.LOOP_EVERY_S
    assert kept.of(names.RECORD_UNWRITABLE)[-1] == (False, ())
    outage.met("claims", StoreUnavailable("the disk is full"))
    while kept.of(names.RECORD_UNWRITABLE)[-1] != (True, ()):
        await asyncio.sleep(0.01)
    assert {type(value) for value, _ in kept.of(names.RECORD_UNWRITABLE)} == {float}, "OTLP refuses a bool"
    watching.stop()
    assert kept.of(names.SLOTS) == [(4, ())]


def values(samples: RecordSamples) -> dict[tuple[str, tuple[str, ...]], float]:
    """What the record tells, by name and labels."""
    return {(sample.metric.name, sample.labels): sample.value for sample in samples()}


@pytest.mark.both_databases
def test_one_look_at_the_record_serves_all_who_ask(store: Store) -> None:
    """While it is fresh the record is not read again; afterwards it is."""
    kept, eager = RecordSamples(store, fresh_s=3600), RecordSamples(store, fresh_s=0)
    jobs = ("everstep.jobs", ("pending",))
    assert (values(kept)[jobs], values(eager)[jobs]) == (0, 0)
    store.enqueue("graph", {})
    assert (values(kept)[jobs], values(eager)[jobs]) == (0, 1)
    assert values(eager)["everstep.record_up", ()] == 1


def test_a_record_that_is_broken_takes_nothing_else_from_the_page(shared: Store) -> None:
    """`everstep_record_up` is 0, what it knows is missing, and what the process measured is there."""
    tally = Tally()
    page = PrometheusPage(RecordSamples(shared, fresh_s=0), tally)
    tally.add(names.STALE_WRITES)
    url = page.serve("127.0.0.1", 0)
    assert scrape(url)("everstep_record_up") == 1
    shared.close()
    for ending in ("", "-wal", "-shm"):
        shared.path.with_name(shared.path.name + ending).unlink(missing_ok=True)
    shared.path.write_bytes(b"this is no database, " * 1000)
    found = scrape(url)
    page.close()
    assert (found("everstep_record_up"), found("everstep_stale_writes_refused_total")) == (0, 1)
    assert "everstep_jobs" not in found.names
    assert {"everstep_record_up", "everstep_record_look_seconds"} <= found.names


def test_a_record_that_does_not_answer_is_not_waited_for() -> None:
    """A server behind a cut network: the page says so after its patience, and has the numbers again afterwards."""
    with fresh_postgres() as near, BlackHole(near.url, "far") as way, Store.open(way.url) as store:
        page = PrometheusPage(RecordSamples(store, fresh_s=0, patience_s=0.2, stale_s=0), Tally())
        url = page.serve("127.0.0.1", 0)
        until(lambda: scrape(url)("everstep_record_up") == 1, "the record")
        way.close()
        found = until(lambda: (page := scrape(url))("everstep_record_up") == 0 and page, "the outage")
        assert "everstep_running_jobs" in found.names
        assert "everstep_jobs" not in found.names
        way.open()
        until(lambda: scrape(url)("everstep_record_up") == 1, "the record's return")
        page.close()


def test_a_record_that_is_slow_is_shown_as_it_was() -> None:
    """While the next look takes longer than a page waits, the one before stands, and says that it was good."""
    with fresh_postgres() as near, BlackHole(near.url, "far") as way, Store.open(way.url) as store:
        samples = RecordSamples(store, fresh_s=0, patience_s=0.2, stale_s=3600)
        until(lambda: values(samples).get(("everstep.jobs", ("pending",))) == 0, "the record")
        way.close()
        assert values(samples)["everstep.record_up", ()] == 1
        near.enqueue("graph", {})
        assert values(samples)["everstep.jobs", ("pending",)] == 0
        way.open()
        until(lambda: values(samples).get(("everstep.jobs", ("pending",))) == 1, "the next look")


def test_all_who_ask_wait_for_one_look_together() -> None:
    """A collection of many metrics asks for each: they wait as long as one, and the others' numbers are not lost."""
    with fresh_postgres() as near, BlackHole(near.url, "far") as way, Store.open(way.url) as store:
        samples = RecordSamples(store, fresh_s=0, patience_s=0.5, stale_s=0)
        until(lambda: values(samples).get(("everstep.record_up", ())) == 1, "the record")
        way.close()
        began = time.monotonic()
        for _ in range(200):
            assert values(samples)["everstep.record_up", ()] == 0
        assert time.monotonic() - began < 50, "a hundred times one patience would be the sum of all"
        way.open()


# ---- the pipe of an isolated job


def test_a_pipe_of_any_number_can_be_asked_for_room() -> None:
    """A worker with thousands of connections hands its jobs descriptors above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    reading, writing = os.pipe()
    high = fcntl.fcntl(writing, fcntl.F_DUPFD_CLOEXEC, 1100)
    voice = Voice(high)
    voice.mention(Word("measured", ["everstep.step.duration", 1.0]))
    assert Lines().take(os.read(reading, 65536))[0]["kind"] == "measured"
    voice.close()
    os.close(writing)
    os.close(reading)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_observation_never_waits_for_the_worker() -> None:
    """A worker that reads nothing fills the pipe; what does not fit is dropped, and no line is cut."""
    reading, writing = os.pipe()
    voice = Voice(writing)
    for number in range(5_000):
        voice.mention(Word("measured", ["everstep.step.duration", number, "graph"]))
    voice.mention(Word("measured", ["x" * 100_000, 1]))
    os.set_blocking(reading, False)
    lines, found = Lines(), list[dict[str, Any]]()
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(reading, 65536):
            found += lines.take(chunk)
    assert 100 < len(found) < 5_000
    assert [message["detail"][1] for message in found] == list(range(len(found)))
    voice.mention(Word("measured", ["everstep.step.duration", -1.0, "graph"]))
    assert lines.take(os.read(reading, 65536))[0]["detail"][1] == -1
    voice.close()
    os.close(reading)


# ---- off


def test_nothing_is_made_when_nobody_asks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No callback is added, no task watches the loop, no size is summed: only calls that do nothing."""
    added: list[str] = []
    monkeypatch.setattr(Measures, "add", lambda _self, metric, *_: added.append(metric.name))
    callbacks: list[str] = []

    def node(_state: Log, config: RunnableConfig) -> Log:
        callbacks.extend(type(handler).__name__ for handler in config["callbacks"].handlers)
        return {"log": [1]}

    assert run(store, chain(node)).status == "done"
    assert "MeasuredCalls" not in callbacks
    assert added == ["everstep.slots"]
