"""A journal of node starts, for the demo: written beside the record, so that it can contradict it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.graph import StateGraph


def journalled(builder: StateGraph[Any, Any, Any, Any], path: str) -> StateGraph[Any, Any, Any, Any]:
    """The same graph; each start of a node appends a line to the file at `path`: process, thread, step and node."""

    def starting(name: str) -> RunnableLambda[Any, Any]:
        def note(state: Any, config: RunnableConfig) -> Any:
            metadata, configurable = config.get("metadata", {}), config.get("configurable", {})
            line = {
                "pid": os.getpid(),
                "thread": configurable.get("thread_id"),
                "step": metadata.get("langgraph_step"),
                "node": name,
            }
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            return state

        return RunnableLambda(note, name=f"journal {name}")

    for name, node in builder.nodes.items():
        runnable: Any = node.runnable
        builder.nodes[name] = replace(node, runnable=starting(name) | runnable)
    return builder
