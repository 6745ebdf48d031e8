"""A record in PostgreSQL over a network that breaks: a host cut off in mid-run, and a server that is restarted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.runtime import run
from everstep.runtime.worker import Worker
from tests.support.black_hole import BlackHole
from tests.support.jobs import Log, chain, moves, result, work
from tests.support.outside import act, happened
from tests.support.postgres import fresh_postgres, own_server
from tests.support.record import CONTEXT
from tests.support.waiting import PATIENCE, Halt, until

LEASE_S = 2.0


def acting(world: str, wait: Any) -> Any:
    """Three nodes with an effect each; the second waits before it."""

    def node(name: str) -> Any:
        def body(_state: Log) -> Log:
            if name == "b":
                wait()
            return {"log": [act(world, name)]}

        return body

    return chain(node("a"), node("b"), node("c"))


# ---- a host that is cut off


def _wait_for_file(world: str) -> None:
    Path(world + ".entered").touch()
    until(Path(world + ".go").exists, "the permission to go on")


def _serve(url: str, world: str) -> None:
    with Store.open(url) as store:
        Worker(store, {"graph": acting(world, lambda: _wait_for_file(world))}, lease=LEASE_S).run(until_idle=True)


@contextmanager
def cut(way: BlackHole, store: Store) -> Iterator[None]:
    """Nothing passes for the length of the block, and no transaction was under way when it was cut.

    One that was would hold its locks until the server ends it (`idle_in_transaction_session_timeout`).
    """
    busy = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'far' AND state <> 'idle'"
    with psycopg.connect(store.url, autocommit=True) as connection:

        def stands() -> bool:
            way.close()
            if connection.execute(busy).fetchone() == (0,):
                return True
            way.open()
            return False

        until(stands, "a moment without a transaction")
    try:
        yield
    finally:
        way.open()


def seen(store: Store, job: Job, world: str) -> list[Any]:
    """All there is of a job: itself, its history, effects, checkpoints, and what happened in the world."""
    saved = store.read(
        lambda c: [c.exec_driver_sql(f"SELECT * FROM {table}").fetchall() for table in store.database.checkpoint_tables]
    )
    return [store.job(job.public_id), store.events(job), store.effects(job), saved, happened(world)]


def test_a_host_that_is_cut_off_changes_nothing_afterwards(tmp_path: Path) -> None:
    """Its job is taken over when the lease ends and finished; when the network heals its late writes are void."""
    world = str(tmp_path / "world")
    with fresh_postgres() as store, BlackHole(store.url, "far") as way:
        job, _ = store.enqueue("graph", {"log": []})
        far = CONTEXT.Process(target=_serve, args=(way.url, world))
        far.start()
        until(Path(world + ".entered").exists, "its entry into the node")
        with cut(way, store):
            Path(world + ".go").touch()
            work(store, acting(world, lambda: None))
            assert result(store, job) == ["a", "b", "c"]
            until(lambda: way.late >= 2, "what it sends into the dark: its heartbeat, and the intent of its effect")
            before = seen(store, job, world)
        far.join(PATIENCE)
        assert far.exitcode == 0
        assert seen(store, job, world) == before
        assert happened(world) == ["a", "b", "c"]
        assert moves(store, job) == ["pending", "running", "running", "done"]


# ---- a server that is restarted


def test_a_restart_of_the_server_in_mid_job_doubles_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is away, and after it was, a worker goes on with new connections: the job is done, each effect once."""
    monkeypatch.setattr(run, "SETTLE_RETRY_S", 0.05)
    with own_server() as server, Store.open(server.url) as store:
        for number, back_before in enumerate((False, True)):
            world, halt = str(tmp_path / f"world {number}"), Halt()
            job, _ = store.enqueue("graph", {"log": [number]})
            worker = Worker(store, {"graph": acting(world, halt.stand)})
            worker.outage_backoff_s = 0.05
            thread = threading.Thread(target=worker.run, kwargs={"until_idle": True})
            thread.start()
            halt.wait_until_reached()
            server.stop()
            if not back_before:
                halt.release()
                until(lambda worker=worker: worker._outage.wait_s > 0, "the outage")  # pyright: ignore[reportPrivateUsage]
            server.start()
            halt.release()
            until(lambda job=job: ended(store, job), "the job's end")
            thread.join(PATIENCE)
            assert not thread.is_alive()
            assert result(store, job) == [number, "a", "b", "c"]
            assert store.job(job.public_id).failures == 0
            assert happened(world) == ["a", "b", "c"]
            assert [effect.calls for effect in store.effects(job)] == [1, 1, 1]


def ended(store: Store, job: Job) -> bool:
    """Whether the job is done; if it waits for a minute, because the record was away, it need not."""
    status = store.job(job.public_id).status
    if status == "retry":
        store.redrive(job.public_id)
    return status == "done"
