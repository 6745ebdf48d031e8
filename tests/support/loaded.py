"""Projects whose graphs are loaded: their files, a run of a graph, and what loading raised."""

from __future__ import annotations

import asyncio
import json
import operator
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from everstep.errors import GraphLoadFailed
from everstep.graphs.loader import GraphCatalogue

GRAPH = """
    import operator
    from typing import Annotated, TypedDict
    from langgraph.graph import START, StateGraph

    class State(TypedDict):
        steps: Annotated[list[str], operator.add]

    builder = StateGraph(State)
    builder.add_node("work", lambda state: {"steps": [__name__]})
    builder.add_edge(START, "work")
    graph = builder.compile()
"""


class State(TypedDict):
    steps: Annotated[list[str], operator.add]


def one_step(step: str = "work") -> StateGraph[Any, Any, Any, Any]:
    """A graph of one step, not yet compiled."""
    builder = StateGraph(State)
    builder.add_node("work", lambda state: {"steps": [step]})
    return builder.add_edge(START, "work")


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Write files, their text without its indentation."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))


def catalogue_of(folder: Path, graphs: dict[str, Any], files: dict[str, str], **fields: Any) -> GraphCatalogue:
    """A project of these graphs and files, with its configuration, opened."""
    write_files(folder, {**files, "langgraph.json": json.dumps({"graphs": graphs, **fields})})
    return GraphCatalogue.from_config(folder / "langgraph.json")


def steps_of(catalogue: GraphCatalogue, name: str, config: RunnableConfig | None = None) -> list[str]:
    """The steps of one run of a graph, through our own saver."""

    async def stepped() -> list[str]:
        saver = InMemorySaver()
        async with catalogue.open(name, config, checkpointer=saver) as graph:
            assert graph.checkpointer is saver
            thread: RunnableConfig = {"configurable": {"thread_id": "1"}}
            result = await graph.ainvoke({"steps": []}, thread, durability="sync")
            assert saver.get_tuple(thread) is not None
        return result["steps"]

    return asyncio.run(stepped())


def failure_of(catalogue: GraphCatalogue, name: str = "agent") -> GraphLoadFailed:
    """Why a graph could not be loaded."""
    with pytest.raises(GraphLoadFailed) as caught:
        steps_of(catalogue, name)
    return caught.value
