"""A graph that does a little of all that is measured, and what keeps what is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk

from everstep import effect
from everstep.observability.measures import Measures
from everstep.observability.metric_names import Metric
from tests.support.jobs import Log, chain
from tests.support.models import MeteredModel

ROOT = Path(__file__).parents[2]


class StreamingModel(MeteredModel):
    """Says `yes` in two chunks, then what it used and what it cost."""

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        received, produced = self.tokens or (0, 0)
        usage = {"input_tokens": received, "output_tokens": produced, "total_tokens": received + produced}
        for text in ("ye", "s"):
            chunk = ChatGenerationChunk(message=AIMessageChunk(text))
            if run_manager is not None:
                run_manager.on_llm_new_token(text, chunk=chunk)
            yield chunk
        yield ChatGenerationChunk(
            message=AIMessageChunk("", usage_metadata=usage, response_metadata=self.told)  # type: ignore[arg-type]
        )


@effect("world.act")
def act(name: str) -> str:
    """An effect that touches nothing."""
    return name


def plain(_state: Log) -> Log:
    """A node with an effect."""
    return {"log": [act("x")]}


async def talking(_state: Log) -> Log:
    """A node with a model call that streams."""
    text = ""
    async for chunk in StreamingModel(told={"cost": 0.25}).astream("hi"):
        text += str(chunk.content)
    return {"log": [text]}


def agent() -> Any:
    """Two nodes: an effect, and a model call."""
    return chain(plain, talking)


def write(folder: Path) -> dict[str, str]:
    """Write a configuration with the graph `agent` into the folder.

    Returns:
        The environment in which a process can load it.
    """
    (folder / "measured.py").write_text("from tests.support.measured_graphs import agent\n\ngraph = agent()\n")
    (folder / "langgraph.json").write_text(
        json.dumps({"graphs": {"agent": "./measured.py:graph"}, "dependencies": ["."]})
    )
    return {"PYTHONPATH": str(ROOT)}


class Kept(Measures):
    """Keeps what is measured, each observation."""

    is_on = True

    def __init__(self) -> None:
        self.all: list[tuple[Metric, float, tuple[str, ...]]] = []
        self.closed = False

    def add(self, metric: Metric, value: float = 1.0, *labels: str) -> None:
        """Keep one observation."""
        self.all.append((metric, value, labels))

    def close(self) -> None:
        """Note that it is over."""
        self.closed = True

    def of(self, metric: Metric) -> list[tuple[float, tuple[str, ...]]]:
        """What was measured of one metric: values with labels, in order."""
        return [(value, labels) for found, value, labels in self.all if found is metric]
