"""The thread protocol's commands: what each does, and that everything else is answered with the protocol's error."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from everstep.checkpoints import api_keys
from everstep.checkpoints.store import Store
from everstep.server.langgraph.protocol import streaming
from tests.support.chat_graphs import catalogue
from tests.support.live import live
from tests.support.protocol import Thread, is_end, phases, told
from tests.support.record import fresh
from tests.support.waiting import PATIENCE

SAID = {"messages": [{"role": "user", "content": "hello"}]}
APPROVED = {"decisions": [{"type": "approve"}]}


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    """Asks the server."""
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        yield client


@pytest.fixture
def thread(client: httpx.Client) -> Thread:
    """A thread that is not there yet."""
    return Thread(client)


@pytest.fixture
def asking(thread: Thread) -> tuple[Thread, str]:
    """A thread whose graph asks a question, and the question's id."""
    thread.start("approval", input=SAID)
    (asked,) = told(thread.to_end("input", "lifecycle"), "input.requested")
    return thread, asked["interrupt_id"]


def _error(answer: dict[str, Any], code: str, *words: str) -> None:
    assert (answer["type"], answer["error"]) == ("error", code), answer
    assert all(word in answer["message"] for word in words), answer


def _last_said(thread: Thread) -> str:
    return thread.command("state.get", namespace=[])["result"]["values"]["messages"][-1]["content"]


def test_a_run_makes_its_thread(thread: Thread) -> None:
    """`run.start` makes the thread, and what happens from then on has numbers above the one it answers."""
    told_at = thread.start("steps", input={"log": []}, metadata={"why": "test"})
    run = thread.client.get(f"/threads/{thread.id}/runs/{told_at['result']['run_id']}").json()
    assert run["metadata"] == {"why": "test"}
    events = thread.to_end(since=told_at["meta"]["applied_through_seq"])
    assert phases(events) == ["started", "running", "completed"]
    again = thread.start("steps", input={"log": []})
    assert again["meta"]["applied_through_seq"] >= events[-1]["seq"]
    assert phases(thread.to_end(since=again["meta"]["applied_through_seq"])) == ["started", "running", "completed"]


def test_an_input_answers_what_is_asked(asking: tuple[Thread, str]) -> None:
    """With an open question `run.start` gives its input to whoever asked, and starts nothing anew."""
    thread, _ = asking
    again = thread.start("approval", input=APPROVED)
    assert phases(thread.to_end(since=again["meta"]["applied_through_seq"])) == ["started", "running", "completed"]
    assert _last_said(thread) == "decided: approve"


def test_a_question_is_answered_once(asking: tuple[Thread, str]) -> None:
    """`input.respond` answers by id; a second answer, or one to a question nobody asks, changes nothing."""
    thread, asked = asking
    _error(
        thread.command("input.respond", interrupt_id="0" * 32, namespace=[], response=1), "no_such_interrupt", "0" * 32
    )
    _error(thread.command("input.respond", interrupt_id="other", namespace=[], response=1), "no_such_interrupt")
    answer = thread.command("input.respond", interrupt_id=asked, namespace=[], response=APPROVED)
    assert answer["type"] == "success"
    assert answer["result"]["run_id"]
    assert phases(thread.to_end(since=answer["meta"]["applied_through_seq"]))[-1] == "completed"
    assert _last_said(thread) == "decided: approve"
    _error(thread.command("input.respond", interrupt_id=asked, namespace=[], response=APPROVED), "no_such_interrupt")


def test_several_are_answered_at_once_with_an_update(asking: tuple[Thread, str]) -> None:
    """`responses` answers by id; `update` changes the state in the same step."""
    thread, asked = asking
    one = {"interrupt_id": asked, "namespace": [], "response": APPROVED}
    update = {"messages": [{"role": "user", "content": "beside"}]}
    answer = thread.command("input.respond", responses=[one], update=update)
    assert phases(thread.to_end(since=answer["meta"]["applied_through_seq"]))[-1] == "completed"
    values = thread.command("state.get", namespace=[], keys=["messages"])["result"]["values"]
    assert {"beside", "decided: approve"} <= {message["content"] for message in values["messages"]}


def test_an_answer_says_which_question_it_is_for(asking: tuple[Thread, str]) -> None:
    """Neither id nor answers, both, or an id without an answer: refused, and the question stays open."""
    thread, asked = asking
    one = {"interrupt_id": asked, "response": 1}
    for params in ({}, {**one, "responses": [one]}, {"interrupt_id": asked}, {"responses": []}):
        _error(thread.command("input.respond", **params), "invalid_argument")
    assert thread.command("input.respond", **{**one, "response": APPROVED})["type"] == "success"


def test_state_history_and_forks(thread: Thread) -> None:
    """`state.get` has values and their checkpoint, `state.listCheckpoints` those before, `state.fork` goes on there."""
    thread.start("steps", input={"log": ["in"]})
    thread.to_end()
    state = thread.command("state.get", namespace=[])["result"]
    assert state["values"] == {"log": ["in", "a", "b", "c"]}
    assert thread.command("state.get", namespace=[], keys=["answer"])["result"]["values"] == {}
    steps = thread.command("state.listCheckpoints")["result"]["checkpoints"]
    assert [one["step"] for one in steps] == [3, 2, 1, 0, -1]
    assert steps[0]["id"] == state["checkpoint"]["id"]
    older = thread.command("state.listCheckpoints", before=steps[1]["id"], limit=2)["result"]["checkpoints"]
    assert older == steps[2:4]
    fork = thread.command("state.fork", checkpoint_id=steps[2]["id"])
    assert fork["result"]["thread_id"] == thread.id
    events = thread.to_end(since=fork["meta"]["applied_through_seq"])
    assert told(events, "updates") == [{"b": {"log": ["b"]}}, {"c": {"log": ["c"]}}]
    config = {"configurable": {"checkpoint_id": steps[1]["id"]}}
    again = thread.start("steps", config=config)
    events = thread.to_end(since=again["meta"]["applied_through_seq"])
    assert told(events, "updates") == [{"c": {"log": ["c"]}}]


def test_a_place_that_is_not_there(thread: Thread) -> None:
    """A checkpoint, a namespace, a thread or a run that there is not is told by its code."""
    _error(thread.command("state.get", namespace=[]), "no_such_run")
    _error(thread.command("input.respond", interrupt_id="a", response=1), "no_such_run")
    thread.start("steps", input={"log": []})
    thread.to_end()
    missing = str(uuid.uuid4())
    _error(thread.command("state.fork", checkpoint_id=missing), "no_such_checkpoint", missing)
    config = {"configurable": {"checkpoint_id": missing}}
    _error(thread.command("run.start", assistant_id="steps", config=config), "no_such_checkpoint", missing)
    _error(thread.command("state.get", namespace=["nowhere:1"]), "no_such_namespace")
    _error(thread.command("agent.getTree", run_id=missing), "no_such_run")


def test_the_tree_of_a_run(thread: Thread) -> None:
    """`agent.getTree` has a run's graph and those below it, with what became of them; of the newest run by default."""
    run = thread.start("nested", input={"log": []})["result"]["run_id"]
    thread.to_end()
    tree = thread.command("agent.getTree")["result"]["tree"]
    assert (tree["namespace"], tree["status"], tree["graph_name"]) == ([], "interrupted", "nested")
    (inner,) = tree["children"]
    assert (inner["status"], inner["graph_name"]) == ("interrupted", "inner")
    assert thread.command("agent.getTree", run_id=run)["result"]["tree"] == tree


def test_subscriptions_are_streams_over_http(thread: Thread) -> None:
    """There is nothing to subscribe to by a command, which says what to do; `reconnect` tells what was missed."""
    path = f"/threads/{thread.id}/stream/events"
    _error(thread.command("subscription.subscribe", channels=["values"]), "not_supported", path)
    _error(thread.command("subscription.subscribe", channels=["nothing"]), "invalid_argument", "channels")
    _error(thread.command("subscription.unsubscribe", subscription_id="1"), "no_such_subscription")
    run = thread.start("steps", input={"log": []})["result"]["run_id"]
    last = thread.to_end()[-1]
    missed = thread.command("subscription.reconnect", run_id=run, last_event_id="0")["result"]
    assert not missed["restored"]
    assert missed["missed_events"] > 0
    assert missed["current_namespaces"] == [{"namespace": [], "status": "completed"}]
    seen = thread.command("subscription.reconnect", run_id=run, last_event_id=last["event_id"])["result"]
    assert seen == {**missed, "restored": True, "missed_events": 0}
    _error(thread.command("subscription.reconnect", run_id=run, last_event_id="9" * 40), "invalid_argument", "no event")


def test_what_is_no_command_is_answered_with_an_error(thread: Thread) -> None:
    """Unknown commands, parameters that are unknown, missing or wrong, and bodies that are none: never dropped."""
    _error(thread.command("run.stop"), "unknown_command", "run.stop")
    _error(thread.command("input.inject", namespace=[], message={}), "not_supported", "input.inject")
    _error(thread.command("run.start", assistant_id="steps", stream="all"), "invalid_argument", "stream")
    _error(thread.command("run.start", input={}), "invalid_argument", "assistant_id")
    _error(thread.command("run.start", assistant_id="nobody", input={}), "invalid_argument", "nobody")
    _error(thread.command("run.start", assistant_id="steps", config={"speed": 1}), "invalid_argument", "speed")
    secret = {"log": [], "api_key": "sk-ant-api03-0123456789abcdefghijklmnopqrstuvwxyz"}
    _error(thread.command("run.start", assistant_id="steps", input=secret), "invalid_argument")
    for body in (b"", b"[]", b"{", b'{"method": "run.start"}', b'{"id": 1, "method": "run.start", "more": 1}'):
        answer = thread.client.post(f"/threads/{thread.id}/commands", content=body)
        assert answer.status_code == 200
        assert answer.json()["type"] == "error"
        assert answer.json()["id"] is None


def test_a_command_that_is_sent_again_starts_nothing_again(thread: Thread) -> None:
    """With an `Idempotency-Key` the second answer names the first's run."""
    body = {"id": 1, "method": "run.start", "params": {"assistant_id": "steps", "input": {"log": []}}}
    path, key = f"/threads/{thread.id}/commands", {"Idempotency-Key": str(uuid.uuid4())}
    first = thread.client.post(path, json=body, headers=key).json()
    events = thread.until(is_end)
    again = thread.client.post(path, json=body, headers=key)
    assert again.json()["result"] == first["result"]
    assert again.json()["meta"]["applied_through_seq"] < events[0]["seq"]
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(thread.client.get(f"/threads/{thread.id}/runs").json()) == 1


def _key(store: Store, owner: str, scopes: list[str]) -> str:
    make = partial(api_keys.create, name=owner, owner=owner, scopes=scopes, now=store.clock.now_ms())
    return store.write(make).result()[1]


def test_the_threads_of_others_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose thread it is not gets neither its events nor a command through, and who may not answer does not."""
    monkeypatch.setattr(streaming, "LOOK_FOR_THREAD_S", 0.2)
    with fresh(tmp_path) as store:
        all_but_admin = ["run", "review"]
        keys = {owner: _key(store, owner, all_but_admin) for owner in ("anna", "ben")}
        keys["cleo"] = _key(store, "cleo", ["run"])
        with live(store, catalogue()) as url:
            clients = {
                owner: httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False, headers={"x-api-key": key})
                for owner, key in keys.items()
            }
            anna = Thread(clients["anna"])
            anna.start("approval", input=SAID)
            (asked,) = told(anna.to_end("input", "lifecycle"), "input.requested")
            ben = Thread(clients["ben"], anna.id)
            _error(ben.command("state.get", namespace=[]), "no_such_run")
            _error(ben.command("input.respond", interrupt_id=asked["interrupt_id"], response=APPROVED), "no_such_run")
            _error(ben.command("run.start", assistant_id="approval", input=SAID), "no_such_run")
            assert clients["ben"].get(f"/threads/{anna.id}/stream").status_code == 404
            unseen = {"channels": ["lifecycle"], "since": 0}
            with clients["ben"].stream("POST", f"/threads/{anna.id}/stream/events", json=unseen) as answer:
                lines = (line for line in answer.iter_lines() if line)
                assert [next(lines), next(lines)] == [": heartbeat"] * 2
            cleo = Thread(clients["cleo"])
            cleo.start("approval", input=SAID)
            (own,) = told(cleo.to_end("input", "lifecycle"), "input.requested")
            for answer in (
                cleo.command("input.respond", interrupt_id=own["interrupt_id"], response=APPROVED),
                cleo.command("run.start", assistant_id="approval", input=APPROVED),
            ):
                _error(answer, "permission_denied", "review")
            for client in clients.values():
                client.close()
