"""Schedules over HTTP: added, looked at, paused, fired, looked ahead and back, deleted; each owner's alone."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.checkpoints import schedules
from everstep.checkpoints.schedule import Definition
from everstep.checkpoints.store import Store
from tests.support.native import app_on, asking, key_for

pytestmark = pytest.mark.both_databases

NIGHTLY: dict[str, Any] = {
    "name": "nightly",
    "graph": "agent",
    "cron": "30 2 * * *",
    "timezone": "Europe/Berlin",
    "overlap": "resume",
    "input": {"log": []},
    "priority": 7,
}


async def test_a_schedule_is_added_fired_and_deleted(store: Store) -> None:
    """As by the commands; the same request by its key makes it once."""
    app, _ = app_on(store)
    async with asking(app) as client:
        once = {"Idempotency-Key": "1"}
        made = [await client.post("/everstep/schedules", json=NIGHTLY, headers=once) for _ in range(2)]
        twice = await client.post("/everstep/schedules", json=NIGHTLY)
        paused = (await client.post("/everstep/schedules/nightly/pause")).json()
        resumed = (await client.post("/everstep/schedules/nightly/resume")).json()
        fired = (await client.post("/everstep/schedules/nightly/fire")).json()
        coming = (await client.get("/everstep/schedules/nightly/next", params={"count": 2})).json()["slots"]
        past = (await client.get("/everstep/schedules/nightly/history")).json()["slots"]
        (listed,) = (await client.get("/everstep/schedules")).json()["schedules"]
        shown = (await client.get(f"/everstep/schedules/{listed['id']}")).json()
        gone = [await client.delete("/everstep/schedules/nightly") for _ in range(2)]
    assert (made[0].content, made[1].headers["idempotency-replayed"]) == (made[1].content, "true")
    assert (twice.status_code, twice.json()["code"]) == (409, "schedule_exists")
    assert (made[0].json()["timezone"], made[0].json()["priority"]) == ("Europe/Berlin", 7)
    assert (paused["enabled"], paused["off"], resumed["enabled"]) == (False, "paused", True)
    assert (fired["outcome"], fired["detail"]["by"], past) == ("fired", "http", [fired])
    assert store.job(fired["job"]).payload == {"log": []}
    assert [slot["local"][11:16] for slot in coming] == ["02:30", "02:30"]
    assert (shown, shown["last"]) == (listed, fired)
    assert [answer.status_code for answer in gone] == [204, 404]


@pytest.mark.parametrize(
    ("change", "status", "named"),
    [
        ({"cron": "61 * * * *"}, 422, "61"),
        ({"timezone": "Mars/Olympus"}, 422, "Mars/Olympus"),
        ({"overlap": "ignore"}, 422, "overlap"),
        ({"graph": "none"}, 404, "none"),
        ({"name": "a b"}, 422, "name"),
        ({"input": None}, 422, "null"),
        ({"every": 5}, 422, "every"),
        ({"end": "9999-12-31T23:59:59-14:00"}, 422, "end"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(
    store: Store, change: dict[str, Any], status: int, named: str
) -> None:
    """And no schedule is made."""
    app, _ = app_on(store)
    async with asking(app) as client:
        answer = await client.post("/everstep/schedules", json={**NIGHTLY, **change})
    assert (answer.status_code, named in answer.json()["detail"]) == (status, True), answer.text
    assert store.read(schedules.every) == []


async def test_owners_see_their_own_schedules_alone(store: Store) -> None:
    """Another's is not there, by whatever path; the jobs it makes are its owner's."""
    app, _ = app_on(store)
    async with asking(app, key_for(store, "anna")) as anna:
        await anna.post("/everstep/schedules", json=NIGHTLY)
        fired = (await anna.post("/everstep/schedules/nightly/fire")).json()
    async with asking(app, key_for(store, "ben")) as ben:
        path = "/everstep/schedules/nightly"
        asked = [await ben.get(path + place) for place in ("", "/next", "/history")]
        asked += [await ben.post(path + place) for place in ("/pause", "/resume", "/fire")]
        asked.append(await ben.delete(path))
        listed = (await ben.get("/everstep/schedules")).json()["schedules"]
    assert ([answer.status_code for answer in asked], listed) == ([404] * 7, [])
    assert store.job(fired["job"]).owner == "anna"


async def test_what_a_file_keeps_is_not_deleted(store: Store) -> None:
    """It would be made again: 409 says where it is to be taken out."""
    definition = Definition(graph="agent", cron="0 0 * * *", overlap="skip")
    make = {"now": store.clock.now_ms(), "origin": "file:/etc/everstep.toml", "name": "kept"}
    store.write(lambda c: schedules.create(c, definition, **make)).result()
    app, _ = app_on(store)
    async with asking(app) as client:
        answer = await client.delete("/everstep/schedules/kept")
    assert (answer.status_code, "/etc/everstep.toml" in answer.json()["detail"]) == (409, True)
