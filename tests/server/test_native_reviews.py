"""Reviews over HTTP: found, answered once, by who may; effects of which nobody knows are settled so."""

from __future__ import annotations

import pytest

from everstep.checkpoints import jobs
from everstep.checkpoints.store import Store
from tests.support.native import app_on, asking, job_of, key_for, until_idle
from tests.support.record import begin_effect, begin_running

pytestmark = pytest.mark.both_databases


async def test_a_question_is_answered_once(store: Store) -> None:
    """The second answer gets 409 with the first one; the same request again, by its key, the first answer."""
    app, graphs = app_on(store)
    async with asking(app) as client:
        job = await job_of(client, "ask")
        await until_idle(store, graphs)
        (asked,) = (await client.get("/everstep/reviews")).json()["reviews"]
        path = f"/everstep/reviews/{asked['id']}"
        yes = {"decision": "respond", "value": "yes", "reason": "it is fine"}
        once = {"Idempotency-Key": "1"}
        first = await client.post(f"{path}/answer", json=yes, headers=once)
        repeated = await client.post(f"{path}/answer", json=yes, headers=once)
        second = await client.post(f"{path}/answer", json={"decision": "reject"})
        await until_idle(store, graphs)
        shown, left = (await client.get(path)).json(), (await client.get("/everstep/reviews")).json()["reviews"]
        answered = (await client.get("/everstep/reviews", params={"status": "answered"})).json()["reviews"]
    assert (asked["job"], asked["value"], asked["status"]) == (job["id"], {"question": "Go on?"}, "open")
    assert (first.status_code, first.json()["job_status"]) == (200, "pending")
    assert repeated.content == first.content
    assert (second.status_code, second.json()["code"]) == (409, "review_answered")
    assert second.json()["first_answer"] | {"at": None} == {
        "decision": "respond",
        "value": "yes",
        "reason": "it is fine",
        "by": "http",
        "at": None,
    }
    assert store.job(job["id"]).payload == {"log": ["ask"]}
    assert store.job(job["id"]).result_json == '{"log": ["ask", "yes"]}'
    assert (shown["answer"], left, answered) == (second.json()["first_answer"], [], [shown])


async def test_an_answer_is_bound_to_what_was_asked(store: Store) -> None:
    """With the digest of another question it is refused, and the question stays open."""
    app, graphs = app_on(store)
    async with asking(app) as client:
        await job_of(client, "ask")
        await until_idle(store, graphs)
        (asked,) = (await client.get("/everstep/reviews")).json()["reviews"]
        path, answer = f"/everstep/reviews/{asked['id']}/answer", {"decision": "approve"}
        other = await client.post(path, json={**answer, "argument_digest": "another"})
        same = await client.post(path, json={**answer, "argument_digest": asked["argument_digest"]})
    assert (other.status_code, other.json()["argument_digest"]) == (409, asked["argument_digest"])
    assert same.status_code == 200


async def test_answering_takes_the_scope_and_the_owner(store: Store) -> None:
    """A key that may only run does not answer, and another owner's questions are not there."""
    app, graphs = app_on(store)
    async with asking(app, key_for(store, "anna", "run")) as runner:
        await job_of(runner, "ask")
        await until_idle(store, graphs)
        (asked,) = (await runner.get("/everstep/reviews")).json()["reviews"]
        path = f"/everstep/reviews/{asked['id']}"
        refused = await runner.post(f"{path}/answer", json={"decision": "approve"})
    async with asking(app, key_for(store, "ben")) as ben:
        hidden = [await ben.get(path), await ben.post(f"{path}/answer", json={"decision": "approve"})]
        none = (await ben.get("/everstep/reviews")).json()["reviews"]
        foreign = await ben.get("/everstep/reviews", params={"job": asked["job"]})
    async with asking(app, key_for(store, "anna", "review")) as anna:
        answered = await anna.post(f"{path}/answer", json={"decision": "approve"})
    assert refused.status_code == 403
    assert ([one.status_code for one in hidden], none, foreign.status_code) == ([404, 404], [], 404)
    assert (answered.status_code, answered.json()["answer"]["by"]) == (200, "anna")


async def test_what_a_question_does_not_take_is_refused(store: Store) -> None:
    """A decision it does not know, one without its value, a credential; and it stays open."""
    app, graphs = app_on(store)
    async with asking(app) as client:
        await job_of(client, "ask")
        await until_idle(store, graphs)
        (asked,) = (await client.get("/everstep/reviews")).json()["reviews"]
        path = f"/everstep/reviews/{asked['id']}/answer"
        for body in (
            {"decision": "perhaps"},
            {"decision": "respond"},
            {"decision": "respond", "value": {"password": "x"}},
            {"decision": "approve", "by": "somebody else"},
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == 422, body
    assert store.review(asked["id"]).status == "open"


async def test_an_effect_of_which_nobody_knows_is_settled_by_its_review(store: Store) -> None:
    """The job's effects name the question; approved with the result, the effect is confirmed with it."""
    app, _ = app_on(store)
    async with asking(app) as client:
        made = await job_of(client)
        job = begin_running(store)
        begin_effect(store, job)
        now = store.clock.now_ms() + 1001
        store.cancel(made["id"])
        store.write(lambda c: jobs.end(c, jobs.get(c, job.id), now=now, actor="test")).result()
        path = f"/everstep/jobs/{made['id']}/effects"
        (before,) = (await client.get(path)).json()["effects"]
        answer = {"decision": "approve", "value": {"commit": "abc"}}
        settled = await client.post(f"/everstep/reviews/{before['review']}/answer", json=answer)
        after = (await client.get(path)).json()
    assert (before["name"], before["state"]) == ("push", "unknown")
    assert (settled.status_code, settled.json()["job_status"]) == (200, "failed")
    assert after["count"] == 1
    assert (after["effects"][0]["state"], after["effects"][0]["result"], after["effects"][0]["review"]) == (
        "confirmed",
        {"commit": "abc"},
        None,
    )


async def test_a_list_of_reviews_is_read_page_by_page(store: Store) -> None:
    """Oldest first; `next_cursor` leads on."""
    app, graphs = app_on(store)
    async with asking(app) as client:
        made = [(await job_of(client, "ask", number))["id"] for number in range(3)]
        await until_idle(store, graphs)
        first = (await client.get("/everstep/reviews", params={"limit": 2})).json()
        rest = (await client.get("/everstep/reviews", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert {one["job"] for one in first["reviews"] + rest["reviews"]} == set(made)
    assert [len(page["reviews"]) for page in (first, rest)] == [2, 1]
    assert rest["next_cursor"] is None
