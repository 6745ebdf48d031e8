"""Every command on a record in PostgreSQL, as one of several hosts would use it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cli.folder import Folder, is_refused
from tests.support.postgres import empty_database


@pytest.fixture
def store() -> Iterator[str]:
    """The URL of an empty database."""
    with empty_database() as url:
        yield url


def test_a_life_of_jobs_on_a_shared_record(folder: Folder, store: str) -> None:
    """Submit, work, review, retry, cancel and look: as on a file, with `--store` or the environment's URL."""
    is_refused(folder.run("jobs", "--store", store), 66, "store_not_found")
    place = ("--store", store)
    done = folder.json("submit", "count", "--input", '{"n": 1}', *place)["id"]
    asks = folder.json("submit", "ask", "--input", "{}", *place)["id"]
    fails = folder.json("submit", "fails", "--input", "{}", *place)["id"]
    worked = folder.run("worker", "--until-idle", EVERSTEP_STORE=store)
    assert worked.code == 0, worked
    assert store.split("/")[-1].split("?")[0] in worked.err
    jobs = {job["id"]: job["status"] for job in folder.json("jobs", *place)}
    assert jobs == {done: "done", asks: "review", fails: "failed"}
    assert folder.json("show", done, *place)["result"]["n"] == 2
    assert [saved["step"] for saved in folder.json("history", done, *place)]
    (review,) = folder.json("review", *place)
    folder.json("review", "respond", review["id"], "--value", "7", *place)
    is_refused(folder.run("review", "approve", review["id"], *place), 65, "review_answered")
    assert folder.json("retry", fails, *place)["status"] == "pending"
    assert folder.json("cancel", fails, *place)["status"] == "failed"
    assert folder.run("worker", "--until-idle", *place).code == 0
    assert folder.json("show", asks, *place)["result"]["seen"] == [7]
    findings = {found["check"]: found for found in folder.json("doctor", *place)["findings"]}
    assert findings["record"]["level"] == "ok"
    assert "postgresql://" in findings["record"]["detail"]
    assert not list(folder.path.glob("*.db*"))


def test_a_server_that_is_away_is_an_error_with_the_next_step(folder: Folder) -> None:
    """No traceback, no password, exit code 69."""
    for command in (("jobs",), ("worker", "--until-idle"), ("submit", "count", "--input", "{}")):
        ran = folder.run(*command, "--store", "postgresql://me:hunter2@127.0.0.1:1/db")
        is_refused(ran, 69, "store_unavailable")
        assert "hunter2" not in ran.err
    found = folder.run("doctor", "--store", "postgresql://me:hunter2@127.0.0.1:1/db", "--json")
    assert found.code == 1
    assert "hunter2" not in json.dumps(found.value)
