"""Enqueue: jobs put one after the other by one process, each durable before the next."""

from __future__ import annotations

from bench.contenders import FUSED, POSTGRES_LOOP, SQLITE_LOOP
from bench.figures import ratio
from bench.processes import ChildFailed
from bench.run import Run, raw
from bench.tables import Section, Table

TITLES = {"sqlite": "Enqueue, SQLite", "postgres": "Enqueue, PostgreSQL"}


def run(run: Run, database: str = "sqlite") -> Section:
    """Measure it."""
    section = Section("enqueue", TITLES[database])
    taking_part = {one.name: one for one in run.contenders(database) if one.enqueues}

    def once(name: str) -> dict[str, float]:
        one = taking_part[name]
        count = max(2, int(run.scale.jobs * one.share))
        with run.place(database) as place:
            answer = run.ask(one, "enqueue", place, count=count)
        if answer["left"] != count:
            raise ChildFailed(f"{answer['left']} jobs are there after {count} were enqueued")
        return {"per_second": answer["count"] / (answer["end"] - answer["begin"])}

    try:
        found = run.measure("enqueue", list(taking_part), once, section.failures)
    except ChildFailed as error:  # no server
        section.failures.append(str(error))
        return section
    section.raw = raw(found)
    ours = found.get(FUSED)
    rows = []
    for name, figures in found.items():
        own = name == FUSED
        shown = "Everstep (Store.enqueue)" if own else name
        times = "" if own or ours is None else ratio(ours["per_second"].median, figures["per_second"].median)
        rows.append([shown, figures["per_second"].text(), times])
    section.tables = [Table("jobs enqueued a second", ["system", "a second", "Everstep is"], rows)]
    loop = SQLITE_LOOP if database == "sqlite" else POSTGRES_LOOP
    section.notes = [
        "One process enqueues one job after the other; each is durable when the call returns. Everstep checks the"
        f" input, derives the job's key and writes its first event; the {loop.split(',')[0]} has a key and no event."
    ]
    return section
