"""The outbox of webhooks over HTTP: listed, shown, sent again, and each owner's own."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from everstep.checkpoints import deliveries
from everstep.checkpoints.store import Store
from everstep.graphs.event_sections import WebhooksSection
from everstep.graphs.policies import Policies
from everstep.runtime.deliveries import Deliveries
from tests.support.native import app_on, asking, job_of, key_for
from tests.support.receiver import Receiver

pytestmark = pytest.mark.both_databases
HERE = WebhooksSection(allow=["127.0.0.1"])
PATH = "/everstep/deliveries"


@pytest.fixture
def app(store: Store) -> FastAPI:
    """An application that may send to this machine."""
    return app_on(store, policies=Policies(webhooks=HERE))[0]


async def cancelled(client: httpx.AsyncClient, name: str, url: str) -> str:
    """A job that was cancelled, which its webhook is to be told of."""
    job = (await job_of(client, name, webhook=url))["id"]
    assert (await client.post(f"/everstep/jobs/{job}/cancel")).status_code == 200
    return job


def ids(answered: httpx.Response) -> list[str]:
    """The messages of a page."""
    assert answered.status_code == 200, answered.text
    return [one["id"] for one in answered.json()["deliveries"]]


async def test_messages_are_listed_by_page_and_state(store: Store, app: FastAPI) -> None:
    """Newest first, page by page, of a state or a job; one is shown with its body."""
    with Receiver(410).open() as receiver:
        async with asking(app) as client:
            jobs = [await cancelled(client, name, receiver.hook) for name in "abc"]
            first = await client.get(PATH, params={"limit": 2})
            rest = await client.get(PATH, params={"limit": 2, "cursor": first.json()["next_cursor"]})
            assert rest.json()["next_cursor"] is None
            assert [one["job"] for one in first.json()["deliveries"] + rest.json()["deliveries"]] == jobs[::-1]
            (oldest,) = ids(rest)
            assert Deliveries(store, HERE).send_due() == 3
            assert ids(await client.get(PATH, params={"state": "dead"})) != []
            assert len(ids(await client.get(PATH, params={"state": "delivered"}))) == 2
            assert ids(await client.get(PATH, params={"job": jobs[0]})) == [oldest]
            shown = (await client.get(f"{PATH}/{oldest}")).json()
    assert (shown["job"], shown["body"]["type"], shown["body"]["id"]) == (jobs[0], "job.failed", jobs[0])


async def test_a_message_is_sent_again_under_its_id(store: Store, app: FastAPI) -> None:
    """A replay of what was given up, or was taken, is due at once; the same request again replays nothing more."""
    with Receiver(410).open() as receiver:
        async with asking(app) as client:
            await cancelled(client, "a", receiver.hook)
            sender = Deliveries(store, HERE)
            assert sender.send_due() == 1
            (message,) = ids(await client.get(PATH, params={"state": "dead"}))
            again: list[Any] = []
            for _ in range(2):
                again.append(await client.post(f"{PATH}/{message}/replay", headers={"Idempotency-Key": "k"}))
            assert [one.json()["state"] for one in again] == ["pending", "pending"]
            assert (again[0].json()["tries"], again[0].json()["last_error"]) == (0, None)
            assert sender.send_due() == 1
            assert ids(await client.get(PATH, params={"state": "delivered"})) == [message]
    assert [one.headers["webhook-id"] for one in receiver.messages] == [message, message]


async def test_owners_see_their_own(store: Store, app: FastAPI) -> None:
    """A message about another's job is not there: not listed, not shown, not sent again."""
    anna, ben = key_for(store, "anna"), key_for(store, "ben")
    with Receiver().open() as receiver:
        async with asking(app, anna) as client:
            job = await cancelled(client, "a", receiver.hook)
            (message,) = ids(await client.get(PATH))
        async with asking(app, ben) as client:
            assert ids(await client.get(PATH)) == []
            for answered in (
                await client.get(f"{PATH}/{message}"),
                await client.post(f"{PATH}/{message}/replay"),
                await client.get(PATH, params={"job": job}),
            ):
                assert answered.status_code == 404
                assert "next_step" in answered.json()
        async with asking(app, key_for(store, "anna", "read")) as client:
            assert (await client.post(f"{PATH}/{message}/replay")).status_code == 403
    (kept,) = store.read(deliveries.every)
    assert kept.tries == 0
