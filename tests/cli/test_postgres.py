"""Every command on a record in PostgreSQL, as one of several hosts would use it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest

from tests.cli.folder import Folder, is_refused
from tests.support.postgres import empty_database


@pytest.fixture
def store() -> Iterator[str]:
    """The URL of an empty database."""
    with empty_database() as url:
        yield url


@pytest.mark.parametrize("schema", [None, "agents"])
def test_a_life_of_jobs_on_a_shared_record(folder: Folder, store: str, schema: str | None) -> None:
    """Submit, work, review, retry, cancel and look: as on a file, with `--store` or the environment's URL.

    Also in a schema that the URL's options name; nothing is made in any other.
    """
    if schema is not None:
        with psycopg.connect(store, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")  # type: ignore[arg-type]
        store += f"&options=-csearch_path%3D{schema}"
    is_refused(folder.run("jobs", "--store", store), 66, "store_not_found")
    place = ("--store", store)
    done = folder.json("submit", "count", "--input", '{"n": 1}', *place)["id"]
    asks = folder.json("submit", "ask", "--input", "{}", *place)["id"]
    fails = folder.json("submit", "fails", "--input", "{}", *place)["id"]
    worked = folder.run("worker", "--until-idle", EVERSTEP_STORE=store)
    assert worked.code == 0, worked
    assert store.split("?")[0].split("/")[-1] in worked.err
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
    assert 'everstep_jobs{state="done"} 2' in folder.run("metrics", *place).out.splitlines()
    assert not list(folder.path.glob("*.db*"))
    with psycopg.connect(store) as connection:
        made = "SELECT DISTINCT schemaname FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)'"
        assert connection.execute(made).fetchall() == [(schema or "public",)]  # type: ignore[arg-type]


def test_a_server_that_is_away_is_an_error_with_the_next_step(folder: Folder) -> None:
    """No traceback, no password, exit code 69."""
    for command in (("jobs",), ("worker", "--until-idle"), ("submit", "count", "--input", "{}")):
        ran = folder.run(*command, "--store", "postgresql://me:hunter2@127.0.0.1:1/db")
        is_refused(ran, 69, "store_unavailable")
        assert "hunter2" not in ran.err
    found = folder.run("doctor", "--store", "postgresql://me:hunter2@127.0.0.1:1/db", "--json")
    assert found.code == 1
    assert "hunter2" not in json.dumps(found.value)
