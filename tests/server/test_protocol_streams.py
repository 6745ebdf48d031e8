"""The thread protocol's events over real HTTP: what is told, in which order, and from where a stream goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from everstep.server.langgraph.protocol import streaming
from tests.support.protocol import ALL, Event, Thread, is_end, phases, told
from tests.support.server_process import make_graphs, starting
from tests.support.waiting import PATIENCE

SAID = {"messages": [{"role": "user", "content": "good morning to you"}]}


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    """Asks the server."""
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        yield client


@pytest.fixture
def thread(client: httpx.Client) -> Thread:
    """A thread that is not there yet."""
    return Thread(client)


def _assert_ordered(events: list[Event]) -> None:
    numbers = [event["seq"] for event in events]
    assert numbers == sorted(set(numbers))
    assert [event["event_id"] for event in events] == [str(number) for number in numbers]


def test_a_run_is_told_from_its_start_to_its_end(thread: Thread) -> None:
    """Lifecycle frames a run; between stand its steps' values, updates, tasks and checkpoints, in order."""
    thread.start("steps", input={"log": ["in"]})
    events = thread.to_end()
    _assert_ordered(events)
    assert phases(events) == ["started", "running", "completed"]
    assert [told(events, "lifecycle")[at]["graph_name"] for at in (0, -1)] == ["steps", "steps"]
    assert is_end(events[-1])
    assert [values["log"] for values in told(events, "values")] == [
        ["in"], ["in", "a"], ["in", "a", "b"], ["in", "a", "b", "c"]
    ]  # fmt: skip
    assert told(events, "updates") == [{name: {"log": [name]}} for name in "abc"]
    assert [event["params"]["node"] for event in events if event["method"] == "updates"] == ["a", "b", "c"]
    assert told(events, "custom") == [{"at": name} for name in "abc"]
    assert [task["name"] for task in told(events, "tasks")] == ["a", "a", "b", "b", "c", "c"]
    steps = told(events, "checkpoints")
    assert [(one["source"], one["step"]) for one in steps] == [
        ("input", -1), ("loop", 0), ("loop", 1), ("loop", 2), ("loop", 3)
    ]  # fmt: skip
    assert [one["parent_id"] for one in steps[1:]] == [one["id"] for one in steps[:-1]]


def test_a_models_message_is_told_in_blocks(thread: Thread) -> None:
    """A message starts, its text grows, and it finishes, under one id and with the node it comes from."""
    thread.start("chat", input=SAID)
    events = thread.to_end("messages", "lifecycle")
    pieces = told(events, "messages")
    kinds = [piece["event"] for piece in pieces]
    assert kinds[:2] == ["message-start", "content-block-start"]
    assert kinds[-2:] == ["content-block-finish", "message-finish"]
    deltas = [piece["delta"]["text"] for piece in pieces if piece["event"] == "content-block-delta"]
    assert "".join(deltas).split() == "You said: good morning to you".split()
    assert pieces[-2]["content"] == {"type": "text", "text": "".join(deltas)}
    assert pieces[0]["role"] == "ai"
    assert pieces[0]["metadata"]["langgraph_node"] == "answer"
    assert len({piece["id"] for piece in pieces}) == 1
    assert {event["params"].get("node") for event in events if event["method"] == "messages"} == {"answer"}


def test_a_stream_goes_on_behind_any_event(thread: Thread) -> None:
    """`since` any event's number gives all that came after it, as it was told the first time, also mid-message."""
    thread.start("approval", input=SAID)
    whole = thread.to_end(since=0)
    for place, event in enumerate(whole[:-1]):
        assert thread.to_end(since=event["seq"]) == whole[place + 1 :]


def test_an_event_has_its_number_whatever_else_is_read(thread: Thread) -> None:
    """A stream of one channel tells what a stream of all channels tells of it, with the same numbers."""
    thread.start("nested", input={"log": []})
    whole = thread.to_end(since=0)
    for channel in ALL:
        some = thread.to_end(channel, "lifecycle", since=0)
        assert some == [event for event in whole if event["method"].partition(".")[0] in (channel, "lifecycle")]


def test_graphs_below_are_told_apart(thread: Thread) -> None:
    """A subgraph has a lifecycle of its own; namespaces and depth choose what is told, a node's name fits any task."""
    thread.start("nested", input={"log": []})
    events = thread.to_end()
    below = [event for event in events if event["params"]["namespace"]]
    (place,) = {tuple(event["params"]["namespace"]) for event in below}
    assert [part.partition(":")[0] for part in place] == ["inner"]
    assert [data["event"] for data in told(below, "lifecycle")] == ["started", "interrupted"]
    assert {data["graph_name"] for data in told(below, "lifecycle")} == {"inner"}
    (asked,) = [event for event in events if event["method"] == "input.requested"]
    assert asked["params"]["namespace"] == list(place)

    def seen(**wanted: Any) -> list[Event]:
        return thread.until(lambda event: event == last, *ALL, since=0, **wanted)

    last = below[-1]
    assert seen(namespaces=[list(place)]) == below
    assert seen(namespaces=[["inner"]]) == below
    last = events[-1]
    assert seen(namespaces=[[]], depth=0) == [event for event in events if event not in below]


def test_a_question_is_told_where_the_run_pauses(thread: Thread) -> None:
    """`input.requested` has the id to answer to and what is asked; then the run is interrupted."""
    thread.start("approval", input=SAID)
    events = thread.to_end("input", "lifecycle", "values")
    (asked,) = told(events, "input.requested")
    assert asked["payload"] == asked["value"]
    assert asked["payload"]["action_requests"][0]["name"] == "send_mail"
    assert phases(events) == ["started", "running", "interrupted"]
    assert [event["method"] for event in events[-2:]] == ["input.requested", "lifecycle"]
    assert all("__interrupt__" not in values for values in told(events, "values"))


def test_a_failure_is_told(thread: Thread) -> None:
    """A run that fails says why."""
    thread.start("failing", input={"log": []})
    end = thread.to_end("lifecycle")[-1]["params"]["data"]
    assert end == {"event": "failed", "graph_name": "failing", "error": "no such thing"}


def test_a_cancelled_run_has_failed(thread: Thread) -> None:
    """A run that is cancelled has failed, and asks nothing: clients wait for no more of it."""
    run = thread.start("endless", input={"log": []})["result"]["run_id"]
    thread.until(lambda event: event["method"] == "updates")
    assert thread.client.post(f"/threads/{thread.id}/runs/{run}/cancel").status_code == 202
    *_, end = told(thread.to_end("lifecycle", "input", since=0), "lifecycle")
    assert (end["event"], end["error"]) == ("failed", "the run was cancelled")


def test_a_stream_begins_with_the_last_run(thread: Thread) -> None:
    """Without `since` the runs before the last one are not told again; with 0 they are."""
    thread.start("steps", input={"log": ["one"]})
    thread.to_end()
    thread.start("steps", input={"log": ["two"]})
    later = thread.to_end()
    assert told(later, "values")[-1]["log"][-4:] == ["two", "a", "b", "c"]
    assert thread.to_end() == later
    assert phases(thread.to_end(since=0, ends=2)) == ["started", "running", "completed"] * 2


@pytest.mark.parametrize(("graph", "end"), [("chat", "completed"), ("approval", "interrupted")])
def test_a_stream_that_is_opened_when_the_run_is_over_tells_all_of_it(thread: Thread, graph: str, end: str) -> None:
    """Whoever subscribes after a run ended, or paused, is given its messages and its values from the first."""
    run = thread.start(graph, input=SAID)["result"]["run_id"]
    assert thread.client.get(f"/threads/{thread.id}/runs/{run}/join").status_code == 200
    late = thread.to_end("messages", "values", "lifecycle", "input")
    assert late == thread.to_end("messages", "values", "lifecycle", "input", since=0)
    assert phases(late) == ["started", "running", end]
    kinds = [piece["event"] for piece in told(late, "messages")]
    assert (kinds[0], kinds[-1]) == ("message-start", "message-finish")


def test_a_stream_that_is_opened_amid_a_run_tells_it_from_its_start(thread: Thread) -> None:
    """Whoever subscribes while a run goes on is given what was told before."""
    run = thread.start("endless", input={"log": ["in"]})["result"]["run_id"]

    def is_step(event: Event) -> bool:
        return event["method"] == "updates"

    early = thread.until(is_step, since=0)
    assert phases(early) == ["started", "running"]
    late = thread.until(is_step)
    assert thread.client.post(f"/threads/{thread.id}/runs/{run}/cancel").status_code == 202
    assert late == early


def test_a_stream_that_waits_for_a_run_begins_with_that(thread: Thread, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is opened on an idle thread, just before a run is started, does not tell of the run before."""
    monkeypatch.setattr(streaming, "MOMENT_S", PATIENCE)
    thread.start("steps", input={"log": ["one"]})
    thread.to_end()
    with thread.client.stream("POST", f"/threads/{thread.id}/stream/events", json={"channels": ["custom"]}) as answer:
        second = Thread(thread.client, thread.id).start("steps", input={"log": ["two"]})
        first = next(line for line in answer.iter_lines() if line.startswith("id: "))
    assert int(first.removeprefix("id: ")) > second["meta"]["applied_through_seq"]


def test_a_thread_that_is_not_there_yet_is_waited_for(thread: Thread) -> None:
    """A stream may be opened before the thread's first run makes it."""
    body = {"channels": ["lifecycle"]}
    with thread.client.stream("POST", f"/threads/{thread.id}/stream/events", json=body) as answer:
        assert answer.status_code == 200
        Thread(thread.client, thread.id).start("steps", input={"log": []})
        assert next(line for line in answer.iter_lines() if line.startswith("event:")) == "event: lifecycle"


def test_a_run_that_was_started_otherwise_is_told_as_far_as_it_was_recorded(thread: Thread) -> None:
    """Of a run of version 2 there are the channels it was to be told by, and always lifecycle and input."""
    body = {"assistant_id": "approval", "input": SAID, "stream_mode": "messages", "if_not_exists": "create"}
    assert thread.client.post(f"/threads/{thread.id}/runs", json=body).status_code == 200
    events = thread.to_end()
    assert {event["method"] for event in events} == {"lifecycle", "messages", "input.requested"}
    assert told(events, "messages")[-1]["event"] == "message-finish"


def test_what_is_not_known_is_refused(thread: Thread) -> None:
    """A channel, or a field, that there is not is refused by its name; so is a WebSocket."""
    path = f"/threads/{thread.id}/stream/events"
    for body, named in (
        ({"channels": ["debug"]}, "channels"),
        ({"channels": ALL, "filter": 1}, "filter"),
        ({}, "channels"),
    ):
        answer = thread.client.post(path, json=body)
        assert answer.status_code == 422
        assert named in answer.json()["detail"]
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "aGVsbG8gaGVsbG8gaGVsbA==",
    }
    answer = thread.client.get(path, headers=upgrade)
    assert answer.status_code == 422
    assert "WebSocket is not supported" in answer.json()["detail"]


def test_another_process_tells_the_same_events(tmp_path: Path) -> None:
    """A client whose server was killed reads on from another one: what both told is alike, and nothing is missing."""
    make_graphs(tmp_path)
    with starting(tmp_path) as start:
        first, second = start(command="server"), start()
        with first.client() as here, second.client() as there:
            thread = Thread(here)
            thread.start("blocking", input={"folder": str(tmp_path)})
            before = thread.until(lambda event: event["method"] == "tasks", since=0)
            first.end(signal.SIGKILL)
            (tmp_path / "go").touch()
            again = Thread(there, thread.id)
            rest = again.to_end(since=before[-1]["seq"])
            whole = again.to_end(since=0)
    assert whole == [*before, *rest]
    _assert_ordered(whole)
    seen = {event["event_id"]: event for event in before}
    missed = [event for event in whole if event["event_id"] not in seen]
    assert missed == rest
