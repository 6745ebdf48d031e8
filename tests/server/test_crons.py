"""LangGraph's crons, by its real client: made, changed, found, removed; and what their slots run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import httpx
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError, NotFoundError, UnprocessableEntityError
from typing_extensions import TypedDict

from everstep.checkpoints import api_keys, schedules, slots
from everstep.checkpoints.schedule import Definition
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.graphs.loader import GraphCatalogue
from everstep.runtime.schedules import Scheduler
from everstep.runtime.worker import Worker
from everstep.server.app import create_app
from everstep.server.context import Settings

pytestmark = pytest.mark.both_databases

DAILY = "30 2 * * *"
SHAPE = {
    "cron_id",
    "assistant_id",
    "thread_id",
    "on_run_completed",
    "end_time",
    "schedule",
    "timezone",
    "created_at",
    "updated_at",
    "payload",
    "user_id",
    "next_run_date",
    "metadata",
    "enabled",
}


class State(TypedDict, total=False):
    topic: str
    seen: list[str]


def note(state: State, config: RunnableConfig) -> State:
    """Note what the run was told."""
    told = config.get("configurable", {})
    return {"seen": [*state.get("seen", []), f"{state['topic']} {told.get('tone')} {told.get('words')}"]}


GRAPH: Any = StateGraph(State).add_node(note).add_edge(START, "note").add_edge("note", END).compile()
Use = Callable[[LangGraphClient], Awaitable[Any]]


@pytest.fixture
def graphs() -> GraphCatalogue:
    """The graphs that are served."""
    return GraphCatalogue.from_graphs({"agent": GRAPH})


@pytest.fixture
def use(store: Store, graphs: GraphCatalogue) -> Callable[..., Any]:
    """Runs calls of the client against the application."""
    app = create_app(store, graphs, settings=Settings(key_memory_s=0.0))

    def run(calls: Use, **headers: str) -> Any:
        async def within() -> Any:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=headers) as client:
                return await calls(LangGraphClient(client))

        return asyncio.run(within())

    return run


def pass_slots(store: Store, clock: ManualClock, graphs: GraphCatalogue, count: int = 1) -> None:
    """Let the next slots come, and run what they start."""
    for _ in range(count):
        due = store.read(schedules.next_fire)
        assert due is not None
        clock.advance(due - clock.now_ms())
        Scheduler(store).look()
        Worker(store, graphs).run(until_idle=True)


def test_a_cron_has_the_shape_clients_expect(use: Any, clock: ManualClock) -> None:
    """All fields of LangGraph's Cron, with the payload of its runs, and the next date; then it is found and removed."""

    async def calls(client: LangGraphClient) -> None:
        made: Any = await client.crons.create(
            "agent",
            schedule=DAILY,
            timezone="Europe/Berlin",
            input={"topic": "news"},
            metadata={"kind": "daily"},
            on_run_completed="keep",
            end_time=datetime.fromtimestamp(clock.now_ms() / 1000, UTC) + timedelta(days=30),
            stream_mode="values",
            durability="sync",
        )
        assert set(made) == SHAPE
        assert (made["schedule"], made["timezone"], made["enabled"], made["thread_id"]) == (
            DAILY,
            "Europe/Berlin",
            True,
            None,
        )
        assert made["payload"]["input"] == {"topic": "news"}
        assert (made["metadata"], made["on_run_completed"]) == ({"kind": "daily"}, "keep")
        assert datetime.fromisoformat(made["next_run_date"]).minute == 30
        (assistant,) = await client.assistants.search()
        assert made["assistant_id"] == assistant["assistant_id"]
        assert await client.crons.search(assistant_id="agent") == [made]
        assert await client.crons.count(assistant_id=assistant["assistant_id"]) == 1
        assert (await client.crons.search(select=["cron_id", "now"]))[0].keys() == {"cron_id", "now"}
        await client.crons.delete(made["cron_id"])
        assert await client.crons.count() == 0
        with pytest.raises(NotFoundError):
            await client.crons.delete(made["cron_id"])

    use(calls)


def test_a_stateless_cron_runs_on_threads_of_their_own(
    use: Any, store: Store, clock: ManualClock, graphs: GraphCatalogue
) -> None:
    """Each slot is a run with the cron's input, config and metadata, on a thread that `keep` keeps."""

    async def make(client: LangGraphClient) -> None:
        given = {"input": {"topic": "news"}, "config": {"configurable": {"tone": "dry"}}}
        await client.crons.create("agent", schedule=DAILY, metadata={"n": 1}, on_run_completed="keep", **given)

    use(make)
    pass_slots(store, clock, graphs, 2)

    async def look(client: LangGraphClient) -> None:
        threads: Any = await client.threads.search()
        assert len(threads) == 2
        for thread in threads:
            assert (thread["status"], thread["values"]["seen"]) == ("idle", ["news dry None"])
            (run,) = await client.runs.list(thread["thread_id"])
            assert (run["status"], run["metadata"]) == ("success", {"n": 1})

    use(look)
    assert [job.status for job in store.jobs()] == ["done"] * 2


def test_a_stateless_cron_leaves_no_threads(use: Any, store: Store, clock: ManualClock, graphs: GraphCatalogue) -> None:
    """Without `keep` the thread of a slot's run goes when that is over."""

    async def make(client: LangGraphClient) -> None:
        await client.crons.create("agent", schedule=DAILY, input={"topic": "news"})

    use(make)
    pass_slots(store, clock, graphs)

    async def look(client: LangGraphClient) -> Any:
        return await client.threads.search()

    assert use(look) == []


def test_a_cron_of_a_thread_goes_on_there(use: Any, store: Store, clock: ManualClock, graphs: GraphCatalogue) -> None:
    """Its runs are on that thread, one after the other, with its state."""

    async def make(client: LangGraphClient) -> str:
        thread = await client.threads.create()
        made: Any = await client.crons.create_for_thread(
            thread["thread_id"], "agent", schedule=DAILY, input={"topic": "a"}, multitask_strategy="enqueue"
        )
        assert (made["thread_id"], made["on_run_completed"]) == (thread["thread_id"], None)
        assert await client.crons.search(thread_id=thread["thread_id"]) == [made]
        return thread["thread_id"]

    thread_id = use(make)
    pass_slots(store, clock, graphs, 3)

    async def look(client: LangGraphClient) -> Any:
        return await client.threads.get_state(thread_id)

    assert use(look)["values"]["seen"] == ["a None None"] * 3


def test_the_assistant_counts_as_it_is_when_a_run_starts(
    use: Any, store: Store, clock: ManualClock, graphs: GraphCatalogue
) -> None:
    """Its configuration is laid under the cron's at each slot: a change of it reaches the next run."""

    async def make(client: LangGraphClient) -> str:
        assistant = await client.assistants.create("agent", config={"configurable": {"tone": "dry", "words": 9}})
        await client.crons.create(
            assistant["assistant_id"],
            schedule=DAILY,
            input={"topic": "a"},
            config={"configurable": {"words": 5}},
            on_run_completed="keep",
        )
        return assistant["assistant_id"]

    assistant_id = use(make)
    pass_slots(store, clock, graphs)

    async def change(client: LangGraphClient) -> None:
        await client.assistants.update(assistant_id, config={"configurable": {"tone": "warm"}})

    use(change)
    pass_slots(store, clock, graphs)

    async def look(client: LangGraphClient) -> Any:
        return await client.threads.search(sort_by="created_at", sort_order="asc")

    assert [thread["values"]["seen"] for thread in use(look)] == [["a dry 5"], ["a warm 5"]]

    async def remove(client: LangGraphClient) -> None:
        await client.assistants.delete(assistant_id)

    use(remove)
    pass_slots(store, clock, graphs)
    (schedule,) = store.read(schedules.every)
    (last,) = store.read(partial(slots.history, schedule=schedule, limit=1))
    assert (last.outcome, last.detail["error"]["code"]) == ("failed", "assistant_not_found")


def test_a_cron_is_changed(use: Any, store: Store, clock: ManualClock, graphs: GraphCatalogue) -> None:
    """What is named changes and the rest stays; `end_time` null takes the end away; `enabled` pauses and resumes."""

    async def calls(client: LangGraphClient) -> None:
        end = datetime.fromtimestamp(clock.now_ms() / 1000, UTC) + timedelta(days=9)
        made: Any = await client.crons.create("agent", schedule=DAILY, input={"topic": "a"}, end_time=end)
        cron_id = made["cron_id"]
        changed: Any = await client.crons.update(cron_id, schedule="0 * * * *", input={"topic": "b"})
        assert (changed["schedule"], changed["payload"]["input"]) == ("0 * * * *", {"topic": "b"})
        assert changed["end_time"] == made["end_time"]
        assert changed["next_run_date"] != made["next_run_date"]
        endless: Any = await client.crons.update(cron_id, end_time=None)
        assert (endless["end_time"], endless["schedule"]) == (None, "0 * * * *")
        off: Any = await client.crons.update(cron_id, enabled=False)
        assert (off["enabled"], off["next_run_date"]) == (False, None)
        assert [one["cron_id"] for one in await client.crons.search(enabled=False)] == [cron_id]
        assert await client.crons.search(enabled=True) == []
        on: Any = await client.crons.update(cron_id, enabled=True)
        assert on["next_run_date"] == changed["next_run_date"]

    use(calls)


def test_crons_are_searched_by_pages(use: Any) -> None:
    """Filtered by metadata, sorted, and a part at a time."""

    async def calls(client: LangGraphClient) -> None:
        hours = [3, 1, 2]
        for hour in hours:
            await client.crons.create("agent", schedule=f"0 {hour} * * *", metadata={"hour": hour, "kind": "x"})
        found = await client.crons.search(sort_by="next_run_date", sort_order="asc", metadata={"kind": "x"}, limit=2)
        assert len(found) == 2
        rest = await client.crons.search(sort_by="next_run_date", sort_order="asc", metadata={"kind": "x"}, offset=2)
        dates = [one["next_run_date"] for one in [*found, *rest]]
        assert dates == sorted(dates)
        assert await client.crons.count(metadata={"hour": 2}) == 1
        assert await client.crons.count(assistant_id="nobody") == 0

    use(calls)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schedule", "nonsense"),
        ("schedule", "0 0 31 2 *"),
        ("timezone", "Mars"),
        ("end_time", "2027-01-01T00:00:00"),
        ("webhook", "not a url"),
        ("multitask_strategy", "never"),
        ("on_run_completed", "maybe"),
        ("stream_mode", "everything"),
        ("input", {"password": "correct horse"}),
        ("unheard_of", 1),
        ("command", {"resume": 1}),
    ],
)
def test_what_cannot_be_honoured_is_refused(use: Any, store: Store, field: str, value: Any) -> None:
    """Each by 422 that names it; nothing is made."""

    async def calls(client: LangGraphClient) -> Any:
        with pytest.raises(UnprocessableEntityError) as refused:
            await client.http.post("/runs/crons", json={"assistant_id": "agent", "schedule": DAILY, field: value})
        return refused.value

    assert str(use(calls))
    assert store.read(schedules.every) == []


def test_what_is_not_there_is_not_found(use: Any) -> None:
    """An assistant, a thread, a cron that nobody made; and a schedule that is no cron."""

    async def calls(client: LangGraphClient) -> None:
        unknown = "00000000-0000-7000-8000-000000000000"
        for call in (
            client.crons.create("nobody", schedule=DAILY),
            client.crons.create_for_thread(unknown, "agent", schedule=DAILY),
            client.crons.update(unknown, enabled=False),
            client.crons.delete("no-uuid"),
        ):
            with pytest.raises(NotFoundError):
                await call

    use(calls)


def test_schedules_that_are_no_crons_are_not_shown(use: Any, store: Store) -> None:
    """What a file or a command made is no cron: it is neither found nor changed here."""
    definition = Definition("agent", DAILY, "skip")
    make = partial(schedules.create, definition=definition, now=store.clock.now_ms(), origin="command", name="nightly")
    schedule = store.write(make).result()

    async def calls(client: LangGraphClient) -> None:
        assert await client.crons.search() == []
        with pytest.raises(NotFoundError):
            await client.crons.delete(schedule.public_id)

    use(calls)


def test_an_owner_sees_their_own_crons(use: Any, store: Store, clock: ManualClock, graphs: GraphCatalogue) -> None:
    """Another owner's cron is as if it were not there, and its runs are its owner's."""

    def key_of(owner: str) -> dict[str, str]:
        given = {"name": owner, "owner": owner, "scopes": ("read", "run")}
        _, key = store.write(partial(api_keys.create, now=clock.now_ms(), **given)).result()
        return {"x-api-key": key}

    anna, bert = key_of("anna"), key_of("bert")

    async def make(client: LangGraphClient) -> str:
        return (await client.crons.create("agent", schedule=DAILY, input={"topic": "a"}, on_run_completed="keep"))[
            "cron_id"
        ]

    cron_id = use(make, **anna)

    async def look(client: LangGraphClient) -> int:
        return await client.crons.count() + len(await client.crons.search())

    assert (use(look, **anna), use(look, **bert)) == (2, 0)

    async def steal(client: LangGraphClient) -> None:
        for call in (client.crons.delete(cron_id), client.crons.update(cron_id, enabled=False)):
            with pytest.raises(APIStatusError) as refused:
                await call
            assert refused.value.status_code == 404

    use(steal, **bert)
    pass_slots(store, clock, graphs)
    assert [job.owner for job in store.jobs()] == ["anna"]


def test_a_cron_that_is_sent_again_is_made_once(use: Any, store: Store) -> None:
    """The same `Idempotency-Key` gives the same cron."""

    async def make(client: LangGraphClient) -> str:
        body = {"assistant_id": "agent", "schedule": DAILY}
        made = await client.http.post("/runs/crons", json=body, headers={"Idempotency-Key": "k"})
        return json.dumps(made)

    assert use(make) == use(make)
    assert len(store.read(schedules.every)) == 1
