"""What tests of the record share: read-only places, other processes, and the moves of a worker made by hand."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from everstep.checkpoints import claims, effects
from everstep.checkpoints.effects import Effect
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.schema import metadata
from everstep.checkpoints.store import Store
from everstep.clock import Clock
from everstep.runtime.settle import Outcome, settle
from tests.support import compiled, migrated
from tests.support.waiting import PATIENCE, Halt

compiled.share()

FOREIGN = ("EVERSTEP_", "OTEL_", "LANGFUSE_")
"""What the names of variables begin with that would change what a process of the tests does."""


class _Forking(ForkServerContext):
    def Process(self, *args: Any, **named: Any) -> ForkServerProcess:
        """A process, forked from a server whose environment is nobody's: no test's that happened to be first."""
        kept = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith(FOREIGN)}
        try:
            forkserver.ensure_running()
        finally:
            os.environ.update(kept)
        return ForkServerProcess(*args, **named)


CONTEXT = _Forking()
"""Forks the processes of all tests; there is one such server in a process of the tests, and this is its only list."""
CONTEXT.set_forkserver_preload(
    [
        "tests.support.record",
        "everstep.checkpoints.postgres_saver",
        "sqlalchemy.dialects.postgresql.psycopg",
        "tests.support.agent_process",
        "tests.support.accepted",
        "tests.support.warm",
        "tests.cli.forked",
    ]
)


@contextmanager
def read_only_file(path: Path) -> Iterator[None]:
    """Nobody can write the file: by its mode, or for root, whom a mode does not stop, by the immutable attribute."""
    if os.geteuid() != 0:
        mode = path.stat().st_mode
        path.chmod(0o444)
        try:
            yield
        finally:
            path.chmod(mode)
        return
    if not _runs("chattr", "+i", str(path)):
        pytest.skip("root cannot be kept from writing here (no immutable attribute)")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)


@contextmanager
def read_only_folder(path: Path) -> Iterator[None]:
    """Nobody can write in the folder: by its mode, or for root by a read-only mount of it."""
    if os.geteuid() != 0:
        path.chmod(0o555)
        try:
            yield
        finally:
            path.chmod(0o755)
        return
    if not _runs("mount", "--bind", str(path), str(path)):
        pytest.skip("root cannot be kept from writing here (no mounts)")
    try:
        if not _runs("mount", "-o", "remount,ro,bind", str(path)):
            pytest.skip("root cannot be kept from writing here (no read-only mounts)")
        yield
    finally:
        subprocess.run(["umount", str(path)], check=True)


def _runs(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


def in_processes(target: Callable[..., None], calls: list[tuple[Any, ...]], timeout: float = PATIENCE) -> None:
    """Run `target` once for each tuple of arguments, all at the same time, each in a process of its own."""
    barrier = CONTEXT.Barrier(len(calls))
    processes = [CONTEXT.Process(target=_after, args=(barrier, target, call)) for call in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
    assert [process.exitcode for process in processes] == [0] * len(calls)


def _after(barrier: Any, target: Callable[..., None], call: tuple[Any, ...]) -> None:
    barrier.wait(PATIENCE)
    target(*call)


def claim(store: Store, worker: str = "worker", *, lease_ms: int = 1000, limit: int = 1, **more: Any) -> list[Job]:
    """Claim as a worker would, now."""
    now = store.clock.now_ms()
    return store.write(
        lambda connection: claims.claim(connection, now=now, worker=worker, lease_ms=lease_ms, limit=limit, **more)
    ).result()


def begin_running(store: Store, worker: str = "worker", **more: Any) -> Job:
    """Claim one job and note that its input is part of its thread."""
    (job,) = claim(store, worker, **more)
    now = store.clock.now_ms()
    store.write(lambda connection: claims.advance(connection, job.id, job.claim_no, now=now)).result()
    return store.job_by_row(job.id)


def settled(store: Store, job: Job, outcome: Outcome) -> Job:
    """The job after a leg of it came to this outcome."""
    now = store.clock.now_ms()
    return store.write(lambda c: settle(c, job, outcome, now=now, actor="worker", randomness=random.Random(0))).result()


def begin_effect(store: Store, job: Job, key: str = "key", *, name: str = "push") -> tuple[Effect, bool]:
    """Write an effect's intent under the job's claim, or find what is known of it."""
    now = store.clock.now_ms()
    what = {"key": key, "name": name, "arguments_digest": "digest", "arguments_json": '{"to": "main"}'}
    return store.write(lambda c: effects.begin(c, job_id=job.id, claim_no=job.claim_no, **what, now=now)).result()


class Gate:
    """Keeps the record's writer busy with one operation, so that what is submitted meanwhile waits as one batch."""

    def __init__(self, store: Store) -> None:
        self._halt = Halt()
        self.done = store.write(lambda _connection: self._halt.stand())
        self._halt.wait_until_reached()

    def open(self) -> None:
        """Let the writer go on."""
        self._halt.release()


def fresh(folder: Path, clock: Clock | None = None) -> Store:
    """An empty record in `folder`."""
    path = folder / "record.db"
    path.write_bytes(migrated.content())
    return Store.open(f"sqlite:///{path}", clock=clock)


def record(database: str, folder: Path, clock: Clock | None = None) -> AbstractContextManager[Store]:
    """An empty record on `sqlite` or `postgres`."""
    if database == "sqlite":
        return fresh(folder, clock)
    from tests.support.postgres import fresh_postgres

    return fresh_postgres(clock)


def snapshot(store: Store) -> list[Any]:
    """Everything the record holds, to see whether anything changed."""
    tables = (*metadata.tables, *store.database.checkpoint_tables)
    return store.read(
        lambda c: [sorted(c.exec_driver_sql(f"SELECT * FROM {table}").fetchall(), key=repr) for table in tables]
    )


def changes_of_status(store: Store, job: Job) -> list[tuple[str | None, str]]:
    """From which status to which the job went, each time."""
    return [(event["from"], event["to"]) for event in store.events(job)]
