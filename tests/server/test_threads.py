"""Threads by LangGraph's own client: make, find, change, copy and delete them, on both databases."""

from __future__ import annotations

import json
import uuid
from typing import Any

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import ConflictError, NotFoundError, UnprocessableEntityError

from everstep.checkpoints import claims, jobs
from everstep.checkpoints.retention import Rules
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock, rfc3339
from tests.support.record import begin_effect, begin_running, claim
from tests.support.thread_graphs import client_of, work

pytestmark = pytest.mark.both_databases


@pytest.fixture
def client(store: Store) -> LangGraphClient:
    """LangGraph's client of a server of this record."""
    return client_of(store)


async def raw(client: LangGraphClient, method: str, path: str, **how: Any) -> httpx.Response:
    """A request as it is, for what the client does not tell."""
    return await client.http.client.request(method, path, **how)


async def test_a_thread_is_made_as_clients_read_it(client: LangGraphClient, clock: ManualClock) -> None:
    """A new thread has every field clients read, and stays as it was made."""
    made = await client.threads.create(metadata={"of": "anna"}, graph_id="asking")
    now = rfc3339(clock.now_ms())
    assert made == {
        "thread_id": made["thread_id"],
        "created_at": now,
        "updated_at": now,
        "state_updated_at": now,
        "metadata": {"of": "anna", "graph_id": "asking"},
        "status": "idle",
        "config": {},
        "values": None,
        "interrupts": {},
    }
    assert await client.threads.get(made["thread_id"]) == made


async def test_an_id_is_made_once(client: LangGraphClient) -> None:
    """A thread's id may be given; a second thread with it is refused, or is the first, as the client wants."""
    thread_id = str(uuid.uuid4())
    await client.threads.create(thread_id=thread_id, metadata={"n": 1})
    with pytest.raises(ConflictError):
        await client.threads.create(thread_id=thread_id)
    again = await client.threads.create(thread_id=thread_id, if_exists="do_nothing", metadata={"n": 2})
    assert again["metadata"] == {"n": 1}
    with pytest.raises(UnprocessableEntityError, match="thread_id"):
        await client.threads.create(thread_id="no-uuid")


async def test_a_repeated_creation_creates_once(client: LangGraphClient) -> None:
    """The same Idempotency-Key gives the same thread."""
    first, second = [await client.threads.create(headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert first == second
    assert await client.threads.count() == 1


async def test_metadata_are_laid_over(client: LangGraphClient) -> None:
    """A change keeps the keys it does not name, and answers nothing if that is preferred."""
    thread_id = (await client.threads.create(metadata={"a": 1, "b": 1}))["thread_id"]
    assert (await client.threads.update(thread_id, metadata={"b": 2}))["metadata"] == {"a": 1, "b": 2}
    assert await client.threads.update(thread_id, metadata={"c": 3}, return_minimal=True) is None
    assert (await client.threads.get(thread_id))["metadata"] == {"a": 1, "b": 2, "c": 3}
    response = await raw(client, "PATCH", f"/threads/{thread_id}/state", json={"metadata": {"d": 4}})
    assert response.status_code == 204
    assert (await client.threads.get(thread_id))["metadata"]["d"] == 4


@pytest.mark.parametrize("text", ["nul \0", "\ud800"])
async def test_what_no_database_can_look_into_is_refused(client: LangGraphClient, text: str) -> None:
    """A text that would spoil searches in PostgreSQL does not get into metadata."""
    body = json.dumps({"metadata": {"t": text}})
    response = await raw(client, "POST", "/threads", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 422


async def test_credentials_are_refused(client: LangGraphClient) -> None:
    """Metadata are no place for credentials."""
    with pytest.raises(UnprocessableEntityError, match="credentials"):
        await client.threads.create(metadata={"api_key": "sk-abcdefghijklmnopqrstuvwxyz0123456789"})


async def test_unknown_fields_are_refused_by_name(client: LangGraphClient) -> None:
    """A field that is not honoured is not dropped either."""
    response = await raw(client, "POST", "/threads", json={"colour": "red"})
    assert (response.status_code, response.json()["detail"]) == (422, "colour is not supported")


async def test_threads_are_found(client: LangGraphClient) -> None:
    """By metadata, ids and status, in order, page by page, with what was selected and extracted."""
    made = [await client.threads.create(metadata={"n": n, "team": {"name": "x", "tags": ["a", "b"]}}) for n in range(3)]
    assert len(await client.threads.search(metadata={"team": {"tags": ["b"]}})) == 3
    assert await client.threads.search(metadata={"team": {"tags": ["c"]}}) == []
    assert [one["thread_id"] for one in await client.threads.search(metadata={"n": 1})] == [made[1]["thread_id"]]
    ids = [made[2]["thread_id"], made[0]["thread_id"], str(uuid.uuid4())]
    found = await client.threads.search(ids=ids, sort_by="thread_id", sort_order="asc", select=["thread_id"])
    assert found == [{"thread_id": one} for one in sorted(ids[:2])]
    assert await client.threads.count(status="idle") == 3
    assert await client.threads.count(status="busy") == 0
    (found,) = await client.threads.search(
        metadata={"n": 2}, extract={"tag": "metadata.team.tags[-1]", "no": "values.x"}
    )
    assert found["extracted"] == {"tag": "b", "no": None}


async def test_pages_tell_where_the_next_one_begins(client: LangGraphClient) -> None:
    """The headers have the total, and the next offset as long as there is more."""
    for _ in range(3):
        await client.threads.create()
    first = await raw(client, "POST", "/threads/search", json={"limit": 2})
    assert (first.headers["X-Pagination-Total"], first.headers["X-Pagination-Next"]) == ("3", "2")
    last = await raw(client, "POST", "/threads/search", json={"limit": 2, "offset": 2})
    assert len(last.json()) == 1
    assert "X-Pagination-Next" not in last.headers


async def test_a_job_of_the_command_line_is_a_thread(client: LangGraphClient, store: Store) -> None:
    """It is found by its id, shows up in searches while it waits for a person, and stays true afterwards."""
    job, _ = store.enqueue("asking", {"messages": []}, key="k")
    assert (await client.threads.get(job.public_id))["status"] == "busy"
    assert await client.threads.search() == []
    await work(store)
    (found,) = await client.threads.search(status="interrupted", metadata={"graph_id": "asking"})
    ((asked,),) = found["interrupts"].values()
    assert (found["thread_id"], asked["value"]) == (job.public_id, {"question": "may I?"})
    (review,) = store.reviews(store.job(job.public_id))
    store.answer(review.public_id, "respond", value="yes", by="anna")
    assert (await client.threads.get(job.public_id))["status"] == "busy"
    await work(store)
    (found,) = await client.threads.search(values={"answer": "yes"})
    assert (found["thread_id"], found["status"], found["interrupts"]) == (job.public_id, "idle", {})


async def test_every_kind_of_open_review_is_shown(client: LangGraphClient, store: Store) -> None:
    """Questions that no graph asked itself come in the form that Agent Inbox shows."""
    job, _ = store.enqueue("faulty", {"text": ""}, key="k")
    await work(store)
    (found,) = await client.threads.search(status="interrupted")
    ((asked,),) = found["interrupts"].values()
    assert found["thread_id"] == job.public_id
    assert (asked["value"]["action_request"]["action"], asked["value"]["description"]) == (
        "everstep.error",
        "Try again?",
    )
    offered = {"allow_accept": True, "allow_edit": False, "allow_respond": False, "allow_ignore": True}
    assert asked["value"]["config"] == offered


async def test_a_copy_goes_its_own_way(client: LangGraphClient) -> None:
    """A copy has state and history of its own from there on."""
    source = await client.threads.create(graph_id="asking", metadata={"m": 1})
    for text in "ab":
        await client.threads.update_state(source["thread_id"], {"messages": [("user", text)]}, as_node="greet")
    copied: Any = await client.threads.copy(source["thread_id"])
    await client.threads.update_state(copied["thread_id"], {"messages": [("user", "c")]}, as_node="greet")
    texts = {}
    for thread in (source, copied):
        history = await client.threads.get_history(thread["thread_id"])
        texts[thread["thread_id"]] = [[one["content"] for one in state["values"]["messages"]] for state in history]
    assert texts == {
        source["thread_id"]: [["a", "b"], ["a"]],
        copied["thread_id"]: [["a", "b", "c"], ["a", "b"], ["a"]],
    }
    assert copied["metadata"] == source["metadata"]


async def test_a_deleted_thread_leaves_nothing(client: LangGraphClient, store: Store) -> None:
    """Its jobs, checkpoints and events go with it, also if it waits for a person."""
    job, _ = store.enqueue("asking", {"messages": []}, key="k")
    await work(store)
    await client.threads.delete(job.public_id)
    with pytest.raises(NotFoundError):
        await client.threads.get(job.public_id)
    assert store.jobs() == []
    for table in ("threads", *store.database.checkpoint_tables):
        count = f"SELECT count(*) FROM {table}"
        assert store.read(lambda connection, count=count: connection.exec_driver_sql(count).scalar_one()) == 0


async def test_a_thread_with_a_run_in_flight_is_not_deleted(client: LangGraphClient, store: Store) -> None:
    """Neither while a job of it waits for a worker, nor while one runs it."""
    job, _ = store.enqueue("asking", {"messages": []}, key="k")
    for _ in range(2):
        with pytest.raises(ConflictError):
            await client.threads.delete(job.public_id)
        with pytest.raises(ConflictError):
            await client.threads.update_state(job.public_id, {"answer": "x"}, as_node="ask")
        claim(store)
    assert store.job(job.public_id).status == "running"


async def test_an_effect_in_doubt_keeps_its_thread(client: LangGraphClient, store: Store) -> None:
    """As long as nobody can say whether an effect happened, the evidence is not deleted."""
    job, _ = store.enqueue("asking", {"messages": []}, key="k")
    begin_effect(store, begin_running(store))
    store.cancel(job.public_id, by="anna")
    running = store.job(job.public_id)
    now = store.clock.now_ms()
    store.write(lambda c: jobs.end(c, jobs.lock(c, running.id), now=now, actor="anna")).result()
    assert store.job(job.public_id).status == "review"
    with pytest.raises(ConflictError, match="effect"):
        await client.threads.delete(job.public_id)
    assert store.job(job.public_id).status == "review"


async def test_pruning_deletes_or_keeps_the_newest(client: LangGraphClient) -> None:
    """`keep_latest` leaves one checkpoint, `delete` nothing; unknown threads are passed over."""
    thread_id = (await client.threads.create(graph_id="asking"))["thread_id"]
    for text in "ab":
        await client.threads.update_state(thread_id, {"messages": [("user", text)]}, as_node="greet")
    pruned = await client.threads.prune([thread_id, str(uuid.uuid4())], strategy="keep_latest")
    assert pruned == {"pruned_count": 1}
    (only,) = await client.threads.get_history(thread_id)
    assert len(only["values"]["messages"]) == 2
    assert await client.threads.prune([thread_id]) == {"pruned_count": 1}
    assert await client.threads.count() == 0


async def test_supersteps_give_a_thread_its_state(client: LangGraphClient) -> None:
    """A thread can be made with a history, such as to move it here; with one that cannot be applied it is not made."""
    steps = [
        {"updates": [{"values": {"messages": [("user", "hi")]}, "as_node": "__start__"}]},
        {"updates": [{"values": {"messages": [("ai", "yes?")]}, "as_node": "greet"}]},
    ]
    made = await client.threads.create(graph_id="asking", supersteps=steps)
    state = await client.threads.get_state(made["thread_id"])
    assert ([one["content"] for one in state["values"]["messages"]], state["next"]) == (["hi", "yes?"], ["ask"])
    assert (await client.threads.get(made["thread_id"]))["status"] == "interrupted"
    steps[1]["updates"][0]["as_node"] = "nobody"
    with pytest.raises(UnprocessableEntityError):
        await client.threads.create(graph_id="asking", supersteps=steps)
    assert await client.threads.count() == 1


async def test_owners_see_their_own(store: Store) -> None:
    """A thread of somebody else is not there: not to look at, to find, to change, to copy or to delete."""
    anna, bob, all_seeing = client_of(store, owner="anna"), client_of(store, owner="bob"), client_of(store)
    thread_id = (await anna.threads.create(metadata={"n": 1}))["thread_id"]
    assert await bob.threads.search() == []
    assert await bob.threads.count() == 0
    asked = [
        bob.threads.get(thread_id),
        bob.threads.update(thread_id, metadata={}),
        bob.threads.delete(thread_id),
        bob.threads.copy(thread_id),
        bob.threads.get_state(thread_id),
        bob.threads.get_history(thread_id),
        bob.threads.update_state(thread_id, {}),
    ]
    for one in asked:
        with pytest.raises(NotFoundError):
            await one
    assert await bob.threads.prune([thread_id]) == {"pruned_count": 0}
    with pytest.raises(ConflictError):
        await bob.threads.create(thread_id=thread_id, if_exists="do_nothing")
    assert len(await anna.threads.search()) == len(await all_seeing.threads.search()) == 1


async def test_a_thread_lives_as_long_as_it_was_given(
    client: LangGraphClient, store: Store, clock: ManualClock
) -> None:
    """Its time begins anew with whatever happens on it; when it is over, `everstep prune` deletes it."""
    thread_id = (await client.threads.create(ttl=60))["thread_id"]
    kept = (await client.threads.create())["thread_id"]
    told: Any = await client.threads.get(thread_id, include=["ttl"])
    assert told["ttl"] == {"ttl": 60, "strategy": "delete", "expires_at": rfc3339(clock.now_ms() + 3_600_000)}
    clock.advance(50 * 60_000)
    await client.threads.update(thread_id, metadata={"n": 1})
    clock.advance(20 * 60_000)
    assert store.prune().threads == 0
    clock.advance(40 * 60_000)
    assert store.prune(dry_run=True).threads == 1
    assert store.prune().threads == 1
    assert [one["thread_id"] for one in await client.threads.search()] == [kept]


async def test_what_waits_for_a_person_outlives_its_time(
    client: LangGraphClient, store: Store, clock: ManualClock
) -> None:
    """No timer ends a review: a thread whose job waits stays until that is over."""
    job, _ = store.enqueue("asking", {"messages": []}, key="k")
    await work(store)
    await client.threads.update(job.public_id, metadata={}, ttl=1)
    clock.advance(3_600_000)
    assert store.prune().threads == 0
    (review,) = store.reviews()
    store.answer(review.public_id, "respond", value="yes", by="anna")
    await work(store)
    clock.advance(3_600_000)
    assert store.prune().threads == 1
    assert store.jobs() == []


async def test_keep_latest_drops_all_but_the_newest(client: LangGraphClient, store: Store, clock: ManualClock) -> None:
    """With this strategy a thread's time ends its history, not the thread, again and again."""
    ttl = {"ttl": 1, "strategy": "keep_latest"}
    thread_id = (await client.threads.create(graph_id="asking", ttl=ttl))["thread_id"]
    for text in "ab":
        await client.threads.update_state(thread_id, {"messages": [("user", text)]}, as_node="greet")
    clock.advance(60_001)
    assert [store.prune().threads for _ in range(2)] == [1, 0]
    assert len(await client.threads.get_history(thread_id)) == 1


async def test_old_jobs_leave_the_threads_of_clients(client: LangGraphClient, store: Store, clock: ManualClock) -> None:
    """Retention deletes what a client's thread ran long ago, and neither the thread nor its state."""
    thread_id = (await client.threads.create(graph_id="asking"))["thread_id"]
    await client.threads.update_state(thread_id, {"messages": [("user", "a")]}, as_node="greet")
    job, _ = store.enqueue("asking", {"messages": []}, key="k")
    store.write(
        lambda c: c.execute(agent_jobs.update().where(agent_jobs.c.id == job.id).values(thread_id=thread_id))
    ).result()
    (held,) = claim(store)
    now = store.clock.now_ms()
    store.write(lambda c: claims.advance(c, held.id, held.claim_no, now=now)).result()
    done = {"now": now, "actor": "worker", "reason": "done", "result_json": "{}"}
    store.write(lambda c: jobs.transition(c, jobs.lock(c, held.id), "done", **done)).result()
    clock.advance(86_400_000)
    assert store.prune(Rules(done_days=0)).jobs["done"] == 1
    assert len(await client.threads.get_history(thread_id)) == 1
