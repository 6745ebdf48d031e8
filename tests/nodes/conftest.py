"""What tests of nodes share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from everstep.nodes.providers.interface import Provider
from examples.provider_simulator.server import Simulator, simulating
from tests.support.simulated import API_KEY, simulated


@pytest.fixture
def world() -> list[Any]:
    """What was done to the world outside, which no checkpoint can undo."""
    return []


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
    """A provider that wants a key, which the environment has."""
    monkeypatch.setenv("SIM_KEY", API_KEY)
    monkeypatch.setenv("OPENAI_API_KEY", API_KEY)
    with simulating(api_key=API_KEY) as simulator:
        yield simulator


@pytest.fixture
def provider(simulator: Simulator) -> Provider:
    """It in its own style."""
    return simulated(simulator.url, api_key_env="SIM_KEY").get("sim")
