"""Clients that read slowly, over real sockets: what they cost the server, and when an agent waits for them."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import httpx
import pytest
from langgraph.config import get_stream_writer
from langgraph.graph import StateGraph

from everstep.checkpoints import runs
from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from tests.support.live import live
from tests.support.server_process import starting
from tests.support.waiting import PATIENCE, until

MEGABYTE = 1_000_000
LARGE = 60
"""Megabytes: many times what sockets hold, and what an agent runs ahead."""


class Poured(TypedDict, total=False):
    """How many megabytes were emitted, of how many."""

    n: int
    of: int


class Pouring:
    """A graph that emits a megabyte a step.

    Attributes:
        steps: How many it has done.
        reads: Whether the test has begun to read.
        read_first: Whether it had, when the last step was done.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.reads = self.read_first = False
        builder = StateGraph(Poured)
        builder.add_node("pour", self._pour)
        builder.set_entry_point("pour")
        builder.add_conditional_edges("pour", lambda state: "pour" if state["n"] < state["of"] else "__end__")
        self.catalogue = GraphCatalogue.from_graphs({"pour": builder.compile()})

    async def _pour(self, state: Poured) -> Poured:
        get_stream_writer()("x" * MEGABYTE)
        self.steps += 1
        self.read_first = self.reads
        return {"n": state.get("n", 0) + 1}


def is_over(store: Store) -> bool:
    """Whether the only run is over."""
    return bool(store.jobs()) and not store.read(runs.going)


@contextmanager
def client(url: str, policy: str | None, path: str | None = None) -> Generator[socket.socket]:
    """A client that has asked for a stream, and reads nothing."""
    body = json.dumps({"assistant_id": "pour", "input": {"of": LARGE}, "stream_mode": ["custom"]})
    headers = {"Host": "localhost", "Content-Length": str(len(body)), "Connection": "close"}
    headers |= {} if policy is None else {"Everstep-Slow-Client": policy}
    lines = [f"POST {path or '/runs/stream'} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        connection.settimeout(PATIENCE)
        connection.connect((httpx.URL(url).host, httpx.URL(url).port or 80))
        connection.sendall("\r\n".join([*lines, "", body]).encode())
        yield connection


def rest(connection: socket.socket) -> bytes:
    """All that comes until the end."""
    found = bytearray()
    while part := connection.recv(256 * 1024):
        found += part
    return bytes(found)


@pytest.fixture
def waits(caplog: pytest.LogCaptureFixture) -> Any:
    """Tells whether the worker has said that it waits for a client."""
    caplog.set_level(logging.INFO, "everstep.worker")
    return lambda: "waits for a client that reads slowly" in caplog.text


@pytest.mark.both_databases
def test_an_agent_waits_for_a_client_that_is_slow(shared: Store, waits: Any) -> None:
    """It stands still while the client is far behind, goes on as the client reads, and the client misses nothing."""
    pouring = Pouring()
    with live(shared, pouring.catalogue) as url, client(url, "pause;budget=3600") as connection:
        until(waits, "a wait")
        assert 0 < pouring.steps < LARGE
        assert not is_over(shared)
        pouring.reads = True
        told = rest(connection)
        assert told.count(b"event: custom") == LARGE
        assert b"event: end" in told
        assert pouring.read_first


def test_a_client_that_leaves_lets_the_agent_go_on(shared: Store, waits: Any) -> None:
    """Nobody is waited for who reads no more."""
    pouring = Pouring()
    with live(shared, pouring.catalogue) as url:
        with client(url, "pause;budget=3600"):
            until(waits, "a wait")
        until(lambda: is_over(shared), "the end of the run")
        assert pouring.steps == LARGE


def test_an_agent_waits_no_longer_than_its_budget(shared: Store, waits: Any) -> None:
    """When the time is up it goes on without the client, for which the log keeps everything."""
    pouring = Pouring()
    with live(shared, pouring.catalogue) as url, client(url, "pause;budget=0.2") as connection:
        until(lambda: is_over(shared), "the end of the run")
        assert waits()
        assert rest(connection).count(b"event: custom") == LARGE


@pytest.mark.parametrize("policy", [None, "buffer"])
def test_without_being_asked_an_agent_waits_for_nobody(shared: Store, waits: Any, policy: str | None) -> None:
    """The run ends though its client reads nothing, and the client then gets all of it."""
    pouring = Pouring()
    with live(shared, pouring.catalogue) as url, client(url, policy) as connection:
        until(lambda: is_over(shared), "the end of the run")
        assert not waits()
        assert rest(connection).count(b"event: custom") == LARGE


def test_an_agent_that_waits_can_be_cancelled(shared: Store, waits: Any) -> None:
    """A cancellation ends the wait and the run."""
    pouring = Pouring()
    with live(shared, pouring.catalogue) as url, client(url, "pause;budget=3600") as connection:
        until(waits, "a wait")
        cancelled = httpx.post(f"{url}/runs/cancel", json={"status": "all"}, timeout=PATIENCE)
        assert cancelled.status_code == 204
        until(lambda: is_over(shared), "the end of the run")
        assert pouring.steps < LARGE
        assert b"event: end" in rest(connection)


def test_a_job_that_waits_is_given_back_when_its_worker_stops(shared: Store, waits: Any) -> None:
    """A drain ends the wait; the next worker goes on with the run, and the client with its stream."""
    pouring = Pouring()
    with live(shared, pouring.catalogue) as url, client(url, "pause;budget=3600"):
        until(waits, "a wait")
    before = pouring.steps
    assert before < LARGE
    assert [job.status for job in shared.jobs()] == ["pending"]
    with live(shared, pouring.catalogue):
        until(lambda: is_over(shared), "the end of the run")
    assert pouring.steps in (LARGE, LARGE + 1)


@pytest.mark.parametrize("given", ["", "wait", "pause;budget=-1", "pause;budget=3601", "pause;budget=x", "pause;a=1"])
def test_a_policy_that_does_not_exist_is_refused(shared: Store, given: str) -> None:
    """With 422, by the header's name; nothing is started."""
    with live(shared, Pouring().catalogue, work=False) as url:
        body = {"assistant_id": "pour", "input": {"of": 1}}
        answered = httpx.post(f"{url}/runs/stream", json=body, headers={"Everstep-Slow-Client": given})
        assert answered.status_code == 422
        assert "Everstep-Slow-Client" in answered.json()["detail"]
        assert not shared.jobs()


GRAPH = """
from typing import TypedDict
from langgraph.graph import StateGraph

class State(TypedDict, total=False):
    of: int

pour = StateGraph(State).add_node("n", lambda state: state).set_entry_point("n").compile()
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel tells of no process's memory")
def test_a_client_that_reads_nothing_costs_the_server_no_memory(tmp_path: Path, shared: Store) -> None:
    """A server streams 60 MB to a client that takes none of it: its memory does not grow by half of that."""
    (tmp_path / "pour.py").write_text(GRAPH)
    (tmp_path / "langgraph.json").write_text(json.dumps({"graphs": {"pour": "./pour.py:pour"}}))
    with starting(tmp_path) as start, live(shared, Pouring().catalogue):
        server = start("--store", shared.url, command="server")

        def peak() -> int:
            lines = Path(f"/proc/{server.ready['pid']}/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024

        with server.client() as asking:
            assert asking.get("/ok").status_code == 200
        before = peak()
        with client(server.url, None) as connection:
            until(lambda: is_over(shared), "the end of the run")
            assert peak() - before < LARGE * MEGABYTE / 2
            assert rest(connection).count(b"event: custom") == LARGE
        assert peak() - before < LARGE * MEGABYTE / 2
