"""PgBouncer between Everstep and PostgreSQL: by session it works, by transaction or statement it is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import Connection

from everstep.checkpoints import postgres_pooler
from everstep.checkpoints.postgres import Postgres
from everstep.checkpoints.store import Store
from everstep.errors import StoreUnavailable, StoreUrlInvalid
from tests.support.jobs import wakes
from tests.support.pooler import asked, pooler, through
from tests.support.postgres import empty_database
from tests.support.waiting import PATIENCE, until

DROPPING = {"ignore_startup_parameters": "options"}
WRITES = {
    "lock_timeout": "30s",
    "idle_in_transaction_session_timeout": "1min",
    "enable_bitmapscan": "off",
    "jit": "off",
}
READS = {"default_transaction_read_only": "on", "statement_timeout": "1min"}
"""The settings of connections that write, and of those that read."""


@pytest.fixture
def empty() -> Iterator[str]:
    """The URL of a database with nothing in it."""
    with empty_database() as url:
        yield url


def settings_of(store: Store) -> dict[str, str]:
    """What the server says of the settings of its writer's connection, and of one that reads."""

    def shown(names: Iterable[str], connection: Connection) -> dict[str, str]:
        return {name: connection.exec_driver_sql(f"SHOW {name}").scalar_one() for name in names}

    return store.write(partial(shown, WRITES)).result() | store.read(partial(shown, READS))


@pytest.mark.parametrize("settings", [{}, DROPPING], ids=["refusing options", "dropping options"])
def test_by_session_everything_works(empty: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Migration, runs, wake-ups, the schema of the URL, and every connection's settings, however they are taken."""
    monkeypatch.setattr(Postgres, "poll_s", 3600.0)  # only what is told wakes a worker
    asked(empty, "CREATE SCHEMA agents")
    with pooler("session", **settings) as pooled:
        url = through(empty, pooled) + "&options=-csearch_path%3Dagents"
        with Store.open(url) as store, Store.open(url) as beside:
            assert settings_of(store) == {**WRITES, **READS}
            with store.checkpoint_reader.connection() as reader:
                assert reader.execute("SHOW search_path").fetchone() == {"search_path": "agents"}
            with pytest.raises(StoreUnavailable, match="read-only"):
                store.read(lambda one: one.exec_driver_sql("DELETE FROM agent_jobs"))
            wakes(store, beside)
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


@pytest.mark.parametrize("settings", [{}, DROPPING], ids=["refusing options", "dropping options"])
def test_a_pooler_that_lets_one_wait_is_told_of(
    empty: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, while it waits, with what to raise; when there is room it goes on as if nothing had been."""
    monkeypatch.setattr(postgres_pooler, "SILENT_S", 0.0)
    enough = 4
    with pooler("session", default_pool_size=str(enough), **settings) as pooled, ThreadPoolExecutor(1) as thread:
        url = through(empty, pooled)
        with ExitStack() as taken:
            for _ in range(enough):
                taken.enter_context(psycopg.connect(url)).execute("SELECT 1")
            opening = thread.submit(Store.open, url)
            until(lambda: caplog.messages, "what is said of the wait")
            assert not opening.done()
        with opening.result(PATIENCE) as store:
            assert store.enqueue("graph", {}).created
    (told,) = caplog.messages
    assert f"a connection to {store.database.label} was not served" in told
    assert "default_pool_size" in told


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
