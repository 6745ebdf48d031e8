"""`everstep jobs`, `show` and `history`: what they tell, which other programs rely on."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints.canonical import digest
from everstep.checkpoints.store import Store
from tests.cli.conftest import STATUSES, Prepared
from tests.cli.folder import TIME, Folder, is_refused, times
from tests.support.record import begin_effect, begin_running

TEXT, NUMBER, MAYBE_TEXT, ANY = (str,), (int,), (str, type(None)), (object,)

JOB: dict[str, tuple[type, ...]] = {
    "id": TEXT,
    "graph": TEXT,
    "thread_id": TEXT,
    "status": TEXT,
    "attempts": NUMBER,
    "max_attempts": NUMBER,
    "failures": NUMBER,
    "worker_deaths": NUMBER,
    "suspect": (bool,),
    "step": NUMBER,
    "node": MAYBE_TEXT,
    "priority": NUMBER,
    "idempotency_key": TEXT,
    "workflow_version": TEXT,
    "owner": TEXT,
    "leased_by": MAYBE_TEXT,
    "lease_until": MAYBE_TEXT,
    "claim_no": NUMBER,
    "next_run_at": TEXT,
    "cancel_requested_at": MAYBE_TEXT,
    "created_at": TEXT,
    "updated_at": TEXT,
    "input_tokens": NUMBER,
    "output_tokens": NUMBER,
    "budget": (dict,),
    "parent": MAYBE_TEXT,
    "input": ANY,
    "error": (dict, type(None)),
    "result": ANY,
    "result_digest": MAYBE_TEXT,
}
EFFECT: dict[str, tuple[type, ...]] = {
    "name": TEXT,
    "state": TEXT,
    "key": TEXT,
    "calls": NUMBER,
    "arguments": ANY,
    "result": ANY,
    "settled_by": MAYBE_TEXT,
    "error": MAYBE_TEXT,
    "created_at": TEXT,
    "updated_at": TEXT,
}
REVIEW: dict[str, tuple[type, ...]] = {
    "id": TEXT,
    "job": TEXT,
    "kind": TEXT,
    "status": TEXT,
    "value": ANY,
    "argument_digest": TEXT,
    "choices": (dict,),
    "answer": (dict, type(None)),
    "used_for": (dict, type(None)),
    "created_at": TEXT,
}
SHOWN: dict[str, tuple[type, ...]] = {
    **JOB,
    "effects": (list,),
    "effects_count": NUMBER,
    "reviews": (list,),
    "evidence": (list,),
    "events": (list,),
    "legs": (list,),
    "acceptance": (dict, type(None)),
    "trigger": (dict, type(None)),
    "waits": (list,),
    "paid": (dict, type(None)),
    "next_action": TEXT,
}
CHECKPOINT: dict[str, tuple[type, ...]] = {
    "checkpoint_id": TEXT,
    "checkpoint_ns": TEXT,
    "parent_checkpoint_id": MAYBE_TEXT,
    "step": NUMBER,
    "source": TEXT,
    "created_at": TEXT,
    "next": (list,),
    "channels": (list,),
    "pending_writes": NUMBER,
}


def has_shape(value: dict[str, Any], shape: dict[str, tuple[type, ...]]) -> None:
    """Assert that an object has exactly these fields, each of one of its types, and that its times are UTC with Z."""
    assert set(value) == set(shape)
    for name, kinds in shape.items():
        assert isinstance(value[name], kinds), (name, value[name])
        assert not (kinds is NUMBER and isinstance(value[name], bool)), name
    for time in times(value):
        assert time is None or TIME.fullmatch(time), time


def test_jobs_lists_every_job_with_exactly_the_promised_fields(prepared: Prepared) -> None:
    """`jobs --json` is a list, newest first, of objects with exactly the documented fields, types and UTC times."""
    jobs = prepared.folder.json("jobs")
    assert {job["graph"]: job["status"] for job in jobs} == STATUSES
    assert [job["id"] for job in jobs] == list(reversed(prepared.jobs.values()))
    for job in jobs:
        has_shape(job, JOB)
        assert (job["result_digest"] is not None) == (job["status"] == "done")
        assert (job["leased_by"] is not None) == (job["lease_until"] is not None) == (job["status"] == "running")
        assert (job["error"] is not None) == (job["graph"] in ("fails", "garbled", "broken", "away"))


def test_the_documented_fields_are_the_real_ones() -> None:
    """docs/commands.md names exactly the fields that `jobs --json` has."""
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    listed = re.search(r"lists jobs, newest first, with the fields `([^`]+)`", page)
    assert listed is not None
    assert re.split(r",\s+", listed[1]) == list(JOB)


def test_jobs_can_be_asked_for_by_state(prepared: Prepared) -> None:
    """`jobs --status S` lists the jobs in this state and no others, for each of the six."""
    statuses = ("pending", "running", "retry", "review", "done", "failed")
    for status, jobs in zip(
        statuses, prepared.folder.all_json(*(("jobs", "--status", status) for status in statuses)), strict=True
    ):
        assert {job["graph"] for job in jobs} == {graph for graph, other in STATUSES.items() if other == status}


def test_jobs_shows_a_line_for_each_job(prepared: Prepared) -> None:
    """Without --json each job is one line, with its whole id, on stdout."""
    ran = prepared.folder.run("jobs", "--limit", "3")
    assert (ran.code, ran.err) == (0, "")
    newest = list(reversed(prepared.jobs.values()))[:3]
    assert [line.split()[0] for line in ran.out.splitlines()] == ["id", *newest]


@pytest.mark.parametrize("encoding", ["utf-8:strict", "latin-1:strict"])
def test_no_text_is_too_odd_to_be_shown(encoding: str, prepared: Prepared) -> None:
    """Text that is not Unicode, or that the terminal cannot show, is escaped; JSON stays JSON."""
    job = prepared.jobs["garbled"]
    shown = prepared.folder.run("show", job, PYTHONIOENCODING=encoding)
    assert (shown.code, shown.err) == (0, "")
    assert "na\\udcffme" in shown.out
    as_json = prepared.folder.run("show", job, "--json", PYTHONIOENCODING=encoding)
    assert as_json.value["error"]["message"] == "no file of the name na\udcffme→"


def test_an_empty_record_is_an_empty_list(folder: Folder) -> None:
    """With no jobs and no reviews the lists are empty; what is said to people, with the record's name, is on stderr."""
    Store.open(folder.url).close()
    jobs, found, reviews = folder.run("jobs"), folder.json("jobs"), folder.json("review")
    assert (jobs.code, jobs.out, found, reviews) == (0, "", [], [])
    assert str(folder.path / "everstep.db") in jobs.err


def test_a_review_has_one_digest_of_what_it_asks(prepared: Prepared) -> None:
    """Of a question of `review()` it is the one the answer is bound to; of anything else, of what is asked."""
    asked = {review["job"]: review for review in prepared.folder.json("review")}
    tool, plain = asked[prepared.jobs["tool"]], asked[prepared.jobs["ask"]]
    assert tool["argument_digest"] == tool["value"]["argument_digest"]
    bound = {name: tool["value"][name] for name in ("action_requests", "review_configs")}
    assert tool["argument_digest"] == digest(bound)
    assert plain["argument_digest"] == digest(plain["value"])


def test_show_tells_everything_of_a_job(prepared: Prepared) -> None:
    """`show --json` has the fields of `jobs` and effects, reviews, evidence, events and the next action."""
    mail, broken, lost = prepared.folder.all_json(
        *(("show", prepared.jobs[graph]) for graph in ("mail", "broken", "lost"))
    )
    for job in (mail, broken, lost):
        has_shape(job, SHOWN)
        for effect in job["effects"]:
            has_shape(effect, EFFECT)
        for review in job["reviews"]:
            has_shape(review, REVIEW)
            assert review["job"] == job["id"]
        for event in job["events"]:
            assert set(event) == {"from", "to", "claim_no", "at", "actor", "reason"}
        assert [event["to"] for event in job["events"]][-1] == job["status"]
    (sent,) = mail["effects"]
    assert (sent["name"], sent["state"], sent["calls"], sent["result"]) == ("mail.send", "confirmed", 1, "sent to ada")
    assert mail["next_action"] == "nothing"
    assert broken["error"]["type"] == "KeyError"
    assert broken["error"]["node"] == "work"
    assert [evidence["kind"] for evidence in broken["evidence"]] == ["error"]
    (unknown,) = lost["effects"]
    assert (unknown["state"], lost["reviews"][0]["kind"]) == ("unknown", "effect")
    assert lost["reviews"][0]["id"] in lost["next_action"]


def test_show_shows_the_newest_fifty_effects_and_how_many_there_are(folder: Folder) -> None:
    """Of a job with many effects `show` shows the newest 50 and the number of all; `--all-effects` shows every one."""
    with Store.open(folder.url) as store:
        store.enqueue("count", {"log": []})
        job = begin_running(store)
        for number in range(53):
            begin_effect(store, job, f"key {number}")
    newest, every = folder.all_json(("show", job.public_id), ("show", job.public_id, "--all-effects"))
    assert [effect["key"] for effect in newest["effects"]] == [f"key {number}" for number in range(3, 53)]
    assert [effect["key"] for effect in every["effects"]] == [f"key {number}" for number in range(53)]
    assert newest["effects_count"] == every["effects_count"] == 53
    few, all_ = folder.all(("show", job.public_id), ("show", job.public_id, "--all-effects"))
    assert "effects (the newest 50 of 53; all of them: --all-effects)\n" in few.out
    assert "\neffects\n" in all_.out


def test_show_takes_the_beginning_of_an_id(prepared: Prepared) -> None:
    """A JOB may be shortened, in any case, as long as it fits one job only; otherwise the command exits 66."""
    job = prepared.jobs["count"]
    unique = next(
        job[:length]
        for length in range(1, len(job))
        if sum(other.startswith(job[:length]) for other in prepared.jobs.values()) == 1
    )
    assert prepared.folder.json("show", unique.upper())["id"] == job
    several, none, empty = prepared.folder.all(("show", job[:4]), ("show", "f00"), ("show", ""))
    for ran in (several, none, empty):
        is_refused(ran, 66, "job_not_found")
    assert "several" in several.err


def test_show_for_people_says_what_to_do_next(prepared: Prepared) -> None:
    """Without --json `show` ends with what a person can do about the job now, for a job in any state."""
    wanted = {
        "slow": "everstep worker",
        "hold": "any worker may take it over",
        "away": f"everstep retry {prepared.jobs['away']}",
        "ask": "everstep review show",
        "fails": f"everstep retry {prepared.jobs['fails']}",
        "count": "nothing",
    }
    for ran, said in zip(
        prepared.folder.all(*(("show", prepared.jobs[graph]) for graph in wanted)), wanted.values(), strict=True
    ):
        assert (ran.code, ran.err) == (0, "")
        last = ran.out.splitlines()[-1]
        assert last.startswith("next ")
        assert said in last


def test_history_lists_the_checkpoints(prepared: Prepared) -> None:
    """`history --json` has every checkpoint, newest first, each with its step, its time and its parent."""
    checkpoints, newest, none = prepared.folder.all_json(
        ("history", prepared.jobs["count"]),
        ("history", prepared.jobs["count"], "--limit", "1"),
        ("history", prepared.jobs["slow"]),
    )
    for checkpoint in checkpoints:
        has_shape(checkpoint, CHECKPOINT)
    assert [checkpoint["step"] for checkpoint in checkpoints] == [1, 0, -1]
    assert [checkpoint["next"] for checkpoint in checkpoints] == [[], ["work"], []]
    parents = [checkpoint["parent_checkpoint_id"] for checkpoint in checkpoints]
    assert parents == [checkpoints[1]["checkpoint_id"], checkpoints[2]["checkpoint_id"], None]
    assert (newest, none) == (checkpoints[:1], [])


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["table", "json"])
def test_a_reader_that_stops_early_is_no_error(options: tuple[str, ...], prepared: Prepared) -> None:
    """When the reader of stdout is gone (`everstep jobs | head -1`) the command ends without a word."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = prepared.folder.run("jobs", *options, stdout=writing)
    finally:
        os.close(writing)
    assert (ran.code, ran.err) == (141, "")


def test_the_record_is_found_by_option_and_by_environment(prepared: Prepared, tmp_path: Path) -> None:
    """`--store` names the record, EVERSTEP_STORE does so too, and the option wins."""
    elsewhere = Folder(tmp_path)
    by_variable = elsewhere.run("jobs", "--json", EVERSTEP_STORE=prepared.folder.url)
    by_option = elsewhere.run("jobs", "--json", "--store", prepared.folder.url, EVERSTEP_STORE="sqlite:///other.db")
    assert by_variable.value == by_option.value == prepared.folder.json("jobs")
    assert list(tmp_path.iterdir()) == []


STEERING = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202edrow\nnext: rm"
NODE = STEERING.replace(":", "")
HOSTILE = f"""
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

def fail(state):
    raise ValueError({STEERING!r})

def ask(state):
    return {{"n": interrupt({STEERING!r})}}

def graph(node):
    made = StateGraph(dict)
    made.add_node({NODE!r}, node)
    made.add_edge(START, {NODE!r})
    return made.compile()

failing, asking = graph(fail), graph(ask)
"""


def test_text_of_others_cannot_steer_the_terminal(folder: Folder) -> None:
    """Messages of exceptions, names of nodes and questions are shown without what a terminal would obey."""
    folder.write(hostile=HOSTILE).configure(failing="./hostile.py:failing", asking="./hostile.py:asking")
    jobs = folder.enqueue("failing", "asking")
    with folder.worker() as worker:
        worker.until_settled(*jobs.values())
    review = folder.json("review")[0]["id"]
    ran = folder.all(
        *((command, job) for command in ("show", "history", "trace") for job in jobs.values()),
        ("jobs",),
        ("dlq",),
        ("dlq", "show", jobs["failing"]),
        ("review",),
        ("review", "show", review),
        ("doctor",),
    )
    for one in ran:
        assert one.code in (0, 1), one
        assert not any(sign in one.out + one.err for sign in "\x1b\x07\x9b\u202e"), one
        assert not re.search("^next: rm", one.out, re.MULTILINE), one
    assert "�drow" in ran[0].out
    assert folder.json("show", jobs["failing"])["error"]["message"] == STEERING
