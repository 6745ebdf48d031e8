"""PgBouncer between Everstep and PostgreSQL: by session it works, by transaction or statement it is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from everstep.checkpoints import postgres_pooler
from everstep.checkpoints.postgres import Postgres
from everstep.checkpoints.store import Store
from everstep.errors import StoreUnavailable, StoreUrlInvalid
from everstep.runtime.worker import Worker
from tests.support.jobs import chain, result
from tests.support.pooler import asked, pooler, through
from tests.support.postgres import empty_database
from tests.support.waiting import PATIENCE, until

DROPPING = {"ignore_startup_parameters": "options"}


@pytest.fixture
def empty() -> Iterator[str]:
    """The URL of a database with nothing in it."""
    with empty_database() as url:
        yield url


@pytest.mark.parametrize("settings", [{}, DROPPING], ids=["refusing options", "dropping options"])
def test_by_session_everything_works(empty: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Migration, runs, wake-ups, the schema of the URL, and every connection's settings, however they are taken."""
    monkeypatch.setattr(Postgres, "poll_s", 3600.0)  # only what is told wakes a worker
    asked(empty, "CREATE SCHEMA agents")
    with pooler("session", **settings) as pooled:
        url = through(empty, pooled) + "&options=-csearch_path%3Dagents"
        with Store.open(url) as store, Store.open(url) as beside:
            assert store.write(lambda one: one.exec_driver_sql("SHOW lock_timeout").scalar()).result() == "30s"
            with pytest.raises(StoreUnavailable, match="read-only"):
                store.read(lambda one: one.exec_driver_sql("DELETE FROM agent_jobs"))
            worker = Worker(store, {"graph": chain(lambda _s: {"log": ["a"]})})
            working = threading.Thread(target=worker.run)
            working.start()
            try:
                for number in range(3):
                    job, _ = beside.enqueue("graph", {"log": [number]})
                    until(lambda job=job: beside.job(job.public_id).status == "done", "the job's end")
                    assert result(beside, job) == [number, "a"]
            finally:
                worker.drain()
                working.join(PATIENCE)
    tables = "SELECT array_agg(DISTINCT schemaname::text) FROM pg_tables WHERE tablename = 'agent_jobs'"
    assert asked(empty, tables) == ["agents"]


@pytest.mark.parametrize("mode", ["transaction", "statement"])
@pytest.mark.parametrize("settings", [{}, DROPPING], ids=["refusing options", "dropping options"])
def test_by_transaction_it_is_refused(empty: str, mode: str, settings: dict[str, str]) -> None:
    """Before a table is made, and with what to do instead."""
    with pooler(mode, **settings) as pooled, pytest.raises(StoreUrlInvalid, match="gives a session to others") as told:
        Store.open(through(empty, pooled))
    assert "pool_mode=session" in told.value.next_step
    assert asked(empty, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"default_pool_size": "1", "query_wait_timeout": "1"}, "default_pool_size"),
        ({"max_client_conn": "1"}, "max_client_conn"),
    ],
)
def test_a_pooler_that_is_full_says_what_to_raise(empty: str, settings: dict[str, str], setting: str) -> None:
    """Where all connections are taken the server is up and the URL right: the next step names the pooler's setting."""
    with pooler("session", **settings) as pooled, psycopg.connect(through(empty, pooled)) as taken:
        taken.execute("SELECT 1")
        with pytest.raises(StoreUnavailable) as told:
            Store.open(through(empty, pooled))
    assert setting in told.value.next_step


def test_a_server_that_is_full_says_what_to_raise() -> None:
    """PostgreSQL's own limits are told apart from a server that is away."""
    assert "max_connections" in postgres_pooler.room_for("FATAL:  sorry, too many clients already")
    assert postgres_pooler.room_for("connection refused") == ""


def test_a_session_that_is_shared_is_noticed(empty: str) -> None:
    """Whatever the pooler: a second client that finds the first one's session, or a first that lost its own."""
    dicts: Any = dict_row
    with (
        psycopg.connect(empty, autocommit=True, row_factory=dicts) as one,
        psycopg.connect(empty, autocommit=True, row_factory=dicts) as other,
    ):

        @contextmanager
        def the_same() -> Iterator[psycopg.Connection[Any]]:
            yield one

        @contextmanager
        def another() -> Iterator[psycopg.Connection[Any]]:
            yield other

        @contextmanager
        def another_while_the_first_is_lost() -> Iterator[psycopg.Connection[Any]]:
            one.execute("DISCARD ALL")
            yield other

        assert not postgres_pooler.look(one).is_between
        postgres_pooler.require_sessions(one, another, "the record")
        for shared in (the_same, another_while_the_first_is_lost):
            with pytest.raises(StoreUrlInvalid, match="the record"):
                postgres_pooler.require_sessions(one, shared, "the record")


def test_settings_of_a_url_become_statements(empty: str) -> None:
    """As PostgreSQL reads them: three ways to write one, the last of a name counts, a blank has a backslash before."""
    options = r"-c search_path=a,b -cwork_mem=1MB --lock-timeout=1s -c lock_timeout=30s -c application_name=two\ words"
    settings = postgres_pooler.settings_in(options)
    assert settings == [
        ("search_path", "a,b"),
        ("work_mem", "1MB"),
        ("lock_timeout", "30s"),
        ("application_name", "two words"),
    ]
    with psycopg.connect(empty) as connection:
        postgres_pooler.set_by_statement(connection, options)
        connection.rollback()
        for name, value in settings:
            assert connection.execute("SELECT current_setting(%s)", (name,)).fetchone() == (value,)
