"""The shape advisor: which shape which task gets, what is refused, and that what it says to use and to watch exists."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.cli.main import _register, everstep
from everstep.cli.shape import SHAPES
from everstep.graphs.policies import read_policies
from everstep.observability.metric_names import METRICS
from everstep.runtime.shapes import OBSERVED, USES, Cost, Shape, Task, Trigger, Waiter, advise

DOCS = Path(__file__).parents[2] / "docs"
NIGHT = Task(3600, 40, "nobody", "cron", "high", overlap="resume")
CHAT = Task(20, 5, "person", "request", "low")
tasks = st.builds(
    Task,
    duration_s=st.sampled_from([0.1, 3, 3.1, 29, 30, 31, 300, 900, 901, 86_400]),
    steps=st.sampled_from([1, 9, 10, 1000]),
    waiter=st.sampled_from(get_args(Waiter)),
    trigger=st.sampled_from(get_args(Trigger)),
    restart_cost=st.sampled_from(get_args(Cost)),
    shape=st.none() | st.sampled_from(get_args(Shape)),
    dead_letters=st.booleans(),
    overlap=st.sampled_from([None, "skip", "queue", "resume"]),
    every_s=st.none() | st.sampled_from([60.0, 86_400.0]),
)


@pytest.mark.parametrize(
    ("task", "shape"),
    [
        (Task(2, 1, "person", "request", "low"), "request-response"),
        (Task(20, 3, "client", "request", "low"), "request-response"),
        (CHAT, "streaming"),
        (Task(300, 20, "person", "request", "high"), "streaming"),
        (Task(7200, 40, "person", "request", "high"), "durable"),
        (Task(300, 40, "nobody", "request", "high"), "durable"),
        (Task(300, 40, "client", "request", "high"), "durable"),
        (Task(60, 3, "nobody", "request", "low"), "queue"),
        (Task(60, 3, "client", "request", "low"), "queue"),
        (Task(60, 3, "nobody", "event", "low"), "event-driven"),
        (NIGHT, "scheduled"),
    ],
)
def test_a_task_gets_its_shape(task: Task, shape: str) -> None:
    """Who waits, for how long, and what starts it decide; nothing of these is refused."""
    advice = advise(task)
    assert (advice.shape, advice.refused) == (shape, ())


@pytest.mark.parametrize(
    ("task", "told"),
    [
        (Task(300, 1, "client", "request", "low", shape="request-response"), "5 min as request-response"),
        (Task(20, 1, "nobody", "request", "low", shape="streaming"), "nobody waits"),
        (Task(3600, 9, "person", "request", "low", shape="streaming"), "nobody watches so long"),
        (Task(60, 1, "nobody", "request", "low", dead_letters=False), "a queue without dead letters"),
        (Task(60, 1, "nobody", "event", "low", dead_letters=False), "events without dead letters"),
        (replace(NIGHT, overlap=None), "a cron without a rule of overlap"),
        (replace(NIGHT, overlap="queue", every_s=600), "the queue grows for ever"),
        (replace(NIGHT, overlap="skip"), "say resume"),
        (replace(CHAT, shape="scheduled", overlap="skip"), "though a request starts it"),
        (replace(NIGHT, shape="durable"), "though the clock starts it"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_must_not_be_built_is_refused(task: Task, told: str) -> None:
    """Each with what would go wrong."""
    assert any(told in reason for reason in advise(task).refused)


@settings(max_examples=300, derandomize=True)
@given(tasks)
def test_the_advice_itself_is_never_refused(task: Task) -> None:
    """Whoever takes the shape that is advised, looks at dead letters and says how runs overlap is refused nothing."""
    shape = advise(task).shape
    overlap: Any = "resume" if shape == "scheduled" else None
    followed = replace(task, shape=shape, dead_letters=True, overlap=overlap)
    assert advise(followed).shape == shape
    assert advise(followed).refused == ()


def test_every_shape_has_something_to_watch_that_exists() -> None:
    """Each shape names metrics of the registry, and tells which it would be worst to miss."""
    assert set(OBSERVED) == set(USES) == set(SHAPES) == set(get_args(Shape))
    for observed in OBSERVED.values():
        assert len(observed) >= 3
        assert all(metric in METRICS for metric, _ in observed)


def test_what_is_to_be_used_exists(tmp_path: Path) -> None:
    """Each command is one of ours with options it has, and each section of everstep.toml is one that is read."""
    _register()
    for lines in USES.values():
        for command in (line for line in lines if line.startswith("everstep ")):
            name, *options = command.split()[1:]
            known = {option for parameter in everstep.commands[name].params for option in parameter.opts}
            assert {option for option in options if option.startswith("--")} <= known
        toml = [line for line in lines if line.startswith("[") or (" = " in line and "client" not in line)]
        (tmp_path / "everstep.toml").write_text("\n".join(toml))
        assert read_policies(tmp_path / "langgraph.json", ["GRAPH"])


def test_the_page_says_what_the_advisor_says() -> None:
    """docs/shapes.md has a row for each shape, with the metrics that are to be watched."""
    text = (DOCS / "shapes.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \|.*\| ([^|]*everstep_[^|]*|[^|]*gen_ai_[^|]*) \|$", text, re.MULTILINE))
    assert set(rows) == set(get_args(Shape))
    for shape, observed in OBSERVED.items():
        assert re.findall(r"`(\w+)`", rows[shape]) == [metric.prometheus for metric, _ in observed]
