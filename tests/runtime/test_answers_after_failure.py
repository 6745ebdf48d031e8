"""A node that failed after it used an answer keeps the answer, and no later question gets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from everstep import Store, Worker
from everstep.checkpoints.jobs import Job
from tests.support.outside import happened, note

pytestmark = pytest.mark.both_databases


class State(TypedDict, total=False):
    world: str
    answers: list[str]


def ask_twice(state: State) -> State:
    """Two questions; between them the first try loses its connection."""
    first = interrupt({"question": "first"})
    if not happened(state["world"]):
        note(state["world"], "failed once")
        raise ConnectionResetError("the line went dead")
    second = interrupt({"question": "second"})
    return {"answers": [first, second]}


def test_a_used_answer_is_not_given_to_the_next_question(tmp_path: Path) -> None:
    """After an error between two questions, the second is asked, and each gets its own answer."""
    graph: Any = StateGraph(State).add_node(ask_twice).add_edge(START, "ask_twice").add_edge("ask_twice", END)
    with Store.open(f"sqlite:///{tmp_path / 'record.db'}") as store:

        def retry_at_once(event: str, job: Job) -> None:
            if event == "retry":
                store.redrive(job.public_id)

        def work() -> Job:
            Worker(store, {"ask": graph}, listener=retry_at_once).run(until_idle=True)
            (job,) = store.jobs()
            return job

        store.enqueue("ask", {"world": str(tmp_path / "world")})
        assert work().status == "review"
        store.answer(store.reviews()[0].public_id, "respond", value="one")
        assert work().status == "review"
        (open_,) = store.reviews()
        assert open_.value == {"question": "second"}
        assert len(happened(str(tmp_path / "world"))) == 1
        store.answer(open_.public_id, "respond", value="two")
        job = work()
        assert job.status == "done"
        assert json.loads(job.result_json or "")["answers"] == ["one", "two"]
