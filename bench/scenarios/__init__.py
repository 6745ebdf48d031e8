"""The scenarios: a module each, with a function `run(run) -> Section`."""

from __future__ import annotations

from importlib import import_module

from bench.run import Run
from bench.tables import Section

NAMES = (
    "enqueue throughput pick_up many_agents step_cost postgres_enqueue postgres_throughput postgres_pick_up"
    " telemetry isolate start_up large_record server"
).split()
_MODULE = {"postgres_enqueue": "enqueue", "postgres_throughput": "throughput", "postgres_pick_up": "pick_up"}


def run_scenario(name: str, run: Run) -> Section:
    """Run one of `NAMES`."""
    module = import_module(f"bench.scenarios.{_MODULE.get(name, name)}")
    if name in _MODULE:
        section: Section = module.run(run, "postgres")
    else:
        section = module.run(run)
    section.name = name
    return section
