"""The documentation of traces names only what exists, and its example runs."""

from __future__ import annotations

import re
from pathlib import Path

from langgraph.graph import START, StateGraph

from everstep.observability import names

TRACING = (Path(__file__).parents[2] / "docs" / "tracing.md").read_text(encoding="utf-8")


def test_every_attribute_in_the_documentation_is_one_we_export():
    """Each attribute key in docs/tracing.md is in the one module of names."""
    told = set(re.findall(r"`((?:everstep|gen_ai|langfuse|session)\.[a-z_.]+)`", TRACING))
    exported = {value for value in vars(names).values() if isinstance(value, str)}
    assert len(told) > 15
    assert told <= exported


def test_the_example_runs():
    """The program in docs/tracing.md runs as it stands around a graph."""
    example = re.search(r"```python\n(.*?)```", TRACING, re.DOTALL)
    assert example is not None
    graph = StateGraph(dict).add_node("work", lambda state: {}).add_edge(START, "work").compile()
    scope = {"graph": graph, "feed": {}}
    exec(example[1], scope)
    assert scope["tokens"].snapshot().model_calls == 0
