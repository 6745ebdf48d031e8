"""`GET /threads/{id}/stream`: what the SDK's `threads.join_stream` gives of all runs of a thread."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_sync_client

from everstep.checkpoints.large_texts import LARGE
from tests.support.waiting import PATIENCE

INPUT = {"log": ["in"]}


@pytest.fixture
def sdk(url: str) -> Any:
    """The SDK's client."""
    return get_sync_client(url=url, timeout=PATIENCE)


@pytest.fixture
def thread(sdk: Any) -> str:
    """A thread on which two runs are over, each told in its own way."""
    thread_id = sdk.threads.create()["thread_id"]
    for graph, modes in (("steps", ["updates"]), ("failing", ["values", "custom"])):
        assert list(sdk.runs.stream(thread_id, graph, input=INPUT, stream_mode=modes))
    return thread_id


def _parts(sdk: Any, thread_id: str, ends: int, **given: Any) -> Iterator[Any]:
    left = ends
    for part in sdk.threads.join_stream(thread_id, **given):
        yield part
        left -= part.event == "state_update" or (part.event == "metadata" and part.data.get("status") == "run_done")
        if not left:
            return


def test_every_run_is_told_as_it_was_started(sdk: Any, thread: str) -> None:
    """From the beginning: each run's metadata, what it was to be told by, and that it is done."""
    parts = list(_parts(sdk, thread, 2, last_event_id="-"))
    assert [part.event for part in parts] == [
        "metadata", "updates", "updates", "updates", "metadata",
        "metadata", "values", "custom", "values", "error", "metadata",
    ]  # fmt: skip
    runs = [run["run_id"] for run in sdk.runs.list(thread)]
    assert [part.data for part in parts if part.event == "metadata" and "status" in part.data] == [
        {"status": "run_done", "run_id": run} for run in reversed(runs)
    ]
    assert parts[-2].data == {"error": "ValueError", "message": "no such thing"}


def test_it_goes_on_behind_any_event(sdk: Any, thread: str) -> None:
    """`Last-Event-ID` gives what came after it."""
    whole = list(_parts(sdk, thread, 2, last_event_id="-"))
    for place, part in enumerate(whole[:-1]):
        ends = sum(later.event == "metadata" and "status" in later.data for later in whole[place + 1 :])
        assert list(_parts(sdk, thread, ends, last_event_id=part.id)) == whole[place + 1 :]


def test_lifecycle_and_state_alone(sdk: Any, thread: str) -> None:
    """`lifecycle` tells of starts and ends alone, `state_update` of what each run came to."""
    parts = list(_parts(sdk, thread, 2, last_event_id="-", stream_mode="lifecycle"))
    assert [part.event for part in parts] == ["metadata", "metadata", "metadata", "error", "metadata"]
    parts = list(_parts(sdk, thread, 2, last_event_id="-", stream_mode="state_update"))
    assert [(part.event, part.data["status"]) for part in parts] == [
        ("state_update", "success"), ("state_update", "error")
    ]  # fmt: skip
    assert parts[0].data["values"] == {"log": ["in", "a", "b", "c"]}
    both = list(_parts(sdk, thread, 4, last_event_id="-", stream_mode=["lifecycle", "state_update"]))
    assert [part.event for part in both][:3] == ["metadata", "state_update", "metadata"]


def test_the_end_of_a_runs_own_stream_says_nothing(url: str, sdk: Any, thread: str) -> None:
    """What the log has of a run's end is for the streams of threads; a run's own stream ends with `null`."""
    run = sdk.runs.list(thread)[0]["run_id"]
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        told = client.get(f"/threads/{thread}/runs/{run}/stream", headers={"Last-Event-ID": "-"}).text
    assert told.split("\n\n")[-2].splitlines()[:2] == ["event: end", "data: null"]


def test_without_an_id_it_begins_now(sdk: Any, url: str, thread: str) -> None:
    """What was told before the stream was opened is not told again; the next run is."""
    with (
        httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client,
        client.stream("GET", f"/threads/{thread}/stream") as answer,
    ):
        run = sdk.runs.create(thread, "steps", input=INPUT)["run_id"]
        lines = (line for line in answer.iter_lines() if line and not line.startswith(":"))
        event, data, _ = itertools.islice(lines, 3)
    assert event == "event: metadata"
    assert run in data


def test_what_is_not_known_is_refused(url: str, thread: str) -> None:
    """A mode that there is not is refused by its name; a thread that is not there is not found."""
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        answer = client.get(f"/threads/{thread}/stream", params={"stream_mode": "all"})
        assert answer.status_code == 422
        assert "'all'" in answer.json()["detail"]
        assert client.get("/threads/01a22cbb-0000-7000-8000-000000000000/stream").status_code == 404


def test_an_id_that_no_event_has_begins_anew(url: str, sdk: Any, thread: str) -> None:
    """A `Last-Event-ID` of another server, even one that is no integer of a database, misses nothing."""
    whole = list(_parts(sdk, thread, 2, last_event_id="-"))
    run = sdk.runs.list(thread)[0]["run_id"]
    for given in ("somewhere", "9" * 40):
        assert list(_parts(sdk, thread, 2, last_event_id=given)) == whole
        assert [part.event for part in sdk.runs.join_stream(thread, run, last_event_id=given)][-1] == "end"


def test_a_large_state_is_told_whole_in_every_way(sdk: Any) -> None:
    """A state that the log keeps in parts: each stream mode, the run's output, the thread's updates and its job."""
    thread_id, log = sdk.threads.create()["thread_id"], [f"line {number}" for number in range(LARGE // 8)]
    expected = [{"log": [*log, *"abc"[:steps]]} for steps in range(4)]
    modes = ["values", "updates", "checkpoints", "debug"]
    parts = list(sdk.runs.stream(thread_id, "steps", input={"log": log}, stream_mode=modes))
    assert [part.data for part in parts if part.event == "values"] == expected
    assert [part.data["values"] for part in parts if part.event == "checkpoints"] == [{"log": []}, *expected]
    (run,) = sdk.runs.list(thread_id)
    assert sdk.runs.join(thread_id, run["run_id"]) == expected[-1]
    again = list(_parts(sdk, thread_id, 1, last_event_id="-"))
    assert [part.data for part in again[:-1]] == [part.data for part in parts[: len(again) - 1]]
    (update,) = _parts(sdk, thread_id, 1, last_event_id="-", stream_mode="state_update")
    assert update.data["values"] == expected[-1]
    assert sdk.threads.get(thread_id)["values"] == expected[-1]
    job = sdk.http.client.get(f"/everstep/jobs/{run['run_id']}").json()
    assert job["result"] == expected[-1]
