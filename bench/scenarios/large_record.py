"""A large record: claim, list and show on many jobs and checkpoints, against a record with next to nothing in it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from bench.filling import CHECKPOINTS_EACH, FAILED, fill
from bench.run import Run, raw
from bench.tables import Section, Table, Target
from everstep.checkpoints import claims, jobs
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store

LARGE, EMPTY = "large", "empty"
WANTED = 1.5


def run(run: Run) -> Section:
    """Measure it."""
    section = Section("large_record", "A large record")
    backlog = run.scale.stored // 10
    probes = run.scale.probes
    with run.place() as large, run.place() as empty:
        run.progress(f"large record: filling one with {run.scale.stored:,} jobs")
        fill(Path(large) / "everstep.db", run.scale.stored, ready=backlog, checkpoints=True)
        ready = probes * run.scale.runs
        fill(Path(empty) / "everstep.db", ready + FAILED, ready=ready, checkpoints=True)
        megabytes = (Path(large) / "everstep.db").stat().st_size / 1e6
        with (
            Store.open(f"sqlite:///{Path(large) / 'everstep.db'}") as large_store,
            Store.open(f"sqlite:///{Path(empty) / 'everstep.db'}") as empty_store,
        ):
            stores = {LARGE: large_store, EMPTY: empty_store}
            found = run.measure(
                "large record", list(stores), lambda name: probe(stores[name], probes), section.failures
            )
    section.raw = raw(found)
    rows = []
    for what in next(iter(found.values()), {}):
        times = found[LARGE][what].median / found[EMPTY][what].median
        rows.append([what, found[EMPTY][what].text(2), found[LARGE][what].text(2), f"{times:.2f} ×"])
        section.targets.append(Target(f"Large record: {what}", f"≤ {WANTED} ×", f"{times:.2f} ×", times <= WANTED))
    section.tables = [Table("median milliseconds", ["operation", "empty", "large", "large is"], rows)]
    section.notes = [
        f"The large record has {run.scale.stored:,} jobs, of which {backlog:,} are ready, and"
        f" {run.scale.stored * CHECKPOINTS_EACH:,} checkpoints ({megabytes:,.0f} MB); the empty one only the jobs that"
        f" are claimed in the course of it, and {FAILED} that failed. Both in SQLite, through the library."
    ]
    return section


def probe(store: Store, times: int) -> dict[str, float]:
    """The median time of each operation, milliseconds."""
    (newest,) = store.jobs(limit=1)

    def claim_and_finish() -> None:
        now = store.clock.now_ms()

        def claim(connection: Connection) -> list[Job]:
            return claims.claim(connection, now=now, worker="bench", lease_ms=300_000, limit=1)

        (job,) = store.write(claim).result()
        store.write(
            lambda connection: jobs.transition(
                connection, job, "done", now=now, actor="bench", reason="finished", result_json="null"
            )
        ).result()

    operations: dict[str, Callable[[], Any]] = {
        "claim and done, two commits": claim_and_finish,
        "list the newest 20": lambda: store.jobs(limit=20),
        "list 20 that failed": lambda: store.jobs(status="failed", limit=20),
        "show: job, events, effects, reviews": lambda: (
            store.events(store.job(newest.public_id)),
            store.effects(newest),
            store.reviews(newest),
        ),
        "show by the first half of an id": lambda: store.job(newest.public_id[:32]),
    }
    return {what: _median_ms(operation, times) for what, operation in operations.items()}


def _median_ms(operation: Callable[[], Any], times: int) -> float:
    took = []
    for _ in range(times):
        begin = time.perf_counter()
        operation()
        took.append((time.perf_counter() - begin) * 1000)
    return statistics.median(took)
