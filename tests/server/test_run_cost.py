"""What a client's run costs in the record, counted: times wander and counts do not."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import anyio.to_thread
import httpx
import pytest
from sqlalchemy import Connection

from everstep.checkpoints import events, runs
from everstep.server.langgraph import following
from tests.support.chat_graphs import catalogue
from tests.support.live import live
from tests.support.record import fresh
from tests.support.waiting import PATIENCE

RUNS = 10


def test_no_statement_of_a_run_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the request to its answer all that a run reads and writes was built once, in the server and the worker."""
    built: list[str] = []
    looking = threading.local()
    execute, look = Connection.execute, events.newest_of

    def counted(connection: Connection, statement: Any, *given: Any, **named: Any) -> Any:
        if not getattr(looking, "now", False):
            built.append(str(statement))
        return execute(connection, statement, *given, **named)

    def at_all(connection: Connection, thread_ids: Any) -> Any:
        """Seldom: when the first of all begins to wait, and every two seconds."""
        looking.now = True
        try:
            return look(connection, thread_ids)
        finally:
            looking.now = False

    with (
        fresh(tmp_path) as store,
        live(store, catalogue()) as url,
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        asked = {"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "hello"}]}}

        def run() -> None:
            thread_id = client.post("/threads", json={}).json()["thread_id"]
            assert client.post(f"/threads/{thread_id}/runs/wait", json=asked).status_code == 200

        run()
        monkeypatch.setattr(events, "newest_of", at_all)
        monkeypatch.setattr(Connection, "execute", counted)
        for _ in range(RUNS):
            run()
        monkeypatch.undo()
    often = {statement: number for statement, number in Counter(built).items() if number >= RUNS}  # others are beats
    assert often == {}


def test_what_a_run_tells_is_no_reason_to_read_it_for_who_waits_for_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that is waited for its row is read as the wait begins, after the first look, and at its end."""
    read: list[str] = []
    find = runs.find

    def counted(connection: Connection, run_id: str) -> Any:
        if threading.current_thread().name.startswith("everstep-read"):
            read.append(run_id)
        return find(connection, run_id)

    monkeypatch.setattr(following, "SOON_S", PATIENCE)
    monkeypatch.setattr("everstep.server.watch.LONGEST_S", 2 * PATIENCE)
    with (
        fresh(tmp_path) as store,
        live(store, catalogue()) as url,
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        thread_id = client.post("/threads", json={}).json()["thread_id"]
        monkeypatch.setattr(runs, "find", counted)
        modes = ["values", "updates", "messages", "custom"]
        asked = {"assistant_id": "chat", "input": {"messages": [{"role": "user", "content": "hello"}]}}
        answer = client.post(f"/threads/{thread_id}/runs/wait", json={**asked, "stream_mode": modes})
        assert answer.status_code == 200
        monkeypatch.undo()
        told = store.read(lambda connection: events.of_thread(connection, thread_id))
    assert len(told) > 5
    assert 2 <= len(read) <= 3


def test_no_request_goes_through_a_thread_of_fastapi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a path depends on is worked out where the request is: a thread for each would cost more than all of it."""
    handed: list[str] = []
    run_sync = anyio.to_thread.run_sync

    async def counted(function: Any, *given: Any, **named: Any) -> Any:
        handed.append(str(function))
        return await run_sync(function, *given, **named)

    asked: dict[str, Any] = {"assistant_id": "steps", "input": {"log": []}}
    with (
        fresh(tmp_path) as store,
        live(store, catalogue()) as url,
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        monkeypatch.setattr(anyio.to_thread, "run_sync", counted)
        thread = "/threads/" + client.post("/threads", json={}).json()["thread_id"]
        assert client.post(f"{thread}/runs/wait", json=asked).status_code == 200
        assert client.post(f"{thread}/runs/stream", json=asked).status_code == 200
        assert client.get(f"{thread}/state").status_code == 200
        assert client.get("/everstep/jobs", params={"limit": 1}).status_code == 200
    assert handed == []
