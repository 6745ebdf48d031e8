"""Jobs over HTTP: submitted with all that a command can say, found, followed, stopped, sent on; each owner's alone."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from everstep.checkpoints.policy import Acceptance, Budget
from everstep.checkpoints.store import Store
from everstep.graphs.policies import Policies
from everstep.runtime.trace import build
from everstep.server.native import job_stream
from tests.support.live import live
from tests.support.native import agent, app_on, asking, events_of, job_of, key_for, until_idle, working
from tests.support.record import claim
from tests.support.waiting import PATIENCE, Halt

AN_HOUR_S = 3600.0


async def test_a_job_takes_all_that_a_command_can_say(store: Store) -> None:
    """Priority, attempts, version, services, keys, acceptance, budget, parent and webhook are kept with the job."""
    app, _ = app_on(store)
    async with asking(app) as client:
        parent = await job_of(client, "parent")
        made = await job_of(
            client,
            "child",
            key="mine",
            priority=9,
            max_attempts=7,
            workflow_version="2",
            services=["api.example.com"],
            concurrency_key="one at a time",
            acceptance={"verify": ["true"], "returns": 1, "high_risk": []},
            budget={"steps": 5, "cost": 0.5},
            parent=parent["id"],
            webhook="https://example.org/hook",
        )
    job = store.job(made["id"])
    assert made["created"]
    assert (made["priority"], made["max_attempts"], made["workflow_version"]) == (9, 7, "2")
    assert (job.idempotency_key, job.concurrency_key, job.webhook) == (
        "mine",
        "one at a time",
        "https://example.org/hook",
    )
    assert Acceptance.of(job.acceptance) == Acceptance(verify=("true",), returns=1, high_risk=())
    assert made["budget"]["limits"] == Budget(steps=5, cost=0.5).as_dict()
    assert made["parent"] == parent["id"]
    assert [service.name for service in store.services()] == ["api.example.com"]


async def test_what_the_configuration_asks_of_a_graph_holds_unless_it_is_said_otherwise(store: Store) -> None:
    """A budget in `everstep.toml` is the job's, but for the limits that are given."""
    policies = Policies.model_validate({"graphs": {"agent": {"budget": {"steps": 3, "tokens": 10}}}})
    app, _ = app_on(store, policies=policies)
    async with asking(app) as client:
        plain, other = await job_of(client, 1), await job_of(client, 2, budget={"steps": 8})
    assert plain["budget"]["limits"] == {"steps": 3, "tokens": 10}
    assert other["budget"]["limits"] == {"steps": 8, "tokens": 10}


async def test_the_same_submission_is_the_same_job(store: Store) -> None:
    """It is not made twice, and another input under its key is refused."""
    app, _ = app_on(store)
    async with asking(app) as client:
        first, again = await job_of(client, 1, key="k"), await job_of(client, 1, key="k")
        other = await client.post("/everstep/jobs", json={"graph": "agent", "input": {"log": [2]}, "key": "k"})
    assert (first["id"], first["created"], again["created"]) == (again["id"], True, False)
    assert (other.status_code, other.json()["code"]) == (409, "key_conflict")


async def test_the_same_request_by_its_idempotency_key_gets_the_same_answer(store: Store) -> None:
    """Submitting, cancelling and retrying: what was answered is answered again, and says so."""
    app, _ = app_on(store)
    async with asking(app) as client:
        body, once = {"graph": "agent", "input": {"log": []}}, {"Idempotency-Key": "1"}
        made = [await client.post("/everstep/jobs", json=body, headers=once) for _ in range(2)]
        path = f"/everstep/jobs/{made[0].json()['id']}/cancel"
        ended = [await client.post(path, headers=once) for _ in range(2)]
        plain = await client.post(path)
    assert made[0].content == made[1].content
    assert made[0].json()["created"]
    assert [answer.headers.get("idempotency-replayed") for answer in (*made, *ended)] == [None, "true", None, "true"]
    assert [answer.status_code for answer in (*ended, plain)] == [200, 200, 409]


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        ({"graph": "agent"}, 422, "input"),
        ({"graph": "agent", "input": None}, 422, "null"),
        ({"graph": "none", "input": {}}, 404, "none"),
        ({"graph": "agent", "input": {}, "tries": 3}, 422, "tries"),
        ({"graph": "agent", "input": {}, "priority": 11}, 422, "priority"),
        ({"graph": "agent", "input": {}, "key": " "}, 422, "key"),
        ({"graph": "agent", "input": {}, "key": "a\0"}, 422, "NUL"),
        ({"graph": "agent", "input": {}, "concurrency_key": " "}, 422, "concurrency key"),
        ({"graph": "agent", "input": {}, "budget": {"steps": 0}}, 422, "budget.steps"),
        ({"graph": "agent", "input": {}, "budget": {"steps": True}}, 422, "budget.steps"),
        ({"graph": "agent", "input": {}, "acceptance": {"returns": 1}}, 422, "nothing would be checked"),
        ({"graph": "agent", "input": {}, "services": ["https://x/y"]}, 422, "https://x/y"),
        ({"graph": "agent", "input": {}, "parent": "0"}, 404, "no job"),
        ({"graph": "agent", "input": {}, "webhook": "ftp://example.org"}, 422, "webhook"),
        ({"graph": "agent", "input": {"password": "x"}}, 422, "password"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    store: Store, body: dict[str, Any], status: int, named: str
) -> None:
    """Nothing is dropped, and nothing of a refused request is left."""
    app, _ = app_on(store)
    async with asking(app) as client:
        answer = await client.post("/everstep/jobs", json=body)
    assert (answer.status_code, named in answer.json()["detail"]) == (status, True), answer.text
    assert store.jobs() == []


async def test_commands_to_verify_with_take_an_admin(store: Store) -> None:
    """A key that may run graphs may not run commands on the worker's machine."""
    app, _ = app_on(store)
    body = {"graph": "agent", "input": {}, "acceptance": {"verify": ["true"]}}
    async with asking(app, key_for(store, "anna")) as anna, asking(app, key_for(store, "eve", "admin")) as eve:
        answers = [await client.post("/everstep/jobs", json=body) for client in (anna, eve)]
    assert [answer.status_code for answer in answers] == [403, 200]


async def test_owners_see_their_own_jobs_alone(store: Store) -> None:
    """Another's job is not there, by whatever path, as a parent and in lists; and their keys are two keys."""
    app, _ = app_on(store)
    async with asking(app, key_for(store, "anna")) as anna, asking(app, key_for(store, "ben")) as ben:
        hers, his = await job_of(anna, 1, key="k"), await job_of(ben, 2, key="k")
        path = f"/everstep/jobs/{hers['id']}"
        for place in ("", "/events", "/stream", "/trace", "/effects"):
            assert (await ben.get(path + place)).status_code == 404, place
        for place, body in (("/cancel", None), ("/retry", None), ("/budget", {"steps": 1})):
            assert (await ben.post(path + place, json=body)).status_code == 404, place
        child = {"graph": "agent", "input": {}, "parent": hers["id"]}
        assert (await ben.post("/everstep/jobs", json=child)).status_code == 404
        assert (await ben.get("/everstep/jobs", params={"parent": hers["id"]})).status_code == 404
        listed = (await ben.get("/everstep/jobs", params={"key": "k"})).json()["jobs"]
        others = (await ben.get("/everstep/jobs", params={"owner": "anna"})).json()["jobs"]
    assert ([job["id"] for job in listed], others) == ([his["id"]], [])
    assert store.job(hers["id"]).status == "pending"


async def test_an_owner_cannot_reach_anothers_key_by_a_name_that_looks_alike(store: Store) -> None:
    """Owner and key are kept apart, whatever characters they hold."""
    app, _ = app_on(store)
    async with asking(app, key_for(store, "a")) as one, asking(app, key_for(store, "a:b")) as other:
        first, second = await job_of(one, 1, key="b:c"), await job_of(other, 1, key="c")
    assert first["id"] != second["id"]
    assert second["created"]


async def test_a_list_is_read_page_by_page(store: Store) -> None:
    """`next_cursor` leads from the newest to the first; filters are kept by the one who asks."""
    app, _ = app_on(store)
    async with asking(app) as client:
        ids = [(await job_of(client, number))["id"] for number in range(5)]
        seen, cursor = list[str](), None
        while True:
            asked = {"limit": 2, "status": ["pending", "done"], "since": "2000-01-01T00:00:00Z"}
            asked = asked if cursor is None else {**asked, "cursor": cursor}
            page = (await client.get("/everstep/jobs", params=asked)).json()
            seen += [job["id"] for job in page["jobs"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
    assert seen == ids[::-1]


async def test_a_job_is_cancelled_and_sent_on(store: Store) -> None:
    """What is not running ends at once; a retry lets it go on; what has ended well does neither."""
    app, graphs = app_on(store)
    async with asking(app) as client:
        job = await job_of(client)
        path = f"/everstep/jobs/{job['id']}"
        ended, sent_on = await client.post(f"{path}/cancel"), await client.post(f"{path}/retry")
        await until_idle(store, graphs)
        refused = [await client.post(f"{path}/{what}") for what in ("cancel", "retry")]
    assert (ended.json()["status"], ended.json()["error"]["code"]) == ("failed", "cancelled")
    assert sent_on.json()["status"] == "pending"
    assert store.job(job["id"]).status == "done"
    assert [(answer.status_code, answer.json()["status"]) for answer in refused] == [(409, "done")] * 2


async def test_a_job_whose_budget_is_raised_goes_on(store: Store) -> None:
    """Limits are set by name, null takes one away, and a key that answers reviews may do it."""
    app, graphs = app_on(store)
    async with asking(app, key_for(store, "anna", "read", "run")) as anna:
        job = await job_of(anna, budget={"seconds": 1e-9})
        refused = await anna.post(f"/everstep/jobs/{job['id']}/budget", json={"seconds": None})
    await until_idle(store, graphs)
    before = store.job(job["id"]).status
    async with asking(app, key_for(store, "anna", "review")) as reviewer:
        shown = (await reviewer.get(f"/everstep/jobs/{job['id']}")).json()
        raised = await reviewer.post(f"/everstep/jobs/{job['id']}/budget", json={"seconds": None, "steps": 9})
        nothing = await reviewer.post(f"/everstep/jobs/{job['id']}/budget", json={})
    assert (refused.status_code, nothing.status_code) == (403, 422)
    assert (before, len(shown["open_reviews"])) == ("review", 1), shown
    assert (raised.json()["status"], raised.json()["budget"]["limits"]) == ("pending", {"steps": 9})


async def test_what_happened_is_told_in_order_and_on_from_any_place(store: Store) -> None:
    """Changes of status as a list, by the page; the stream tells the same and then the end."""
    app, graphs = app_on(store)
    async with asking(app) as client:
        job = await job_of(client)
        await until_idle(store, graphs)
        path = f"/everstep/jobs/{job['id']}"
        whole = (await client.get(f"{path}/events")).json()
        first = (await client.get(f"{path}/events", params={"limit": 1})).json()
        rest = (await client.get(f"{path}/events", params={"after": first["next_after"]})).json()
        streamed = events_of((await client.get(f"{path}/stream")).text)
        seen = {"Last-Event-ID": streamed[1][2]}
        resumed = events_of((await client.get(f"{path}/stream", headers=seen)).text)
        on = events_of((await client.get(f"{path}/stream", params={"after": streamed[0][2]}, headers=seen)).text)
        begun = events_of((await client.get(f"{path}/stream", params={"after": streamed[0][2]})).text)
        refused = await client.get(f"{path}/stream", headers={"Last-Event-ID": "yesterday"})
    assert [event["data"]["to"] for event in whole["events"]] == ["pending", "running", "done"]
    assert (first["events"] + rest["events"], whole["next_after"]) == (whole["events"], None)
    assert [(name, place) for name, _, place in streamed[:-1]] == [("status", one["id"]) for one in whole["events"]]
    assert (streamed[-1][0], json.loads(streamed[-1][1])["result"]) == ("end", {"log": ["acted"]})
    assert resumed == on == streamed[2:]
    assert begun == streamed[1:]
    assert refused.status_code == 422


async def test_a_stream_follows_a_job_that_runs(shared: Store) -> None:
    """It tells what happens as it happens, and ends when the job does."""
    halt = Halt()
    app, graphs = app_on(shared, agent(halt))
    async with asking(app) as client:
        job = await job_of(client, "stand")
        with working(shared, graphs):
            halt.wait_until_reached()
            halt.release()
            streamed = events_of((await client.get(f"/everstep/jobs/{job['id']}/stream")).text)
    assert [json.loads(data).get("to") for name, data, _ in streamed if name == "status"] == [
        "pending",
        "running",
        "done",
    ]
    assert streamed[-1][0] == "end"


async def test_a_job_with_runs_tells_what_they_emit(store: Store) -> None:
    """A run of LangGraph's interface is a job: its events are the job's, and its own end does not end the stream."""
    app, graphs = app_on(store)
    async with asking(app) as client:
        run = (await client.post("/runs", json={"assistant_id": "agent", "input": {"log": []}})).json()
        await until_idle(store, graphs)
        streamed = events_of((await client.get(f"/everstep/jobs/{run['run_id']}/stream")).text)
        listed = (await client.get(f"/everstep/jobs/{run['run_id']}/events")).json()["events"]
    names = [name for name, _, _ in streamed]
    assert names[-1] == "end"
    assert names.count("end") == 1
    assert {"status", "metadata", "values", "run.end"} <= set(names)
    assert {event["run_id"] for event in listed} == {None, run["run_id"]}
    assert [place for _, _, place in streamed[:-1]] == [event["id"] for event in listed]


@pytest.mark.both_databases
async def test_a_change_of_status_is_told_also_of_a_job_with_runs_that_emits_nothing(
    shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is claimed, and its stream says so before anything of its run comes."""
    monkeypatch.setattr(job_stream, "HEARTBEAT_S", AN_HOUR_S)
    _, graphs = app_on(shared)
    told: list[str] = []
    with live(shared, graphs, work=False) as url:
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
            run = (await client.post("/runs", json={"assistant_id": "agent", "input": {"log": []}})).json()
            async with client.stream("GET", f"/everstep/jobs/{run['run_id']}/stream") as streamed:
                async for line in streamed.aiter_lines():
                    if not line.startswith("data: ") or '"to"' not in line:
                        continue
                    told.append(json.loads(line.removeprefix("data: "))["to"])
                    if told == ["pending"]:
                        await asyncio.to_thread(claim, shared)
                    elif told[-1] == "running":
                        break
    assert told == ["pending", "running"]


async def test_the_trace_is_the_one_of_the_command(store: Store) -> None:
    """The whole tree, one leg of it, or only what failed; a leg that is none is not there."""
    app, graphs = app_on(store)
    async with asking(app) as client:
        job = await job_of(client, "fail", max_attempts=1)
        await until_idle(store, graphs)
        path = f"/everstep/jobs/{job['id']}/trace"
        whole, leg = await client.get(path), await client.get(path, params={"leg": 1})
        failed, none = await client.get(path, params={"errors": True}), await client.get(path, params={"leg": 2})
    drawn = build.of_job(store, store.job(job["id"]))
    assert whole.json() == drawn.as_dict()
    assert failed.json() == drawn.only_errors().as_dict()
    assert [one["leg"] for one in leg.json()["legs"]] == [1]
    assert (none.status_code, none.json()["code"]) == (404, "leg_not_found")
