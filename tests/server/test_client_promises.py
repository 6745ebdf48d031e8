"""What clients may rely on when connections break, workers freeze, and answers or requests come twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.errors import NotFoundError
from langgraph_sdk.schema import StreamPart
from sqlalchemy import select

from everstep.checkpoints import schema
from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from tests.support.chat_graphs import catalogue
from tests.support.jobs import work
from tests.support.live import live
from tests.support.outside import happened
from tests.support.waiting import PATIENCE
from tests.support.worker_process import Process, gated, go

pytestmark = pytest.mark.both_databases
INPUT = {"log": ["in"]}


@pytest.fixture
def served(shared: Store) -> Iterator[str]:
    """The address of a server, with a worker beside it."""
    with live(shared, catalogue()) as url:
        yield url


def names(parts: list[StreamPart]) -> list[Any]:
    """What each event tells, in short."""
    return [next(iter(part.data)) if part.event == "updates" else part.event for part in parts]


def at_once(url: str, times: int, path: str, **request: Any) -> list[httpx.Response]:
    """Send the same request many times at the same moment."""

    async def send() -> list[httpx.Response]:
        limits = httpx.Limits(max_connections=times)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=PATIENCE) as client:
            return await asyncio.gather(*(client.post(path, **request) for _ in range(times)))

    return asyncio.run(send())


def test_a_worker_that_wakes_after_its_lease_tells_nothing(shared: Store, tmp_path: Path) -> None:
    """A worker is stopped, another finishes the run, the first goes on: state, events and effects stay as they are."""
    world = str(tmp_path / "world")
    with live(shared, GraphCatalogue.from_graphs({"graph": gated(world)}), work=False) as url:
        client = get_sync_client(url=url)
        thread = client.threads.create()["thread_id"]
        run = client.runs.create(thread, "graph", input={"log": []}, stream_mode=["updates", "custom"])["run_id"]
        zombie = Process(shared, world, lease=0.6)
        with zombie.stopped(shared):
            go(world)
            work(shared, gated(world))
            parts = list(client.runs.join_stream(thread, run, last_event_id="-1"))
            before = (everything(shared), happened(world))
        assert zombie.end() == 0
        assert (everything(shared), happened(world)) == before
        assert [part.data["attempt"] for part in parts if part.event == "metadata"] == [1, 2]
        assert [part.data["at"] for part in parts if part.event == "custom"] == ["a", "b", "c"]
        assert [name for name in names(parts) if name.startswith("node")] == ["node_0", "node_1", "node_2"]
        assert client.threads.get_state(thread)["values"] == {"log": ["a", "b", "c"]}
        assert list(client.runs.join_stream(thread, run, last_event_id="-1")) == parts
    assert happened(world) == ["a", "b", "c"]


def everything(store: Store) -> list[Any]:
    """The rows that a run writes."""
    tables = (schema.agent_jobs, schema.runs, schema.threads, schema.events, schema.effects)
    checkpoints = (f"SELECT * FROM {table}" for table in store.database.checkpoint_tables)
    return store.read(
        lambda connection: [
            *(connection.execute(select(table)).all() for table in tables),
            *(connection.exec_driver_sql(query).fetchall() for query in checkpoints),
        ]
    )


def test_a_question_is_answered_once(served: str) -> None:
    """Of many answers to one question that come at once one is taken; the others are told that it was."""
    client = get_sync_client(url=served)
    thread = client.threads.create()["thread_id"]
    asked: Any = client.runs.wait(thread, "nested", input=INPUT)
    resume = {asked["__interrupt__"][0]["id"]: "yes"}
    body = {"assistant_id": "nested", "command": {"resume": resume}}
    answers = at_once(served, 8, f"/threads/{thread}/runs", json=body)
    assert sorted(answer.status_code for answer in answers) == [200, *[409] * 7]
    (taken,) = [answer.json() for answer in answers if answer.status_code == 200]
    done: Any = client.runs.join(thread, taken["run_id"])
    assert done["log"] == ["in", "before", "first", "asked", "answered yes"]
    assert len(client.runs.list(thread)) == 2


def test_a_request_sent_fifty_times_starts_one_run(served: str) -> None:
    """Fifty requests with one `Idempotency-Key` at once start one run; each is told of it, all but one as a replay."""
    client = get_sync_client(url=served)
    thread = client.threads.create()["thread_id"]
    body, headers = {"assistant_id": "steps", "input": INPUT}, {"Idempotency-Key": "one"}
    answers = at_once(served, 50, f"/threads/{thread}/runs", json=body, headers=headers)
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert sum("Idempotency-Replayed" not in answer.headers for answer in answers) == 1
    assert [run["run_id"] for run in client.runs.list(thread, limit=100)] == [answers[0].json()["run_id"]]
    other = httpx.post(f"{served}/threads/{thread}/runs", json={**body, "input": None}, headers=headers)
    assert other.status_code == 409


def test_a_batch_starts_all_of_its_runs_or_none(served: str) -> None:
    """One that is refused keeps the others from being started; sent again under its key a batch starts nothing anew."""
    client = get_sync_client(url=served)
    good, bad = {"assistant_id": "steps", "input": INPUT}, {"assistant_id": "nobody", "input": INPUT}
    with pytest.raises(NotFoundError, match="nobody"):
        client.http.post("/runs/batch", json=[good, bad])
    assert client.threads.search() == []
    answers = at_once(served, 4, "/runs/batch", json=[good, good], headers={"Idempotency-Key": "batch"})
    assert len({answer.content for answer in answers}) == 1
    assert len({run["thread_id"] for run in answers[0].json()}) == 2
    assert len(client.threads.search()) <= 2


def test_a_thread_is_deleted_with_what_runs_on_it(served: str) -> None:
    """Deleting a thread cancels the run under way on it and those that wait, and then nothing of it is left."""
    client = get_sync_client(url=served)
    thread = client.threads.create()["thread_id"]
    stream = client.runs.stream(thread, "endless", input=INPUT, stream_mode="updates")
    assert names([next(stream), next(stream)]) == ["metadata", "a"]
    waiting = client.runs.create(thread, "steps", input=INPUT)["run_id"]
    client.threads.delete(thread)
    with pytest.raises(NotFoundError):
        client.threads.get(thread)
    with pytest.raises(NotFoundError):
        client.runs.get(thread, waiting)


def test_a_stream_that_is_cut_at_every_frame_misses_nothing(served: str) -> None:
    """A client whose connection breaks after every event, or within one, sees each event once."""
    whole: dict[bool, list[StreamPart]] = {}
    client = get_sync_client(url=served)
    for within in (False, True):
        thread = client.threads.create()["thread_id"]
        body = {"assistant_id": "steps", "input": INPUT, "stream_mode": ["values", "updates", "custom"]}
        seen = list(cut(served, f"/threads/{thread}/runs/stream", body, within=within))
        run = client.runs.list(thread)[0]["run_id"]
        whole[within] = list(client.runs.join_stream(thread, run, last_event_id="-1"))
        assert seen == [(part.id, part.event, part.data) for part in whole[within]]
        assert len(seen) == 12
    assert names(whole[False]) == names(whole[True])


def cut(url: str, path: str, body: dict[str, Any], *, within: bool) -> Iterator[tuple[str, str, Any]]:
    """The events of a stream whose connection breaks after each of them, or in the middle of the one behind it."""
    method, headers, given = "POST", dict[str, str](), body
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        for _ in range(30):
            with client.stream(method, path, headers=headers, json=given) as response:
                assert response.status_code == 200
                path = response.headers.get("Location", path)
                event = frame(response.iter_raw(chunk_size=1), within=within)
            method, given = "GET", None
            headers = {"Last-Event-ID": event[0]}
            yield event
            if event[1] == "end":
                return
    pytest.fail("the stream comes to no end")


def frame(stream: Iterator[bytes], *, within: bool) -> tuple[str, str, Any]:
    """The first event of a stream; what begins behind it is read in part."""
    text = b""
    for byte in stream:
        text += byte
        if text.endswith(b"\n\n") and not text.startswith(b":"):
            break
        if text.endswith(b"\n\n"):
            text = b""
    if within and b"event: end" not in text:
        for _ in range(10):
            next(stream)
    told = dict(line.split(": ", 1) for line in text.decode().strip().splitlines())
    return told["id"], told["event"], json.loads(told["data"])


def test_a_stream_goes_on_after_a_restart_of_the_server(shared: Store, tmp_path: Path) -> None:
    """A server that stops takes no event along: another one on the record goes on behind the last one seen."""
    world = str(tmp_path / "world")
    graphs = GraphCatalogue.from_graphs({"graph": gated(world)})
    with live(shared, graphs, work=False) as url:
        client = get_sync_client(url=url)
        thread = client.threads.create()["thread_id"]
        run = client.runs.create(thread, "graph", input={"log": []}, stream_mode="updates")["run_id"]
        worker = Process(shared, world)
        stream = client.runs.join_stream(thread, run)
        first = [next(stream), next(stream)]
        stream.close()
    go(world)
    with live(shared, graphs, work=False) as url:
        again = get_sync_client(url=url)
        rest = list(again.runs.join_stream(thread, run, last_event_id=first[-1].id))
        assert worker.end() == 0
    assert names(first) == ["metadata", "node_0"]
    assert names(rest) == ["node_1", "node_2", "end"]


def test_the_sdk_goes_on_by_itself(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's own client, cut off in a stream, comes back behind the last event it saw and gives each one once."""
    monkeypatch.setattr("langgraph_sdk._sync.http.time.sleep", lambda _seconds: None)
    client = get_sync_client(url=served)
    thread = client.threads.create()["thread_id"]
    client.http.client._transport = Breaking(client.http.client._transport, after=2)
    parts = list(client.runs.stream(thread, "steps", input=INPUT, stream_mode=["updates", "custom"]))
    assert [part.event for part in parts] == ["metadata", *["custom", "updates"] * 3, "end"]
    assert len({part.id for part in parts}) == len(parts)


class Breaking(httpx.BaseTransport):
    """Breaks the connection of a stream after so many events, each time."""

    def __init__(self, real: httpx.BaseTransport, after: int) -> None:
        self._real = real
        self._after = after

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._real.handle_request(request)
        if "event-stream" in response.headers.get("content-type", ""):
            stream: Any = response.stream
            response.stream = Broken(stream, self._after)
        return response


class Broken(httpx.SyncByteStream):
    """The bytes of so many events, then an error."""

    def __init__(self, stream: httpx.SyncByteStream, after: int) -> None:
        self._stream = stream
        self._after = after

    def __iter__(self) -> Iterator[bytes]:
        events = 0
        for part in self._stream:
            yield part
            events += part.count(b"\n\n")
            if events >= self._after and b"event: end" not in part:
                raise httpx.ReadError("the connection is broken")

    def close(self) -> None:
        self._stream.close()
