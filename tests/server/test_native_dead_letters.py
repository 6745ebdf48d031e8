"""Dead letters over HTTP: listed, looked at, run again, deleted; many only by a confirmed number."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from everstep.checkpoints.store import Store
from everstep.checkpoints.views import evidence, letter
from everstep.clock import ManualClock
from tests.support.native import app_on, asking, job_of, key_for, until_idle


async def failed(store: Store, app: FastAPI, graphs: Any, number: int, key: str | None = None) -> list[str]:
    """Jobs that failed, the newest failure first."""
    async with asking(app, key) as client:
        for one in range(number):
            await job_of(client, "fail", one, max_attempts=1)
            await until_idle(store, graphs)
            assert isinstance(store.clock, ManualClock)
            store.clock.advance(1000)
        listed = await client.get("/everstep/dead-letters")
    return [job["id"] for job in listed.json()["dead_letters"]]


async def test_what_failed_is_listed_page_by_page_and_shown(store: Store) -> None:
    """The newest failure first, by graph and error; one with all that `dlq show` tells; what did not fail is none."""
    app, graphs = app_on(store)
    ids = await failed(store, app, graphs, 3)
    async with asking(app) as client:
        well = await job_of(client)
        ended = await job_of(client, "other")
        await client.post(f"/everstep/jobs/{ended['id']}/cancel")
        first = (await client.get("/everstep/dead-letters", params={"limit": 2})).json()
        rest = (await client.get("/everstep/dead-letters", params={"cursor": first["next_cursor"]})).json()
        named = (await client.get("/everstep/dead-letters", params={"code": "ValueError", "graph": "agent"})).json()
        other = (await client.get("/everstep/dead-letters", params={"code": "worker_died"})).json()
        every = (await client.get("/everstep/dead-letters", params={"everything": True})).json()
        shown = await client.get(f"/everstep/dead-letters/{ids[0]}")
        none = await client.get(f"/everstep/dead-letters/{well['id']}")
    letters = [letter(store.job(job_id)) for job_id in ids]
    assert first["dead_letters"] + rest["dead_letters"] == named["dead_letters"] == letters
    assert (rest["next_cursor"], other["dead_letters"]) == (None, [])
    assert [one["ended_by"] for one in every["dead_letters"]] == ["cancelled", "error", "error", "error"]
    assert shown.json() == evidence(store, store.job(ids[0]))
    assert (none.status_code, none.json()["code"]) == (409, "job_state_conflict")


async def test_one_is_run_again_and_many_by_their_number(store: Store) -> None:
    """Without it nothing is done, and the number there is is told."""
    app, graphs = app_on(store)
    ids = await failed(store, app, graphs, 3)
    async with asking(app) as client:
        one = await client.post("/everstep/dead-letters/redrive", json={"jobs": ids[:1]})
        unasked = await client.post("/everstep/dead-letters/redrive", json={"all": True})
        wrong = await client.post("/everstep/dead-letters/redrive", json={"all": True, "confirm": 3})
        before = [store.job(job_id).status for job_id in ids]
        right = await client.post("/everstep/dead-letters/redrive", json={"all": True, "confirm": 2})
        none = await client.post("/everstep/dead-letters/redrive", json={"all": True})
    assert one.json()["results"] == [{"id": ids[0], "redriven": True, "status": "pending", "error": None}]
    assert [(answer.status_code, answer.json()["jobs"]) for answer in (unasked, wrong)] == [(409, 2), (409, 2)]
    assert before == ["pending", "failed", "failed"]
    assert [result["id"] for result in right.json()["results"]] == ids[1:]
    assert ([store.job(job_id).status for job_id in ids], none.json()) == (["pending"] * 3, {"results": []})


async def test_what_is_deleted_is_confirmed_always(store: Store) -> None:
    """A named one, too; its key stays known."""
    app, graphs = app_on(store)
    ids = await failed(store, app, graphs, 2)
    async with asking(app) as client:
        unasked = await client.post("/everstep/dead-letters/purge", json={"jobs": ids[:1]})
        named = await client.post("/everstep/dead-letters/purge", json={"jobs": ids[:1], "confirm": 1})
        rest = await client.post("/everstep/dead-letters/purge", json={"all": True, "code": "ValueError", "confirm": 1})
        again = await client.post("/everstep/jobs", json={"graph": "agent", "input": {"log": ["fail", 1]}})
    assert (unasked.status_code, unasked.json()["code"], unasked.json()["jobs"]) == (409, "confirmation_needed", 1)
    assert named.json() == {"results": [{"id": ids[0], "purged": True, "reason": None}]}
    assert [one["id"] for one in rest.json()["results"]] == ids[1:]
    assert store.jobs() == []
    assert (again.status_code, again.json()["code"]) == (410, "job_pruned")


async def test_jobs_are_named_or_chosen_never_both(store: Store) -> None:
    """A request that says neither, or both, is refused."""
    app, _ = app_on(store)
    async with asking(app) as client:
        for body in ({}, {"jobs": ["0"], "all": True}, {"jobs": ["0"], "graph": "agent"}, {"graph": "agent"}):
            for what in ("redrive", "purge"):
                answer = await client.post(f"/everstep/dead-letters/{what}", json=body)
                assert answer.status_code == 422, (what, body)


async def test_owners_see_their_own_and_an_admin_moves_them(store: Store) -> None:
    """Another owner's are not there, neither by id nor among all; a key that may run moves none."""
    app, graphs = app_on(store)
    hers = await failed(store, app, graphs, 1, key_for(store, "anna"))
    his = await failed(store, app, graphs, 1, key_for(store, "ben"))
    async with asking(app, key_for(store, "ben")) as ben, asking(app, key_for(store, "ben", "admin")) as admin:
        hidden = await ben.get(f"/everstep/dead-letters/{hers[0]}")
        refused = await ben.post("/everstep/dead-letters/redrive", json={"jobs": his})
        foreign = await admin.post("/everstep/dead-letters/redrive", json={"jobs": hers})
        every = await admin.post("/everstep/dead-letters/redrive", json={"all": True, "confirm": 1})
    assert len(his) == 1
    assert (hidden.status_code, refused.status_code, foreign.status_code) == (404, 403, 404)
    assert [one["id"] for one in every.json()["results"]] == his
    assert store.job(hers[0]).status == "failed"
