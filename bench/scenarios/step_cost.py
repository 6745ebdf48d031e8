"""What a step costs as the conversation grows: one agent, plain `add_messages`, against the stock savers and none."""

from __future__ import annotations

from bench import agent
from bench.figures import Figure, ratio
from bench.processes import OWN
from bench.processes import run as in_process
from bench.run import Run, raw
from bench.tables import Section, Table, Target

EVERSTEP = "Everstep's StepSaver alone"
STOCK = "stock SqliteSaver"
WITHOUT = "no checkpointer"
NAMES = {
    WITHOUT: agent.NONE,
    STOCK: agent.SYNC,
    "stock AsyncSqliteSaver": agent.ASYNC,
    EVERSTEP: agent.STEP,
    "Everstep worker": agent.WORKER,
}


def run(run: Run) -> Section:
    """Measure it."""
    section = Section("step_cost", "What a step costs")
    lengths = run.scale.steps
    found: dict[int, dict[str, dict[str, Figure]]] = {}
    for steps in lengths:

        def once(name: str, steps: int = steps) -> dict[str, float]:
            with run.place() as folder:
                what = {"saver": NAMES[name], "folder": folder, "agents": 1, "steps": steps}
                answer = in_process(OWN, "bench.agent:run", **what)
            return {
                "ms_per_step": answer["seconds"] * 1000 / steps,
                "commits_per_step": answer["commits"] / steps,
                "megabytes": answer["bytes"] / 1e6,
            }

        found[steps] = run.measure(f"{steps} steps", list(NAMES), once, section.failures)
    section.raw = {f"{steps} steps": raw(each) for steps, each in found.items()}
    rows = []
    for name in NAMES:
        cells = [name]
        for each in found.values():
            figures = each.get(name)
            if figures is None:
                cells += ["–"] * 4
                continue
            stored = name != WITHOUT
            stock = each.get(STOCK)
            cells += [
                figures["ms_per_step"].text(2),
                ratio(figures["ms_per_step"].median, stock["ms_per_step"].median) if stock and name != STOCK else "",
                figures["commits_per_step"].text(2) if stored else "",
                figures["megabytes"].text(1) if stored else "",
            ]
        rows.append(cells)
    columns = ["saver"]
    for steps in lengths:
        columns += [f"ms a step, N={steps:,}", "of stock", "commits a step", "MB stored"]
    section.tables = [Table("one agent, one AIMessage of 1 KB a step", columns, rows)]
    section.notes = [
        'Plain `add_messages`, `durability="sync"`, synchronous=FULL. `SqliteSaver` runs synchronously, all others on'
        " an event loop. Stock savers store the whole list in every checkpoint, and what each task wrote; Everstep"
        " stores the list's growth, deflated. The messages are texts that deflate to 54 %, as this documentation does."
    ]
    longest = found[lengths[-1]]
    if EVERSTEP in longest and STOCK in longest:
        faster = longest[STOCK]["ms_per_step"].median / longest[EVERSTEP]["ms_per_step"].median
        smaller = longest[STOCK]["megabytes"].median / max(longest[EVERSTEP]["megabytes"].median, 1e-6)
        commits = longest[EVERSTEP]["commits_per_step"].median
        at = f"at {lengths[-1]:,} steps"
        section.targets = [
            Target(f"A step against stock SqliteSaver, {at}", "≥ 5 × faster", f"{faster:.2f} ×", faster >= 5),
            Target(f"Bytes against stock SqliteSaver, {at}", "≥ 300 × smaller", f"{smaller:.2f} ×", smaller >= 300),
            Target("Commits a superstep", "1", f"{commits:.2f}", commits <= 1.05),
        ]
    return section
