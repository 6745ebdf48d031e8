"""Many agents stepping at once in one process, on SQLite, against LangGraph's stock asynchronous saver."""

from __future__ import annotations

from pathlib import Path

from bench import agent, syncs
from bench.figures import ratio
from bench.processes import OWN, ChildFailed
from bench.processes import run as in_process
from bench.run import Run, raw
from bench.tables import Section, Table, Target

NOTHING_KEPT = "InMemorySaver (nothing is kept)"
NAMES = {
    "no checkpointer": agent.NONE,
    NOTHING_KEPT: agent.MEMORY,
    "stock AsyncSqliteSaver": agent.ASYNC,
    "Everstep's StepSaver alone": agent.STEP,
    "Everstep worker": agent.WORKER,
}


def run(run: Run) -> Section:
    """Measure it."""
    agents, steps = run.scale.agents, run.scale.agent_steps
    section = Section("many_agents", f"{agents} agents at once, {steps} steps each")

    def once(name: str) -> dict[str, float]:
        with run.place() as folder:
            what = {"saver": NAMES[name], "folder": folder, "agents": agents, "steps": steps}
            answer = in_process(OWN, "bench.agent:run", **what)
        return {
            "steps_per_second": agents * steps / answer["seconds"],
            "commits_per_step": answer["commits"] / agents / steps,
            "megabytes": answer["bytes"] / 1e6,
        }

    found = run.measure("agents", list(NAMES), once, section.failures)
    section.raw = raw(found)
    syncs_a_step = {name: _syncs(run, NAMES[name], section) for name in found}
    stock = found.get("stock AsyncSqliteSaver")
    rows = [
        [
            name,
            figures["steps_per_second"].text(),
            ratio(figures["steps_per_second"].median, stock["steps_per_second"].median) if stock else "–",
            figures["commits_per_step"].text(3),
            "–" if syncs_a_step[name] is None else f"{syncs_a_step[name]:.3f}",
            figures["megabytes"].text(1),
        ]
        for name, figures in found.items()
    ]
    columns = ["saver", "steps a second", "of stock", "commits a step", "fsyncs a step", "MB stored"]
    section.tables = [Table("", columns, rows)]
    section.notes = [
        'One `AIMessage` of 1 KB a step through `add_messages`, `durability="sync"`, synchronous=FULL for all, one'
        " process and one event loop. The worker claims, fences, beats and settles as well. Commits are counted by"
        " SQLite's own trace and by Everstep's writer, syncs by strace in a run of their own, less those of"
        " all that comes before the first step; they include checkpoints of the WAL."
        " The first two rows keep nothing: the one is what LangGraph's own loop leaves any saver in one process at the"
        " most, the other what LangGraph's saver in memory makes of it."
    ]
    for name in ("Everstep's StepSaver alone", "Everstep worker"):
        if stock and name in found:
            times = found[name]["steps_per_second"].median / stock["steps_per_second"].median
            got = f"{times:.2f} ×"
            if NOTHING_KEPT in found:
                most = found[NOTHING_KEPT]["steps_per_second"].median / stock["steps_per_second"].median
                got += f" (LangGraph's saver in memory: {most:.2f} ×)"
            section.targets.append(Target(f"{agents} agents at once, {name}", "≥ 4 ×", got, times >= 4))
        if (counted := syncs_a_step.get(name)) is not None:
            section.targets.append(
                Target(f"fsyncs a step, {agents} agents, {name}", "< 0.1", f"{counted:.3f}", counted < 0.1)
            )
    return section


def _syncs(run: Run, saver: str, section: Section) -> float | None:
    agents, steps = run.scale.agents, run.scale.agent_steps
    if not (run.scale.counts_syncs and syncs.can_count()):
        return None
    run.progress(f"agents: counting the syncs of {saver}")
    counted = []
    for some in (steps, 0):
        with run.place() as folder, run.place() as elsewhere:
            what = {"saver": saver, "folder": folder, "agents": agents, "steps": some}
            try:
                counted.append(syncs.count("bench.agent:run", Path(elsewhere) / "syncs", **what))
            except ChildFailed as error:
                section.failures.append(f"syncs of {saver}: {error}")
                return None
    section.raw.setdefault("syncs", {})[saver] = counted[0] - counted[1]
    return (counted[0] - counted[1]) / agents / steps
