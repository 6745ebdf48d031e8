"""Throughput: empty jobs from claim to done, by one and by two worker processes."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from bench.contenders import FUSED, FUSED_TEN, SQLITE_LOOP_TEN, SQLITE_ROWS, WIDE_WORKER, WORKER, Contender
from bench.figures import Figure, ratio
from bench.processes import ChildFailed
from bench.run import Run, raw
from bench.tables import Section, Table, Target

TITLES = {"sqlite": "Throughput of empty jobs, SQLite", "postgres": "Throughput of empty jobs, PostgreSQL"}
OURS = (FUSED, WORKER)


def once(run: Run, one: Contender, workers: int) -> dict[str, float]:
    """Jobs done a second; fails unless each job ran once and all are done."""
    count = max(2, int(run.scale.jobs * one.share))
    with run.place(one.database) as place:
        run.ask(one, "enqueue", place, count=count)
        with ExitStack() as open_:
            children = [open_.enter_context(run.child(one, "work", place)) for _ in range(workers)]
            for child in children:
                child.wait_until_ready()
            for child in children:
                child.go()
            answers = [child.result() for child in children]
    return {"per_second": count / took(answers, count), "jobs": count}


def took(answers: list[dict[str, Any]], count: int) -> float:
    """How long workers took for jobs, in seconds, from the first that began to the last that ended.

    Args:
        answers: What `bench.queue_child.work` said in each worker.
        count: How many jobs there were, with the numbers from 0.

    Raises:
        ChildFailed: A job did not run, ran twice or is not done.
    """
    left = min(answer["left"] for answer in answers)  # the last that looked saw the end
    ran = sorted(number for answer in answers for number in answer["ran"])
    if left or ran != list(range(count)):
        raise ChildFailed(f"of {count} jobs {left} are left; {len(ran)} ran, {len(set(ran))} of them different ones")
    return float(max(answer["end"] for answer in answers) - min(answer["begin"] for answer in answers))


def run(run: Run, database: str = "sqlite") -> Section:
    """Measure it."""
    section = Section("throughput", TITLES[database])
    taking_part = {one.name: one for one in run.contenders(database)}
    found: dict[int, dict[str, dict[str, Figure]]] = {}
    try:
        for workers in (1, 2):
            names = [name for name, one in taking_part.items() if one.workers >= workers]
            what = f"throughput, {workers} worker{'s' * (workers > 1)}"
            found[workers] = run.measure(
                what, names, lambda name, n=workers: once(run, taking_part[name], n), section.failures
            )
    except ChildFailed as error:  # no server
        section.failures.append(str(error))
        return section
    section.raw = {f"{workers} workers": raw(each) for workers, each in found.items()}
    rates = {workers: {n: f["per_second"].median for n, f in each.items()} for workers, each in found.items()}
    rows = []
    for name, one in taking_part.items():
        if name not in rates[1]:
            continue
        two = found[2][name]["per_second"].text() if name in rates[2] else "not made for it" * (one.workers < 2) or "–"
        times = [
            ratio(rates[1][own], rates[1][name]) if own in rates[1] and not name.startswith("Everstep") else ""
            for own in OURS
        ]
        rows.append([name, found[1][name]["per_second"].text(), two, *times, one.keeps])
    columns = ["system", "1 worker", "2 workers", "Everstep's queue is", "Everstep's worker is", "keeps a claimed job"]
    section.tables = [Table("jobs done a second", columns, rows)]
    section.notes = [
        "“Everstep queue” is claim and transition alone, through the `Store`; “Everstep worker” is all of it: every job"
        " is a run of a LangGraph graph with one node, whose input and result are checkpointed, 4 at once unless it"
        " says otherwise. The ratios compare one worker process with one worker process: the queue (done and next claim"
        " in one commit) and the worker (4 at once) with that row. No peer runs a graph or keeps checkpoints, and the"
        " loops have no fence, no events and no heartbeat."
    ]
    if SQLITE_ROWS in rates[1]:
        section.notes.append(
            "The loop with Everstep's rows writes what the bare queue writes, events and indexes too, with no code"
            " around it: what a queue of these rows can do at most, one job a commit."
        )
    section.targets = _targets(database, rates[1])
    return section


def _targets(database: str, rates: dict[str, float]) -> list[Target]:
    targets: list[Target] = []

    def at_least(what: str, ours: str, theirs: str, times: float) -> None:
        if ours in rates and theirs in rates:
            got = rates[ours] / rates[theirs]
            targets.append(Target(what, f"≥ {times:g} ×", ratio(rates[ours], rates[theirs]), got >= times))

    if database == "sqlite":
        at_least("Queue, single claims, against huey", FUSED, "huey", 1)
        at_least("Queue, 10 a commit, against the hand-written batch loop", FUSED_TEN, SQLITE_LOOP_TEN, 0.5)
        at_least("Queue on SQLite against DBOS", FUSED, "DBOS", 8)
        at_least("Worker on SQLite against DBOS (no target of its own)", WIDE_WORKER, "DBOS", 1)
    else:
        for peer in ("procrastinate", "DBOS"):
            at_least(f"Queue on PostgreSQL against {peer}", FUSED, peer, 1)
            at_least(f"Worker on PostgreSQL against {peer} (no target of its own)", WIDE_WORKER, peer, 1)
        at_least("Queue on PostgreSQL, 10 a commit, against pgqueuer", FUSED_TEN, "pgqueuer", 0.95)
    return targets
