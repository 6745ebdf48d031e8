"""Paid tasks over HTTP: each owner sees their own, anybody's is cancelled at the provider, administrators repair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints import ledger
from everstep.checkpoints.store import Store
from everstep.nodes.provider import submit_task
from everstep.nodes.providers.registry import Providers
from everstep.runtime.observation import Observation
from everstep.runtime.worker import Worker
from tests.support.jobs import chain
from tests.support.native import app_on, asking, key_for
from tests.support.paid import PRICE, QUOTE, Scripted, again, entries, grant, task_of
from tests.support.server_process import make_graphs, starting
from tests.support.waiting import until

LIST = "/everstep/provider-tasks"


@pytest.fixture
def films() -> Scripted:
    """A provider."""
    return Scripted("films")


async def test_tasks_are_listed_page_by_page(store: Store) -> None:
    """Newest first, by state, provider, key and owner; what a filter does not fit is not there."""
    app, _ = app_on(store)
    made = [task_of(store, f"film-{number}", to="pending") for number in range(3)]
    made.append(task_of(store, "song", to="submission_unknown", provider="songs"))
    ids = [task.public_id for task in reversed(made)]
    async with asking(app) as client:
        first = (await client.get(LIST, params={"limit": 3})).json()
        rest = (await client.get(LIST, params={"limit": 3, "cursor": first["next_cursor"]})).json()
        assert [task["id"] for task in first["tasks"] + rest["tasks"]] == ids
        assert rest["next_cursor"] is None
        for asked, found in (
            ({"state": "submission_unknown"}, ids[:1]),
            ({"provider": "films", "limit": 1}, ids[1:2]),
            ({"submission_key": "film-1"}, ids[2:3]),
            ({"owner": "bob"}, []),
        ):
            answer = await client.get(LIST, params=asked)
            assert [task["id"] for task in answer.json()["tasks"]] == found, asked
        assert (await client.get(LIST, params={"state": "odd"})).status_code == 422
        assert (await client.get(LIST, params={"job": "none"})).status_code == 404
        none = await client.get(f"{LIST}/none")
        assert (none.status_code, none.json()["next_step"]) == (404, "list them with: GET /everstep/provider-tasks")


async def test_owners_see_theirs_and_no_ids_of_the_provider(store: Store) -> None:
    """Another's task is as if it were not there; what is shown of one's own has no provider's id, to nobody."""
    app, _ = app_on(store)
    task, other = task_of(store, to="pending", owner="ada"), task_of(store, "his", to="pending", owner="bob")
    async with asking(app, key_for(store, "ada", "run", "read")) as ada:
        listed = await ada.get(LIST)
        shown = await ada.get(f"{LIST}/{task.public_id}")
        assert [one["id"] for one in listed.json()["tasks"]] == [task.public_id]
        assert (await ada.get(LIST, params={"owner": "bob"})).json()["tasks"] == []
        for path in ("", "/cancel", "/link", "/reconcile"):
            method = "POST" if path else "GET"
            hidden = await ada.request(method, f"{LIST}/{other.public_id}{path}", json={} if path else None)
            assert hidden.status_code == (403 if path in ("/link", "/reconcile") else 404), path
    found = shown.json()
    assert [(one["kind"], one["amount"]) for one in found["entries"]] == [("charge", -PRICE)]
    assert [one["state"] for one in found["generations"]] == ["pending"]
    for told in (listed.text, shown.text):
        assert "at-film" not in told
        assert task.provider_key not in told
        assert "everstep-0" not in told


async def test_a_task_is_cancelled_at_the_provider(store: Store, films: Scripted) -> None:
    """It then is what the provider says, with its refund; again is no error; what cannot be asked is said clearly."""
    app, _ = app_on(store, providers=Providers.of(films))
    task, lost = task_of(store, to="pending"), task_of(store, "lost", to="submission_unknown")
    gone, mute = task_of(store, "gone", to="pending", provider="gone"), task_of(store, "mute", to="pending")
    async with asking(app) as client:
        first = await client.post(f"{LIST}/{task.public_id}/cancel")
        second = await client.post(f"{LIST}/{task.public_id}/cancel")
        assert (first.status_code, first.json()["state"]) == (200, "failed")
        assert second.json() == first.json()
        assert films.cancelled == ["at-film"]
        unknown = await client.post(f"{LIST}/{lost.public_id}/cancel")
        assert (unknown.status_code, unknown.json()["code"]) == (409, "provider_task_conflict")
        assert (await client.post(f"{LIST}/{gone.public_id}/cancel")).status_code == 404

        async def fail(_provider_task_id: str) -> None:
            raise ConnectionError("reset; token=sk-0123456789abcdef0123456789")

        films.cancel = fail  # type: ignore[method-assign]
        broken = await client.post(f"{LIST}/{mute.public_id}/cancel")
    assert (broken.status_code, broken.json()["code"]) == (502, "provider_answer_invalid")
    assert "0123456789abcdef" not in broken.text
    assert entries(store, task) == [("charge", -PRICE), ("refund", PRICE)]
    assert again(store, mute).state == "pending"


async def test_an_administrator_ends_a_task_once(store: Store) -> None:
    """It takes the scope admin; the same again is the same, another end is 409, and one refund is made."""
    app, _ = app_on(store)
    task = task_of(store, to="pending")
    path, failed = f"{LIST}/{task.public_id}/reconcile", {"status": "failed", "error": {"message": "gone"}}
    async with asking(app, key_for(store, "ada", "run")) as runner:
        assert (await runner.post(path, json=failed)).status_code == 403
    async with asking(app, key_for(store, "ada", "admin")) as admin:
        same = {"Idempotency-Key": "1"}
        first = await admin.post(path, json=failed, headers=same)
        replayed = await admin.post(path, json=failed, headers=same)
        assert (first.status_code, first.json()["state"], first.json()["settled_by"]) == (200, "failed", "admin")
        assert (replayed.json(), replayed.headers["idempotency-replayed"]) == (first.json(), "true")
        assert (await admin.post(path, json=failed)).status_code == 200
        other = await admin.post(path, json={"status": "succeeded", "result": 1})
        assert (other.status_code, other.json()["code"]) == (409, "provider_task_conflict")
        odds: list[dict[str, Any]] = [{"status": "failed", "result": 1}, {"status": "succeeded", "error": 1}, {}]
        for odd in (*odds, {"status": "pending"}, {"status": "succeeded"}, {"status": "failed"}):
            assert (await admin.post(path, json=odd)).status_code == 422, odd
    assert entries(store, task) == [("charge", -PRICE), ("refund", PRICE)]


def test_a_server_without_a_worker_asks_providers(tmp_path: Path) -> None:
    """`everstep server` asks for tasks of the providers that its `everstep.toml` names, and says that it does."""
    make_graphs(tmp_path)
    support = "from tests.support.paid import DONE, Scripted\n\n\nclass Films(Scripted):\n"
    (tmp_path / "films.py").write_text(support + "    async def query(self, provider_task_id):\n        return DONE\n")
    (tmp_path / "everstep.toml").write_text('[providers.films]\nuse = "./films.py:Films"\n')
    (tmp_path / "tests").symlink_to(Path(__file__).parents[1])
    with Store.open(f"sqlite:///{tmp_path / 'everstep.db'}") as store, starting(tmp_path) as start:
        assert start(command="server").ready["parts"] == ["http", "providers"]
        task = task_of(store, to="pending")
        until(lambda: again(store, task).is_final, "its end")
        assert again(store, task).settled_by == "poll"


@pytest.mark.both_databases
async def test_what_was_lost_is_found_and_its_job_goes_on(store: Store, films: Scripted) -> None:
    """Of a submission whose answer was lost the job asks a person; `link` answers that, and the task is observed."""

    async def node(_state: Any) -> dict[str, Any]:
        task = await submit_task("films", {"prompt": "film"}, key="film", quote=QUOTE)
        return {"log": [task["state"]]}

    async def lose(_request: Any, *, key: str) -> Any:
        raise ConnectionResetError(f"after {key} was sent")

    submit = films.submit
    films.submit = lose  # type: ignore[method-assign]
    providers = Providers.of(films)
    app, graphs = app_on(store, chain(node), providers=providers)
    grant(store)
    job = store.enqueue("agent", {"log": []}, owner="ada").job
    await Worker(store, graphs, providers=providers).run_async(until_idle=True)
    assert store.job(job.public_id).status == "review"
    (review,) = store.reviews()
    async with asking(app) as client:
        (task,) = (await client.get(LIST, params={"job": job.public_id})).json()["tasks"]
        shown = (await client.get(f"{LIST}/{task['id']}")).json()
        assert (shown["state"], shown["review"]) == ("submission_unknown", review.public_id)
        linked = await client.post(f"{LIST}/{task['id']}/link", json={"provider_task_id": "found-there"})
        assert (linked.status_code, linked.json()["state"], linked.json()["review"]) == (200, "pending", None)
        assert "found-there" not in linked.text
        answered = await client.get(f"/everstep/reviews/{review.public_id}")
        assert (answered.json()["answer"]["decision"], "found-there" in answered.text) == ("approve", False)
        again_ = await client.post(f"{LIST}/{task['id']}/link", json={"provider_task_id": "found-there"})
        assert again_.status_code == 409
    assert store.review(review.public_id).status == "answered"
    films.submit = submit  # type: ignore[method-assign]
    await Worker(store, graphs, providers=providers).run_async(until_idle=True)
    done = store.job(job.public_id)
    assert (done.status, json.loads(done.result_json or "")) == ("done", {"log": ["pending"]})
    await Observation(store, providers).until_asked()
    assert films.asked["found-there"] >= 1
    charged = store.read(lambda connection: ledger.entries(connection, "ada"))
    assert [entry.kind for entry in charged] == ["charge", "grant"]
