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
    steps = run.scale.steps[-1]

    def once(name: str) -> dict[str, float]:
        with run.place() as folder, collector() as taken, black_hole() as hole:
            endpoint = {OFF: None, ON: taken.url, HOLE: hole}[name]
            answer = in_process(OWN, "bench.telemetry_child:run", folder=folder, steps=steps, endpoint=endpoint)
            if name == ON and len(taken.spans) < steps:
                raise ChildFailed(f"{len(taken.spans)} spans of {steps} steps arrived")
        return {
            "ms_per_step": answer["seconds"] * 1000 / steps,
            "cpu_ms_per_step": answer["cpu"] * 1000 / steps,
            "commits_per_step": answer["commits"] / steps,
            "kilobytes_per_step": answer["bytes"] / 1000 / steps,
        }

    found = run.measure("telemetry", [OFF, ON, HOLE], once, section.failures)
    section.raw = raw(found)
    base = found.get(OFF)
    section.tables = [
        Table(
            "the whole worker, one agent, one AIMessage of 1 KB a step",
            ["traces", "ms a step", "of off", "CPU ms a step", "of off", "commits a step", "KB stored a step"],
            [
                [
                    name,
                    each["ms_per_step"].text(2),
                    f"{_share(each, base, 'ms_per_step'):.2f} ×" if base and name != OFF else "",
                    each["cpu_ms_per_step"].text(2),
                    f"{_share(each, base, 'cpu_ms_per_step'):.2f} ×" if base and name != OFF else "",
                    each["commits_per_step"].text(2),
                    each["kilobytes_per_step"].text(1),
                ]
                for name, each in found.items()
            ],
        )
    ]
    section.notes = [
        f"{steps:,} steps that do nothing but add a message, so a step takes as little as it can. The time is what"
        " the record says the job ran; a worker's end, which waits 1.5 s at most for what is not sent, is not counted."
        " CPU is that of all threads of the process, from the first step to the last: it wanders less than the disk."
        " The collector is not among them."
        " How much of off: the median of what each run gave, as its measurements stand side by side.",
    ]
    if base:
        for name in (ON, HOLE):
            if name in found:
                share = _share(found[name], base, "ms_per_step")
                wanted, got = f"≤ {ALLOWED} × without", f"{share:.2f} ×"
                section.targets.append(Target(f"A step with {name}", wanted, got, share <= ALLOWED))
    return section


def _share(each: Mapping[str, Figure], base: Mapping[str, Figure], what: str) -> float:
    """How many times as much as without traces, run by run."""
    return statistics.median(one / off for one, off in zip(each[what].values, base[what].values, strict=False))
