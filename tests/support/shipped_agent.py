"""The shipped agent in this process, on threads of its own."""

from pathlib import Path
from typing import Any

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from everstep.graphs import repository_agent
from tests.support.repositories import Scripted


def job(remote: Path, **more: Any) -> Any:
    """A payload for the repository."""
    return {"repository": str(remote), "branch": "main", "operation": "tidy-whitespace", **more}


def agent(model: Scripted | None = None, **compile_with: Any) -> Any:
    """The agent with a checkpointer."""
    return repository_agent.build_graph(model).compile(checkpointer=InMemorySaver(), **compile_with)


def thread(name: str = "one") -> Any:
    """A thread of the agent."""
    return {"configurable": {"thread_id": name}}


def told(graph: Any, config: Any) -> list[ToolMessage]:
    """What the tools answered."""
    return [each for each in graph.get_state(config).values["messages"] if isinstance(each, ToolMessage)]
