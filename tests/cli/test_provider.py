"""`everstep provider`: what is listed and shown, and what a person does about a task, by a provider of one's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints import provider_events, provider_tasks
from everstep.checkpoints.provider_status import ProviderEvent
from everstep.checkpoints.provider_task import ProviderTask
from everstep.checkpoints.store import Store
from tests.cli.folder import Folder, is_refused
from tests.support.events import HOOK_SECRET
from tests.support.paid import DONE, PRICE, again, entries, task_of

FILMS = """
import json
import os
from pathlib import Path

from everstep.checkpoints.provider_status import ProviderStatus
from everstep.nodes.provider import Provider, Submitted

class Films(Provider):
    def __init__(self, name, place):
        self.name, self.place = name, Path(place)

    async def submit(self, request, *, key):
        raise AssertionError("nothing is submitted here")

    async def query(self, provider_task_id):
        return ProviderStatus(**json.loads(self.place.read_text())[provider_task_id])

    async def cancel(self, provider_task_id):
        told = json.loads(self.place.read_text())
        told[provider_task_id] = {"state": "failed", "error": {"message": "cancelled"}}
        self.place.write_text(json.dumps(told))
"""
TOML = """
[providers.films]
use = "./films.py:Films"
rate = "5/s"
webhook = {kind = "standard-webhooks", secret_env = "FILMS_SECRET"}
options = {place = "told.json"}
"""
GRAPH = """
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    n: int

graph = StateGraph(State).add_node("a", lambda state: {}).add_edge(START, "a").compile()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder whose `everstep.toml` names a provider that reads what it says from a file."""
    (tmp_path / "everstep.toml").write_text(TOML)
    (tmp_path / "told.json").write_text("{}")
    return Folder(tmp_path).write(films=FILMS, agent=GRAPH).configure(agent="./agent.py:graph")


@pytest.fixture
def store(folder: Folder) -> Iterator[Store]:
    """The record in it."""
    with Store.open(folder.url) as store:
        yield store


def says(folder: Folder, **told: Any) -> None:
    """What the provider says of its tasks from now on."""
    (folder.path / "told.json").write_text(json.dumps({name.replace("_", "-"): one for name, one in told.items()}))


def parked(store: Store, event_id: str, where: str) -> None:
    """The provider told of a task that is not known."""
    event = ProviderEvent(event_id, DONE, where)
    store.write(partial(provider_events.take, provider="films", event=event, now=store.clock.now_ms())).result()


def accept(store: Store, task: ProviderTask, where: str) -> None:
    """The submit's answer came."""
    now = store.clock.now_ms()
    store.write(lambda c: provider_tasks.accepted(c, task, where, now=now, next_poll_at=now)).result()


def test_providers_are_listed(folder: Folder, store: Store) -> None:
    """Those of everstep.toml with how they are asked and their unfinished tasks; one that is gone stands out."""
    task_of(store, to="pending")
    task_of(store, "old", to="pending", provider="gone")
    listed = {one["name"]: one for one in folder.json("provider", "list")}
    assert set(listed) == {"films", "gone"}
    films = listed["films"]
    assert (films["rate"], films["webhook"], films["tasks"]) == ("5/s", "/webhooks/films", {"pending": 1})
    assert listed["gone"]["configured"] is False
    lines = folder.run("provider", "list").out
    assert "films  ./films.py:Films, at most 5/s, told at /webhooks/films; 1 pending" in lines
    assert "gone  not in everstep.toml: nobody asks it; 1 pending" in lines


def test_what_is_wrong_with_a_provider_is_named(folder: Folder) -> None:
    """By `provider list` and by `doctor`, which exits 1; a variable that is not set here is a warning."""
    listed = folder.run("provider", "list", "--json").value
    assert listed[0]["wrong"] == []
    assert listed[0]["warnings"] == ["films: FILMS_SECRET, which holds its webhook's secret, is not set here"]
    assert folder.run("doctor").code == 0
    assert folder.run("provider", "list", "--json", FILMS_SECRET=HOOK_SECRET).value[0]["warnings"] == []
    toml = folder.path / "everstep.toml"
    toml.write_text(TOML.replace("./films.py", "./no.py") + 'prices = "nowhere.toml"\n')
    ran = folder.run("provider", "list", FILMS_SECRET="not base64!!")
    for said in ("providers.films.use: ", "there is no file", "providers.films.prices: ", "is not whsec_ and base64"):
        assert said in ran.out
    assert "Graph" not in ran.out
    doctor = folder.run("doctor", "--json")
    wrong = [one["detail"] for one in doctor.value["findings"] if one["level"] == "wrong"]
    assert doctor.code == 1
    assert len(wrong) == 2
    for command in (("worker", "--until-idle"), ("server", "--port", "0")):
        refused = folder.run(*command)
        is_refused(refused, 78, "config_invalid")
        assert "providers.films.use" in refused.err


def test_tasks_are_listed_and_shown(folder: Folder, store: Store) -> None:
    """By state, provider, owner and key, newest first; one with its price, its entries and what was told of it.

    The provider's ids are told to administrators alone.
    """
    first, lost = task_of(store, "film-1", to="pending"), task_of(store, "film-2", to="submission_unknown")
    ids = [task["id"] for task in folder.json("provider", "tasks")]
    assert ids == [lost.public_id, first.public_id]
    for option, value in (("--state", "pending"), ("--key", "film-1")):
        assert [task["id"] for task in folder.json("provider", "tasks", option, value)] == [first.public_id]
    assert folder.json("provider", "tasks", "--owner", "bob") == []
    line = folder.run("provider", "tasks", "--state", "pending").out
    assert all(part in line for part in (first.public_id, "films", "film-1", "2.50 EUR"))
    parked(store, "e1", "at-film-1")
    shown = folder.json("provider", "show", first.public_id)
    assert (shown["state"], shown["result"], shown["settled_by"]) == ("succeeded", DONE.result, "webhook")
    assert [(one["kind"], one["amount"]) for one in shown["entries"]] == [("charge", -PRICE)]
    assert [(one["says"], one["state"]) for one in shown["events"]] == [("succeeded", "applied")]
    text = folder.run("provider", "show", first.public_id).out
    for told in (json.dumps(shown), text):
        assert "at-film-1" not in told
        assert first.provider_key not in told
    whole = folder.json("provider", "show", first.public_id, "--admin")
    assert (whole["provider_task_id"], whole["request"]) == ("at-film-1", {"prompt": "film-1"})
    assert "at-film-1" in folder.run("provider", "show", first.public_id, "--admin").out
    is_refused(folder.run("provider", "show", "no-such-task"), 66, "provider_task_not_found")


def test_a_person_ends_a_task(folder: Folder, store: Store) -> None:
    """A failure refunds once; said again it is as it was; another end is refused, and so is a result of a failure."""
    task = task_of(store, to="pending")
    said = ("provider", "reconcile", task.public_id, "--status", "failed", "--error", "gone there")
    first, second = folder.json(*said), folder.json(*said)
    assert first == second
    assert (first["state"], first["error"]) == ("failed", {"message": "gone there"})
    ended = ("provider", "reconcile", task.public_id, "--status", "succeeded", "--result", "1")
    is_refused(folder.run(*ended), 65, "provider_task_conflict")
    is_refused(folder.run(*said[:-2], "--result", "1"), 64, "payload_invalid")
    assert entries(store, task) == [("charge", -PRICE), ("refund", PRICE)]
    other = task_of(store, "other", to="submission_unknown")
    done = folder.json("provider", "reconcile", other.public_id, "--status", "succeeded", "--result", '{"n": 1}')
    assert (done["state"], done["result"]) == ("succeeded", {"n": 1})
    unborn = task_of(store, "third", to="created")
    is_refused(
        folder.run("provider", "reconcile", unborn.public_id, "--status", "failed", "--error", "x"),
        65,
        "provider_task_conflict",
    )
    assert entries(store, unborn) == [("charge", -PRICE)]


def test_an_end_needs_what_came_of_it(folder: Folder, store: Store) -> None:
    """A success its result, if only null, and a failure its reason: what is forgotten could not be said later."""
    task = task_of(store, to="pending")
    for status, missing in (("succeeded", "--result"), ("failed", "--error")):
        ran = folder.run("provider", "reconcile", task.public_id, "--status", status)
        is_refused(ran, 64, "payload_invalid")
        assert missing in ran.err
    assert again(store, task).state == "pending"
    done = folder.json("provider", "reconcile", task.public_id, "--status", "succeeded", "--result", "null")
    assert (done["state"], done["result"]) == ("succeeded", None)


def test_looking_makes_no_record(folder: Folder, tmp_path: Path) -> None:
    """What everstep.toml names is listed without one; where it names nothing, there is nothing to look at."""
    listed = folder.json("provider", "list", "--store", f"sqlite:///{tmp_path}/other.db")
    assert [(one["name"], one["configured"], one["tasks"]) for one in listed] == [("films", True, {})]
    empty = Folder(tmp_path / "empty")
    empty.path.mkdir()
    is_refused(empty.run("provider", "list"), 66, "store_not_found")
    assert list(empty.path.iterdir()) == []
    assert not (tmp_path / "other.db").exists()


def test_a_person_finds_what_was_lost(folder: Folder, store: Store) -> None:
    """`link` gives a task of which nobody knew the provider's id: what was parked for it is applied, else it is asked.

    A task whose submission is known, and an id that is another's, are refused.
    """
    lost, other = task_of(store, "lost", to="submission_unknown"), task_of(store, "known", to="pending")
    parked(store, "e1", "at-lost")
    linked = folder.json("provider", "link", lost.public_id, "at-lost")
    assert (linked["state"], linked["result"]) == ("succeeded", DONE.result)
    is_refused(folder.run("provider", "link", lost.public_id, "at-lost"), 65, "provider_task_conflict")
    is_refused(folder.run("provider", "link", other.public_id, "elsewhere"), 65, "provider_task_conflict")
    third = task_of(store, "third", to="submission_unknown")
    is_refused(folder.run("provider", "link", third.public_id, "at-known"), 65, "provider_task_conflict")
    assert folder.json("provider", "link", third.public_id, "at-third")["state"] == "pending"
    assert (again(store, third).next_poll_at or 0) <= store.clock.now_ms()


def test_a_task_is_asked_for_now_and_cancelled(folder: Folder, store: Store) -> None:
    """`poll` notes what the provider says, whatever the task's time; `cancel` ends it there, and it is what it then is.

    One that was never submitted is refunded. One whose id nobody knows, one that the provider does not answer for, and
    one without a provider are refused.
    """
    film, song = task_of(store, "film", to="pending"), task_of(store, "song", to="pending")
    says(folder, at_film={"state": "pending", "progress": 30}, at_song={"state": "pending"})
    before = again(store, film).next_poll_at
    assert folder.json("provider", "poll", film.public_id)["progress"] == 30
    assert again(store, film).next_poll_at == before
    cancelled = folder.json("provider", "cancel", song.public_id)
    assert (cancelled["state"], cancelled["error"]) == ("failed", {"message": "cancelled"})
    assert entries(store, song) == [("charge", -PRICE), ("refund", PRICE)]
    assert folder.json("provider", "cancel", song.public_id) == cancelled
    assert "nothing was cancelled" in folder.run("provider", "cancel", song.public_id).err
    says(folder, at_film={"state": "failed", "error": 1})
    assert folder.run("provider", "poll", film.public_id).code == 1
    lost = task_of(store, "lost", to="submission_unknown")
    is_refused(folder.run("provider", "poll", lost.public_id), 65, "provider_task_conflict")
    mute = task_of(store, "mute", to="pending")
    is_refused(folder.run("provider", "poll", mute.public_id), 69, "provider_answer_invalid")
    fresh = task_of(store, "fresh", to="created")
    assert folder.json("provider", "cancel", fresh.public_id)["error"]["code"] == "cancelled"
    assert entries(store, fresh) == [("charge", -PRICE), ("refund", PRICE)]
    gone = task_of(store, "gone", to="pending", provider="gone")
    is_refused(folder.run("provider", "cancel", gone.public_id), 66, "provider_not_found")


def test_events_are_listed_and_replayed(folder: Folder, store: Store) -> None:
    """What no task answers to comes first; a replay finds the task that is known by now, and changes nothing twice."""
    task = task_of(store, to="submitting")
    parked(store, "e1", "at-film")
    parked(store, "e2", "nowhere")
    other = task_of(store, "other", to="pending")
    parked(store, "e3", "at-other")
    listed = folder.json("provider", "events")
    assert [event["state"] for event in listed] == ["parked", "parked", "applied"]
    assert listed[2]["task"] == other.public_id
    assert "nowhere" not in json.dumps(listed)
    assert "nowhere" in json.dumps(folder.json("provider", "events", "--admin"))
    assert "nowhere" in folder.run("provider", "events", "--admin", "--state", "parked").out
    accept(store, task, "at-film")
    assert again(store, task).state == "succeeded"
    after = folder.run("provider", "replay", "--all", "--yes", "--json")
    assert [event["state"] for event in after.value] == ["parked"]
    applied = next(event["id"] for event in listed if event["task"] == other.public_id)
    assert folder.json("provider", "replay", applied)[0]["task"] == other.public_id
    assert again(store, other).result == DONE.result
    assert entries(store, other) == [("charge", -PRICE)]
    is_refused(folder.run("provider", "replay"), 64, "payload_invalid")
    is_refused(folder.run("provider", "replay", "no-such-event"), 66, "provider_event_not_found")
