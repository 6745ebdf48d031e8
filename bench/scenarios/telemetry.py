"""What traces cost a step: the same worker and agent with traces off, on, and sent to where nobody answers."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from bench.collectors import black_hole, collector
from bench.figures import Figure
from bench.processes import OWN, ChildFailed
from bench.processes import run as in_process
from bench.run import Run, raw
from bench.tables import Section, Table, Target

OFF, ON, HOLE = "traces off", "traces on", "an endpoint that never answers"
ALLOWED = 1.05
"""How much longer a step may take."""


def run(run: Run) -> Section:
    """Measure it."""
    section = Section("telemetry", "What traces cost a step")
    steps, turns = run.scale.steps[-1], run.scale.turns
    took: dict[str, list[dict[str, float]]] = {OFF: [], ON: [], HOLE: []}
    for number in range(run.scale.runs):
        run.progress(f"telemetry: {turns} turns of each ({number + 1}/{run.scale.runs})")
        try:
            for name, every in _once(run, steps, turns).items():
                took[name] += every
        except ChildFailed as error:
            section.failures.append(f"telemetry: {error}")
            return section
    found = {
        name: {what: Figure(tuple(one[what] for one in every)) for what in every[0]} for name, every in took.items()
    }
    section.raw = raw(found)
    base = found[OFF]
    section.tables = [
        Table(
            "the whole worker, one agent, one AIMessage of 1 KB a step",
            ["traces", "ms a step", "of off", "CPU ms a step", "of off", "commits a step", "KB stored a step"],
            [
                [
                    name,
                    each["ms_per_step"].text(2),
                    "" if name == OFF else _range(_shares(each, base, "ms_per_step")),
                    each["cpu_ms_per_step"].text(2),
                    "" if name == OFF else _range(_shares(each, base, "cpu_ms_per_step")),
                    each["commits_per_step"].text(2),
                    each["kilobytes_per_step"].text(1),
                ]
                for name, each in found.items()
            ],
        )
    ]
    section.notes = [
        f"{steps:,} steps that do nothing but add a message, so a step takes as little as it can; in one process, by"
        f" turns, {turns * run.scale.runs} of each. The time is what"
        " the record says the job ran; a worker's end, which waits 1.5 s at most for what is not sent, is not counted."
        " CPU is that of all threads of the process, from the first step to the last."
        " The collector is not among them."
        " How much of off: the median of the turns, each beside its neighbour without traces, and what half of them"
        " lie between.",
    ]
    for name in (ON, HOLE):
        share = statistics.median(_shares(found[name], base, "ms_per_step"))
        wanted, got = f"≤ {ALLOWED} × without", f"{share:.3f} ×"
        section.targets.append(Target(f"A step with {name}", wanted, got, share <= ALLOWED))
    return section


def _once(run: Run, steps: int, turns: int) -> dict[str, list[dict[str, float]]]:
    with run.place() as folder, collector() as taken, black_hole() as hole:
        endpoints = {OFF: None, ON: taken.url, HOLE: hole}
        told = {"folder": folder, "steps": steps, "turns": turns, "endpoints": endpoints}
        found: dict[str, list[dict[str, float]]] = in_process(OWN, "bench.telemetry_child:run", **told)
        if len(taken.spans) < steps * (turns + 1):
            raise ChildFailed(f"{len(taken.spans)} spans of {steps * (turns + 1)} steps arrived")
    return found


def _shares(each: Mapping[str, Figure], base: Mapping[str, Figure], what: str) -> list[float]:
    """How many times as much as without traces, turn by turn."""
    return [one / off for one, off in zip(each[what].values, base[what].values, strict=True)]


def _range(shares: list[float]) -> str:
    quarters = statistics.quantiles(shares, n=4) if len(shares) > 1 else shares * 3
    return f"{statistics.median(shares):.3f} × ({quarters[0]:.2f}–{quarters[2]:.2f})"
