"""A task that failed, or was stopped because another did, has not finished, whatever it had written by then."""

from __future__ import annotations

import json

import pytest
from langgraph.graph import END, START, StateGraph

from everstep.checkpoints.store import Store
from tests.support.jobs import Log, run

pytestmark = pytest.mark.both_databases


def test_a_node_whose_routing_failed_is_not_taken_for_finished(store: Store) -> None:
    """When the function of a conditional edge fails once, the retry routes again; nothing after it is skipped."""
    failures = [ConnectionResetError("the router's model was away")]

    def route(_state: Log) -> str:
        if failures:
            raise failures.pop()
        return "after"

    builder = StateGraph(Log)
    builder.add_node("before", lambda state: {"log": ["before"]})
    builder.add_node("after", lambda state: {"log": ["after"]})
    builder.add_edge(START, "before")
    builder.add_conditional_edges("before", route, ["after"])
    builder.add_edge("after", END)
    job = run(store, builder.compile())
    assert job.status == "done"
    assert json.loads(job.result_json or "")["log"] == ["before", "after"]
