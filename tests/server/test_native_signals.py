"""Signals over HTTP: emitted once, heard by jobs of their owner, and seen with what waits for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everstep import wait_for
from everstep.checkpoints.store import Store
from tests.support.jobs import chain
from tests.support.native import app_on, asking, job_of, key_for, until_idle

pytestmark = pytest.mark.both_databases
AS_JSON = {"content-type": "application/json"}


def hears(state: dict[str, Any]) -> dict[str, Any]:
    """A node that waits for the signal its input names."""
    arrived = wait_for(state["log"][0])
    return {"log": [arrived and arrived.payload]}


async def test_a_signal_wakes_a_job_and_is_emitted_once(store: Store) -> None:
    """The job's waits are shown while it waits; a second emission is told the first, and its key is replayed."""
    app, graphs = app_on(store, chain(hears))
    async with asking(app) as client:
        made = await job_of(client, "paid:17")
        await until_idle(store, graphs)
        parked = (await client.get(f"/everstep/jobs/{made['id']}")).json()
        (waiting,) = (await client.get("/everstep/signals/waits")).json()["waits"]
        once = {"Idempotency-Key": "1"}
        given = [
            await client.post("/everstep/signals/paid:17", json={"payload": {"amount": amount}}, headers=headers)
            for amount, headers in ((5, once), (5, once), (6, {}))
        ]
        await until_idle(store, graphs)
        done = (await client.get(f"/everstep/jobs/{made['id']}")).json()
        listed = (await client.get("/everstep/signals")).json()["signals"]
        none_left = (await client.get("/everstep/signals/waits")).json()["waits"]
    assert (parked["status"], [wait["signal"] for wait in parked["waits"]]) == ("pending", ["paid:17"])
    assert (waiting["job"], waiting["state"], waiting["node"]) == (made["id"], "open", "node_0")
    assert [answer.json()["emitted"] for answer in given] == [True, True, False]
    assert given[1].headers["idempotency-replayed"] == "true"
    assert given[2].json()["signal"] == given[0].json()["signal"]
    assert done["result"]["log"] == ["paid:17", {"amount": 5}]
    assert [signal["payload"] for signal in listed] == [{"amount": 5}]
    assert none_left == []


async def test_owners_emit_for_their_own_jobs(store: Store) -> None:
    """Another owner's signal of the same name is another signal."""
    app, graphs = app_on(store, chain(hears))
    async with asking(app, key_for(store, "anna")) as anna, asking(app, key_for(store, "berta")) as berta:
        made = await job_of(anna, "go")
        await until_idle(store, graphs)
        await berta.post("/everstep/signals/go", json={"payload": "berta's"})
        await until_idle(store, graphs)
        assert store.job(made["id"]).status == "pending"
        assert (await berta.get("/everstep/signals/waits")).json() == {"waits": []}
        await anna.post("/everstep/signals/go", json={"payload": "anna's"})
        await until_idle(store, graphs)
        assert (await anna.get(f"/everstep/jobs/{made['id']}")).json()["result"]["log"] == ["go", "anna's"]
        assert [one["emitted_by"] for one in (await anna.get("/everstep/signals")).json()["signals"]] == ["anna"]


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("everstep.mine", {}, "everstep."),
        ("x" * 201, {}, "200"),
        ("%20x", {}, "white space"),
        ("x", {"payload": {"password": "hunter2-hunter2"}}, "$.password"),
        ("x", {"payload": "a" * 300_000}, "262144"),
        ("x", {"value": 1}, "value"),
        ("x", {"payload": "\ud800"}, "JSON"),
    ],
)
async def test_what_is_no_signal_is_refused(store: Store, path: str, body: dict[str, Any], named: str) -> None:
    """With 422 that says what, and nothing is stored."""
    app, _ = app_on(store)
    async with asking(app) as client:
        answer = await client.post(f"/everstep/signals/{path}", content=json.dumps(body), headers=AS_JSON)
        listed = (await client.get("/everstep/signals")).json()["signals"]
    assert (answer.status_code, named in answer.text, listed) == (422, True, []), answer.text
