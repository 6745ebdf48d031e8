"""Idle pick-up: how soon a waiting worker process runs a job another process enqueued, and what waiting costs."""

from __future__ import annotations

import time

from bench.contenders import FUSED, WIDE_WORKER, WORKER, Contender
from bench.figures import quantile, ratio
from bench.processes import ChildFailed
from bench.queue_child import pauses
from bench.run import Run, raw
from bench.tables import Section, Table, Target

TITLES = {"sqlite": "Idle pick-up, SQLite", "postgres": "Idle pick-up, PostgreSQL"}
WARM_UP = 2
LONGEST_PAUSE_S = 0.3


def once(run: Run, one: Contender, seed: int) -> dict[str, float]:
    """Latencies in milliseconds, and the processor's share while idle in percent."""
    count = run.scale.pick_ups + WARM_UP
    with run.place(one.database) as place:
        run.ask(one, "create", place)
        with run.child(one, "serve", place) as serving:
            serving.wait_until_ready()
            serving.go()
            with run.child(one, "send", place, pauses=pauses(count, LONGEST_PAUSE_S, seed)) as sending:
                sending.wait_until_ready()
                sending.go()
                sent = sending.result()
            _until_none_is_left(run, one, place)
            before, began = serving.cpu()
            time.sleep(run.scale.idle_s)
            after, ended = serving.cpu()
            ran = serving.stop()
    if set(ran) != set(sent):
        raise ChildFailed(f"{len(sent)} jobs were sent, {len(ran)} ran")
    waits = [max(0.0, (ran[str(n)] - sent[str(n)]) * 1000) for n in range(WARM_UP, count)]
    return {
        "p50": quantile(waits, 0.5),
        "p99": quantile(waits, 0.99),
        "idle_cpu": (after - before) / (ended - began) * 100,
    }


def _until_none_is_left(run: Run, one: Contender, place: str) -> None:
    end = time.monotonic() + 60
    while run.ask(one, "left", place):
        if time.monotonic() > end:
            raise ChildFailed("a job was not picked up within a minute")
        time.sleep(0.1)


def run(run: Run, database: str = "sqlite") -> Section:
    """Measure it."""
    section = Section("pick_up", TITLES[database])
    waiting = {one.name: one for one in run.contenders(database) if one.waits and one.name != WIDE_WORKER}
    seeds = iter(range(10_000))
    try:
        found = run.measure(
            "pick-up", list(waiting), lambda name: once(run, waiting[name], next(seeds)), section.failures
        )
    except ChildFailed as error:  # no server
        section.failures.append(str(error))
        return section
    section.raw = raw(found)
    ours = found.get(FUSED)
    rows = [
        [
            name,
            figures["p50"].text(2),
            figures["p99"].text(2),
            figures["idle_cpu"].text(2),
            ratio(ours["p50"].median, figures["p50"].median) if ours and name != FUSED else "",
        ]
        for name, figures in found.items()
    ]
    columns = ["system", "p50, ms", "p99, ms", "idle CPU, %", "the bare queue's p50 is (less is better)"]
    section.tables = [Table("from the commit of an enqueue to the job's body, in another process", columns, rows)]
    section.notes = [
        f"Jobs come one by one, {LONGEST_PAUSE_S * 200:.0f}–{LONGEST_PAUSE_S * 1000:.0f} ms apart at random."
        " Everstep's bare queue listens for wake-ups, claims, and calls a function, as the peers do; in its worker the"
        " body is the node of a LangGraph graph, so LangGraph's own start, the input's checkpoint and its commit lie"
        " before it. The"
        " hand-written SQLite loop looks every 5 ms; the PostgreSQL one listens. Peers wait as they do by default."
        " Systems without a worker of their own (persist-queue, litequeue) are not in this table."
    ]
    where = "SQLite" if database == "sqlite" else "PostgreSQL"
    for name, what, own in (
        (FUSED, f"Queue, pick-up on {where}", ""),
        (WORKER, f"Worker, pick-up on {where}", " (no target of its own)"),
    ):
        if name in found:
            p50, p99, cpu = (found[name][figure].median for figure in ("p50", "p99", "idle_cpu"))
            section.targets += [
                Target(f"{what}, p50{own}", "< 2 ms", f"{p50:.2f} ms", p50 < 2),
                Target(f"{what}, p99{own}", "< 10 ms", f"{p99:.2f} ms", p99 < 10),
                Target(f"{what}, idle CPU{own}", "< 1 %", f"{cpu:.2f} %", cpu < 1),
            ]
    return section
