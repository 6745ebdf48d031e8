"""Services, health and metrics over HTTP: what is out, whether the record is well, numbers for a monitor."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from everstep.checkpoints import health, services
from everstep.checkpoints.metrics import exposition
from everstep.checkpoints.services import Report
from everstep.checkpoints.store import Store
from everstep.errors import StoreUnavailable
from tests.support.native import app_on, asking, job_of, key_for
from tests.support.record import claim

SERVICE = "api.example.com"


def goes_out(store: Store) -> None:
    """A job meets an outage of the service."""
    (job,) = claim(store)
    met = Report(SERVICE, "rate_limited", "429")
    store.write(
        partial(services.report, job=job, met=met, now=store.clock.now_ms(), wait_ms=lambda _outages: 60_000)
    ).result()


async def test_services_are_shown_and_opened(store: Store) -> None:
    """Which are out and who waits, as far as the caller sees them; opening one concerns everybody."""
    app, _ = app_on(store)
    async with asking(app) as client:
        job = await job_of(client, services=[SERVICE])
        goes_out(store)
        waits = (await client.get(f"/everstep/jobs/{job['id']}")).json()["waits_for"]
        (listed,) = (await client.get("/everstep/services")).json()["services"]
        shown = (await client.get(f"/everstep/services/{SERVICE}")).json()
        none = await client.get("/everstep/services/other.example.com")
    async with asking(app, key_for(store, "ben")) as ben, asking(app, key_for(store, "ops", "admin")) as ops:
        (foreign,) = (await ben.get("/everstep/services")).json()["services"]
        refused = await ben.post(f"/everstep/services/{SERVICE}/open")
        opened = await ops.post(f"/everstep/services/{SERVICE}/open")
    assert (waits, listed["jobs"], listed["gate"], listed["symptom"]) == (
        [SERVICE],
        [job["id"]],
        "closed",
        "rate_limited",
    )
    assert (shown, foreign) == (listed, {**listed, "jobs": []})
    assert (none.status_code, refused.status_code) == (404, 403)
    assert (opened.json()["gate"], store.services()[0].gate) == ("open", "open")


async def test_whether_the_server_lives_and_can_work_is_told_to_everybody(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key, once there are some; when the record takes no write it is not ready, and lives."""
    app, _ = app_on(store)
    key_for(store, "anna")
    async with asking(app) as client:
        well = [await client.get("/everstep/health"), await client.get("/everstep/ready")]

        async def fails(_operation: Any) -> None:
            raise StoreUnavailable("the disk at /secret/place is full")

        app.state.readiness._tried_at = float("-inf")
        monkeypatch.setattr(store, "awrite", fails)
        ill = [await client.get("/everstep/health"), await client.get("/everstep/ready")]
    assert [answer.json() for answer in well] == [{"status": "ok"}, {"status": "ready", "record": None}]
    assert [answer.status_code for answer in (*well, *ill)] == [200, 200, 200, 503]
    assert ill[1].json() == {"status": "unavailable", "record": "store_unavailable"}


async def test_many_who_ask_whether_it_is_ready_cost_one_look(store: Store) -> None:
    """A look is good for a second, so that anybody may ask."""
    app, _ = app_on(store)
    async with asking(app) as client:
        await client.get("/everstep/ready")
        before = store.commits
        for _ in range(20):
            assert (await client.get("/everstep/ready")).status_code == 200
    assert store.commits - before <= 2  # a slow machine may take a second for them


async def test_the_numbers_are_those_of_the_command(store: Store) -> None:
    """The page names every metric of `everstep metrics`; it tells of everybody, so an owner's key does not get it."""
    app, _ = app_on(store)
    async with asking(app) as client:
        await job_of(client)
        page = await client.get("/everstep/metrics")
    async with asking(app, key_for(store, "anna", "admin")) as anna, asking(app, key_for(store, "*", "read")) as all_:
        refused, taken = await anna.get("/everstep/metrics"), await all_.get("/everstep/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    assert 'everstep_jobs{state="pending"} 1.0' in page.text
    described = {line for line in exposition(health.examine(store)).splitlines() if line.startswith("# TYPE")}
    assert described <= set(page.text.splitlines())
    assert (refused.status_code, taken.status_code) == (403, 200)


async def test_what_the_doctor_finds_is_told_to_an_admin(store: Store) -> None:
    """The findings of `everstep doctor`; a graph that cannot be loaded is wrong."""
    app, _ = app_on(store, object())
    async with asking(app) as client:
        found = (await client.get("/everstep/doctor")).json()
    async with asking(app, key_for(store, "*", "read", "run", "review")) as other:
        refused = await other.get("/everstep/doctor")
    checks = {one["check"]: one["level"] for one in found["findings"]}
    assert (checks["record"], checks["graph"], found["ok"]) == ("ok", "wrong", False)
    assert refused.status_code == 403
