"""Waiting within a request: for a job's end or a person's question, within a budget, and what leaving does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import delete

from everstep.checkpoints.schema import agent_jobs, job_events
from everstep.checkpoints.store import Store
from everstep.server import job_watch
from tests.support.native import agent, app_on, asking, job_of, working
from tests.support.waiting import PATIENCE, Halt

AN_HOUR_S = 3600.0


@pytest.mark.both_databases
@pytest.mark.parametrize(("wish", "status"), [("end", "done"), ("ask", "review"), ("fail", "failed")])
async def test_a_request_waits_for_a_jobs_end_or_for_its_question(shared: Store, wish: str, status: str) -> None:
    """200 with the job as it is then, whatever it came to; a question is named."""
    app, graphs = app_on(shared)
    body = {"graph": "agent", "input": {"log": [wish]}, "max_attempts": 1}
    async with asking(app) as client:
        with working(shared, graphs):
            made = await client.post("/everstep/jobs", params={"wait": 30}, json=body)
            shown = await client.get(f"/everstep/jobs/{made.json()['id']}", params={"wait": 30})
    assert (made.status_code, made.json()["status"], made.json()["created"]) == (200, status, True)
    assert (shown.status_code, len(shown.json()["open_reviews"])) == (200, 1 if status == "review" else 0)


@pytest.mark.both_databases
async def test_when_time_is_up_the_answer_is_where_to_ask(shared: Store) -> None:
    """202 with `Location` and `Retry-After`; the place then answers when the job has ended."""
    halt = Halt()
    app, graphs = app_on(shared, agent(halt))
    body = {"graph": "agent", "input": {"log": ["stand"]}}
    async with asking(app) as client:
        with working(shared, graphs):
            made = await client.post("/everstep/jobs", params={"wait": 0.05}, json=body)
            place = made.headers["location"]
            still = await client.get(place, params={"wait": 0.05})
            asked = asyncio.create_task(client.get(place, params={"wait": 30}))
            halt.release()
            ended = await asked
    assert [answer.status_code for answer in (made, still, ended)] == [202, 202, 200]
    assert (made.headers["retry-after"], still.headers["location"]) == ("1", place)
    assert (made.json()["created"], ended.json()["result"]) == (True, {"log": ["stand", "acted"]})


async def test_no_request_waits_longer_than_the_server_lets_it(store: Store) -> None:
    """The server's own limit bounds what is asked for; without `wait` nothing waits."""
    app, _ = app_on(store, wait_s=0.05)
    async with asking(app) as client:
        job = await job_of(client)
        waited = await client.get(f"/everstep/jobs/{job['id']}", params={"wait": AN_HOUR_S})
        plain = await client.get(f"/everstep/jobs/{job['id']}")
        endless = await client.get(f"/everstep/jobs/{job['id']}", params={"wait": "inf"})
    assert [answer.status_code for answer in (waited, plain, endless)] == [202, 200, 422]


async def test_a_repeated_request_waits_for_the_job_that_it_made(shared: Store) -> None:
    """By its `Idempotency-Key` it makes nothing again, and still answers with the job's end."""
    app, graphs = app_on(shared)
    sent: dict[str, Any] = {
        "json": {"graph": "agent", "input": {"log": []}},
        "params": {"wait": 0.05},
        "headers": {"Idempotency-Key": "1"},
    }
    async with asking(app) as client:
        first = await client.post("/everstep/jobs", **sent)
        with working(shared, graphs):
            place = first.headers["location"]
            await client.get(place, params={"wait": 30})
        again = await client.post("/everstep/jobs", **sent)
    assert (first.status_code, again.status_code, again.headers["idempotency-replayed"]) == (202, 200, "true")
    assert (first.json()["id"], again.json()["status"]) == (again.json()["id"], "done")
    assert len(shared.jobs()) == 1


@pytest.mark.both_databases
async def test_a_jobs_end_wakes_who_waits(shared: Store, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before time is up; in SQLite nobody has to look for it: with looks an hour apart it comes all the same."""
    if database == "sqlite":
        monkeypatch.setattr(job_watch, "LOOK_EVERY_S", AN_HOUR_S)
    halt = Halt()
    app, graphs = app_on(shared, agent(halt), wait_s=AN_HOUR_S)
    async with asking(app) as client:
        job = await job_of(client, "stand")
        with working(shared, graphs):
            await asyncio.to_thread(halt.wait_until_reached)
            asked = asyncio.create_task(client.get(f"/everstep/jobs/{job['id']}", params={"wait": AN_HOUR_S}))
            while not getattr(app.state, "job_watch", None):
                await asyncio.sleep(0)
            halt.release()
            answer = await asyncio.wait_for(asked, PATIENCE)
    assert answer.json()["status"] == "done"


async def test_a_job_that_is_deleted_while_it_is_waited_for_is_not_there(shared: Store) -> None:
    """Who waits is told so, and does not wait on."""
    app, _ = app_on(shared)
    async with asking(app) as client:
        job = await job_of(client)
        asked = asyncio.create_task(client.get(f"/everstep/jobs/{job['id']}", params={"wait": 30}))
        while not getattr(app.state, "job_watch", None):
            await asyncio.sleep(0)
        row = shared.job(job["id"]).id
        gone = (delete(job_events).where(job_events.c.job_id == row), delete(agent_jobs).where(agent_jobs.c.id == row))
        shared.write(lambda connection: [connection.execute(one) for one in gone]).result()
        answer = await asked
    assert (answer.status_code, answer.json()["code"]) == (404, "job_not_found")


@pytest.mark.parametrize(("cancels", "status"), [(False, "pending"), (True, "failed")])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_client_that_leaves_cancels_only_what_it_said_it_would(
    shared: Store, method: str, cancels: bool, status: str
) -> None:
    """`cancel_on_disconnect=true` is the only way; while it waits for a new job as for one that is there."""
    app, _ = app_on(shared)
    async with asking(app) as client:
        path = "/everstep/jobs" if method == "POST" else f"/everstep/jobs/{(await job_of(client))['id']}"
    body = json.dumps({"graph": "agent", "input": {"log": []}}).encode() if method == "POST" else b""
    query = f"wait=30&cancel_on_disconnect={str(cancels).lower()}"
    await left(app, method, path, query, body)
    (job,) = shared.jobs()
    assert job.status == status


async def test_a_server_that_stops_is_no_client_that_left(shared: Store) -> None:
    """It cuts its waiting requests, and cancels nothing though they asked for it."""
    app, _ = app_on(shared)
    async with asking(app) as client:
        job = await job_of(client)
    app.state.served.stopping.set()
    await left(app, "GET", f"/everstep/jobs/{job['id']}", "wait=30&cancel_on_disconnect=true", b"")
    assert shared.job(job["id"]).status == "pending"


async def left(app: FastAPI, method: str, path: str, query: str, body: bytes) -> None:
    """A request whose client leaves as soon as it waits."""
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if sent:
            return sent.pop()
        while not getattr(app.state, "job_watch", None):
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        pass

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }
    await asyncio.wait_for(app(scope, receive, send), PATIENCE)
