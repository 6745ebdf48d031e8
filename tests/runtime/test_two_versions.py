"""A record that two versions of Everstep share: what the older one does when the newer one has migrated it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from everstep.checkpoints.store import Store
from everstep.errors import StoreTooNew
from everstep.runtime.worker import Worker
from tests.support.jobs import Log, chain, moves, result, work
from tests.support.waiting import PATIENCE, Halt

pytestmark = pytest.mark.both_databases


def migrated_to(store: Store, version: str) -> None:
    """The record is of this schema from now on, as after a migration by another version."""
    statement = f"UPDATE alembic_version SET version_num = '{version}'"
    store.write(lambda connection: connection.exec_driver_sql(statement)).result()


def test_a_worker_ends_when_a_newer_version_migrated_the_record(store: Store) -> None:
    """It claims nothing more, gives its job back at the next step with nothing counted, and says why it ended."""
    halt, bodies = Halt(), list[str]()

    def first(_state: Log) -> Log:
        bodies.append("first")
        halt.stand()
        return {"log": ["first"]}

    graph = chain(first, lambda _state: {"log": ["second"]})
    running, _ = store.enqueue("graph", {"log": []}, priority=10)
    version = store.read(lambda c: c.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one())
    drained = threading.Event()
    worker = Worker(store, {"graph": graph}, concurrency=2)
    drain = worker.drain

    def draining() -> None:
        drain()
        drained.set()

    worker.drain = draining  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(worker.run)
        halt.wait_until_reached()
        migrated_to(store, "0999")
        waiting, _ = store.enqueue("graph", {"log": [1]})
        assert drained.wait(PATIENCE)
        halt.release()
        with pytest.raises(StoreTooNew, match="0999"):
            ended.result(PATIENCE)
    assert moves(store, waiting) == ["pending"]
    given_back = store.job(running.public_id)
    assert (given_back.status, given_back.attempts, given_back.failures) == ("pending", 0, 0)
    with pytest.raises(StoreTooNew):
        Store.open(store.url)
    migrated_to(store, version)
    work(store, graph)
    assert (result(store, running), result(store, waiting)) == (["first", "second"], [1, "first", "second"])
    assert bodies == ["first", "first"]
