"""Ready jobs of graphs a worker does not have: it says so, once for each graph, and is idle all the same."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.graphs.loader import GraphCatalogue
from everstep.runtime.unserved import Unserved
from tests.cli.folder import Folder
from tests.support.jobs import chain, run
from tests.support.record import claim

GRAPH = chain(lambda _state: {"log": ["done"]})


@pytest.fixture
def unserved(store: Store) -> Unserved:
    """What a worker that has one graph looks with."""
    return Unserved(store, GraphCatalogue.from_graphs({"graph": GRAPH}))


def test_a_worker_tells_of_jobs_it_cannot_run(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """One line for each unknown graph, with its name, how many jobs wait and what to do; the worker is idle then."""
    for graph in ("mail", "mail", "sms"):
        store.enqueue(graph, {"n": len(store.jobs())})
    assert run(store, GRAPH).status == "done"
    mail, sms = (record.getMessage() for record in caplog.records)
    assert mail.startswith("2 jobs wait for the graph 'mail', which this worker was not given")
    assert sms.startswith("1 job waits for the graph 'sms'")
    assert "--config" in mail
    assert [job.status for job in store.jobs()].count("pending") == 3


async def test_each_graph_is_told_once(store: Store, unserved: Unserved, caplog: pytest.LogCaptureFixture) -> None:
    """However often it looks and however many jobs come, a graph is told once; a new one is told when it is seen."""
    for number in range(3):
        store.enqueue("mail", {"n": number})
        await unserved.tell(at_once=True)
    assert len(caplog.records) == 1
    store.enqueue("sms", {})
    await unserved.tell(at_once=False)  # it has just looked
    assert len(caplog.records) == 1
    await unserved.tell(at_once=True)
    assert ["sms" in record.getMessage() for record in caplog.records] == [False, True]


async def test_only_jobs_that_are_ready_are_told(
    store: Store, clock: ManualClock, unserved: Unserved, caplog: pytest.LogCaptureFixture
) -> None:
    """A job another worker runs is no concern; one whose worker is gone is."""
    store.enqueue("mail", {})
    claim(store, "another", lease_ms=1000)
    await unserved.tell(at_once=True)
    assert caplog.records == []
    clock.advance(1000)
    await unserved.tell(at_once=True)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_the_command_names_the_configuration_that_lacks_the_graph(tmp_path: Path) -> None:
    """`worker --until-idle` exits 0 with one warning on stderr that names its langgraph.json; stdout stays JSON."""
    (tmp_path / "agent.py").write_text("from langgraph.graph import StateGraph\ngraph = StateGraph(dict)\n")
    (tmp_path / "langgraph.json").write_text(json.dumps({"graphs": {"known": "./agent.py:graph"}}))
    with Store.open(f"sqlite:///{tmp_path / 'everstep.db'}") as store:
        store.enqueue("mali", {})
    ran = Folder(tmp_path).run("worker", "--until-idle", "--json")
    assert (ran.code, ran.out) == (0, "")
    (warning,) = (line for line in ran.err.splitlines() if "[warning]" in line)
    assert f"1 job waits for the graph 'mali', which {tmp_path / 'langgraph.json'} does not name; add it" in warning
