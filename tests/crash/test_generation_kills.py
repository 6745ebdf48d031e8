"""`everstep crash-test` on the shipped graph for paid generations, at the simulated provider."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.runtime.crash_test.campaign import Plan, crash_test
from everstep.runtime.crash_test.fork_client import ForkServer
from everstep.runtime.crash_test.money import differences
from examples.provider_simulator.plans import Plan as Treatment
from examples.provider_simulator.server import Simulator, simulating
from tests.support.generating import INPUT, PRICES

SAMPLE = 4
"""Points that are drawn, beside those around the provider and the artefact; `SAMPLE = None` tests every one."""
AROUND = ("effect.called", "provider.", "writes.after_put")
DESCRIPTION = Path(__file__).parents[2] / "examples" / "provider_simulator" / "provider.toml"


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    """A provider that can be asked by our key, whose tasks end with the second question."""
    with simulating(idempotent=False) as simulator:
        simulator.book.default = Treatment(polls=1)
        yield simulator


@pytest.fixture
def config(tmp_path: Path, simulator: Simulator) -> Path:
    """The `langgraph.json` of a folder with the graph and the provider."""
    (tmp_path / "prices.toml").write_text(PRICES)
    (tmp_path / "everstep.toml").write_text(
        f'[providers.sim]\nuse = "http"\nfile = "{DESCRIPTION}"\nbase_url = "{simulator.url}"\n'
        'prices = "prices.toml"\ntimeout = 2.0\nsettle = 0.0\npoll_first = 0.05\npoll_most = 0.2\n'
    )
    file = tmp_path / "langgraph.json"
    environment = {"EVERSTEP_ARTEFACTS": str(tmp_path / "artefacts")}
    graphs = {"generation": "everstep.graphs.generation:graph"}
    file.write_text(json.dumps({"graphs": graphs, "env": environment}))
    return file


@pytest.mark.parametrize("part", ["around", "drawn"])
def test_wherever_it_is_killed_it_is_paid_and_made_once(
    config: Path, simulator: Simulator, servers: list[ForkServer], part: str
) -> None:
    """The provider makes one task a run, one price is paid, and nothing outside of effects is touched."""
    some = {"only": AROUND} if part == "around" else {"sample": SAMPLE}
    plan = Plan(config, "generation", INPUT, seed=7, credit=("EUR",), seconds=120.0, **some)
    report = crash_test(plan, servers=servers)
    assert [(one.point.label, one.problems) for one in report.results if one.outcome != "held"] == []
    assert report.held
    effects = {effect.name: (effect.state, effect.calls, effect.settled_by) for effect in report.reference.run.effects}
    once = ("confirmed", 1, "call")
    assert effects == {"provider.submit": once, "artefact.keep": once}
    assert report.reference.run.paid == {"EUR (smallest units)": 125, "succeeded tasks at sim": 1}
    assert set(simulator.book.made.values()) == {1}
    assert len(simulator.book.made) == len(report.results) + 2  # and in two runs nobody is killed


def test_what_was_paid_twice_is_told() -> None:
    """In words, against the run in which nobody was killed."""
    once = {"EUR (smallest units)": 125, "succeeded tasks at sim": 1}
    assert differences(once, once) == []
    assert differences(once, {"EUR (smallest units)": 250, "pending tasks at sim": 1}) == [
        "paid: 250 EUR (smallest units) instead of 125",
        "paid: 1 pending tasks at sim instead of 0",
        "paid: 0 succeeded tasks at sim instead of 1",
    ]
