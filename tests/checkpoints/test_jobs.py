"""Jobs: enqueued once, found by a prefix, and changed only as their states allow."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest

from everstep.checkpoints import jobs
from everstep.checkpoints.jobs import ALLOWED, Job, LostClaim
from everstep.checkpoints.schema import STATUSES, agent_jobs
from everstep.checkpoints.store import Store
from everstep.errors import (
    JobNotFound,
    JobStateConflict,
    KeyConflict,
    PayloadInvalid,
    SecretInPayload,
)
from tests.support.record import begin_running, changes_of_status, in_processes, snapshot

pytestmark = pytest.mark.both_databases


# ---- enqueue


def test_the_same_input_is_the_same_job(store: Store) -> None:
    """One input enqueued twice is one job, created the first time only; key order and 1 against 1.0 do not matter."""
    job, created = store.enqueue("graph", {"a": 1, "b": [2]})
    again, created_again = store.enqueue("graph", {"b": [2], "a": 1.0})
    assert (created, created_again) == (True, False)
    assert job == again
    assert len(store.jobs()) == 1
    assert changes_of_status(store, job) == [(None, "pending")]


def test_graph_input_and_version_tell_jobs_apart(store: Store) -> None:
    """Another graph, input or workflow version is another job."""
    given = [("one", {"a": 1}, "1"), ("two", {"a": 1}, "1"), ("one", {"a": 2}, "1"), ("one", {"a": 1}, "2")]
    assert all(store.enqueue(graph, input, workflow_version=version).created for graph, input, version in given)
    assert not store.enqueue("one", {"a": 1}, workflow_version="2").created


def test_a_key_used_for_another_payload_shows_the_first_job(store: Store) -> None:
    """Same key and another input or graph is a conflict that names the job that has the key; nothing is stored."""
    first, _ = store.enqueue("graph", {"a": 1}, key="ticket-7")
    assert not store.enqueue("graph", {"a": 1}, key="ticket-7").created
    before = snapshot(store)
    for graph, payload in (("graph", {"a": 2}), ("other", {"a": 1})):
        with pytest.raises(KeyConflict, match=first.public_id) as conflict:
            store.enqueue(graph, payload, key="ticket-7")
        assert conflict.value.ids == {"key": "ticket-7", "job": first.public_id, "status": "pending"}
    assert snapshot(store) == before


@pytest.mark.parametrize(
    ("payload", "more"),
    [
        (None, {}),
        ({"a": float("nan")}, {}),
        ({1: 2}, {}),
        ({"a": 2**60}, {}),
        ({"a": {1, 2}}, {}),
        ({}, {"priority": 11}),
        ({}, {"priority": -1}),
        ({}, {"max_attempts": 0}),
    ],
)
def test_what_has_no_exact_form_or_range_is_refused(store: Store, payload: Any, more: dict[str, Any]) -> None:
    """No input, one without an exact JSON form and a parameter out of range are refused before anything is stored."""
    with pytest.raises(PayloadInvalid):
        store.enqueue("graph", payload, **more)
    assert store.jobs() == []


def test_a_credential_in_the_input_is_refused_by_path(store: Store) -> None:
    """An input with a password is refused by its path, without its value; the caller can insist."""
    with pytest.raises(SecretInPayload) as refused:
        store.enqueue("graph", {"login": {"password": "hunter2"}})
    assert refused.value.ids["paths"] == ["$.login.password"]
    assert "hunter2" not in str(refused.value)
    assert store.jobs() == []
    assert store.enqueue("graph", {"login": {"password": "hunter2"}}, allow_secret_keys=True).created


def _enqueue(path: str, results: str, number: int) -> None:
    with Store.open(f"sqlite:///{path}") as store:
        created = [store.enqueue("graph", {"n": n}, key=f"key {n}").created for n in range(25)]
    (Path(results) / str(number)).write_text(json.dumps(created))


def test_one_of_many_processes_creates_a_job(tmp_path: Path) -> None:
    """Of eight processes that enqueue the same keys at the same time exactly one is told True for each."""
    path = str(tmp_path / "record.db")
    Store.open(f"sqlite:///{path}").close()
    results = tmp_path / "results"
    results.mkdir()
    in_processes(_enqueue, [(path, str(results), number) for number in range(8)])
    told = [json.loads(file.read_text()) for file in results.iterdir()]
    assert [sum(created) for created in zip(*told, strict=True)] == [1] * 25
    with Store.open(f"sqlite:///{path}") as store:
        assert len(store.jobs()) == 25
        assert all(changes_of_status(store, job) == [(None, "pending")] for job in store.jobs())


def test_a_job_is_found_by_a_prefix_that_fits_one(store: Store) -> None:
    """A job is found by its id, by a unique beginning of it in any case, and not by one that fits several or none."""
    first, _ = store.enqueue("graph", {"n": 1})
    second, _ = store.enqueue("graph", {"n": 2})
    assert store.job(first.public_id.upper()) == first
    unique = next(n for n in range(36) if first.public_id[:n] != second.public_id[:n])
    assert store.job(first.public_id[:unique]) == first
    for wrong in ("", first.public_id[: unique - 1], "%", "_" * 36, "x", f"{first.public_id[:8]}0", "-", "\0", "é"):
        with pytest.raises(JobNotFound):
            store.job(wrong)


# ---- transitions


@pytest.mark.parametrize("start", STATUSES)
@pytest.mark.parametrize("to", STATUSES)
def test_only_the_allowed_transitions_exist(store: Store, start: str, to: str) -> None:
    """Each of the 36 changes of status is either allowed, and leaves an event, or refused, and leaves nothing."""
    store.enqueue("graph", {})
    (row,) = store.jobs()
    store.write(lambda c: c.execute(agent_jobs.update().values(status=start, claim_no=4))).result()
    job = store.job_by_row(row.id)
    before = snapshot(store)

    def change() -> Job:
        return store.write(lambda c: jobs.transition(c, job, to, now=7, actor="me", reason="why")).result()

    if to not in ALLOWED[start]:
        with pytest.raises(JobStateConflict, match=start):
            change()
        assert snapshot(store) == before
        return
    assert change().status == to
    event = store.events(job)[-1]
    assert (event["from"], event["to"], event["actor"], event["reason"]) == (start, to, "me", "why")


def test_what_is_allowed_is_what_the_states_mean() -> None:
    """Done is final, failed is left by a person only, review by an answer only, and only running jobs finish."""
    assert ALLOWED["done"] == frozenset()
    assert ALLOWED["failed"] == {"pending"}
    assert ALLOWED["review"] == {"pending", "failed"}
    assert [status for status in STATUSES if "done" in ALLOWED[status]] == ["running"]
    assert [status for status in STATUSES if "retry" in ALLOWED[status]] == ["running"]
    assert set(ALLOWED) == set(STATUSES)


def test_a_change_by_somebody_who_saw_an_older_job_is_refused(store: Store) -> None:
    """A transition compares status and claim number with what its caller saw, and changes nothing if they differ."""
    store.enqueue("graph", {})
    (seen,) = store.jobs()
    begin_running(store)
    before = snapshot(store)
    with pytest.raises(LostClaim):
        store.write(lambda c: jobs.transition(c, seen, "failed", now=0, actor="me", reason="")).result()
    assert snapshot(store) == before


def test_the_database_itself_refuses_a_status_it_does_not_know(store: Store) -> None:
    """A status outside the six is refused by a constraint, whoever writes it."""
    store.enqueue("graph", {})
    with pytest.raises((sqlite3.IntegrityError, psycopg.IntegrityError), match="ck_agent_jobs_status"):
        store.write(lambda c: c.exec_driver_sql("UPDATE agent_jobs SET status = 'lost'")).result()
