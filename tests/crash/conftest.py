"""What the tests of `crash-test` share: its fork servers, started once, and a way to test one of the graphs."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.crash_test.campaign import Plan, crash_test
from everstep.runtime.crash_test.fork_client import ForkServer
from everstep.runtime.crash_test.report import Report
from tests.support import crash_test_graphs

Test = Callable[..., Report]


@pytest.fixture(scope="session")
def servers() -> Generator[list[ForkServer]]:
    """Two fork servers with different hash seeds."""
    with ForkServer(1) as one, ForkServer(2) as other:
        yield [one, other]


@pytest.fixture
def crash_tested(tmp_path: Path, servers: list[ForkServer]) -> Test:
    """Crash-test one of the graphs; its place in the world is the run's own folder."""
    graphs: dict[str, Any] = {name: f"{crash_test_graphs.__name__}:{name}" for name in crash_test_graphs.NAMES}
    graphs["missing"] = "tests.support.crash_test_graphs:no_such_graph"
    config = tmp_path / "langgraph.json"
    config.write_text(json.dumps({"graphs": graphs}))

    def test(graph: str, *only: str, place: str = "{run}", **plan: Any) -> Report:
        return crash_test(Plan(config, graph, {"place": place}, seed=1, only=only, **plan), servers=servers)

    return test
