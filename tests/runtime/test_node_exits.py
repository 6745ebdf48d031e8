"""Nodes that try to end the process: in a thread they only fail; on the event loop they cost their own job."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import interrupt

from everstep import Store, Worker
from everstep.errors import SecretInPayload
from tests.cli.folder import Folder
from tests.support.jobs import Log, chain

ASYNC_EXIT = """
import sys
from typing import TypedDict
from langgraph.graph import START, StateGraph

class State(TypedDict, total=False):
    n: int

async def leave(state):
    sys.exit(3)

graph = StateGraph(State).add_node("leave", leave).add_edge(START, "leave")
"""


def test_sys_exit_in_a_sync_node_is_an_error_of_its_job(tmp_path: Path) -> None:
    """The job goes to review with the reason, the worker lives, and the job beside it is done."""

    def leave(state: Log) -> Any:
        sys.exit("enough")

    graphs = {"leave": chain(leave), "stay": chain(lambda state: {"log": ["stayed"]})}
    with Store.open(f"sqlite:///{tmp_path / 'record.db'}") as store:
        for graph in graphs:
            store.enqueue(graph, {"log": []})
        Worker(store, graphs).run(until_idle=True)
        jobs = {job.graph: job for job in store.jobs()}
    assert jobs["stay"].status == "done"
    assert jobs["leave"].status == "review"
    assert json.loads(jobs["leave"].error_json or "")["code"] == "node_exited"


def test_sys_exit_in_an_async_node_counts_against_its_job(tmp_path: Path) -> None:
    """The worker it ends says so and exits 1; the next one runs the job apart, lives, and has it failed in the end."""
    (tmp_path / "agent.py").write_text(ASYNC_EXIT)
    (tmp_path / "langgraph.json").write_text('{"graphs": {"leave": "./agent.py:graph"}, "dependencies": ["."]}')
    with Store.open(f"sqlite:///{tmp_path / 'everstep.db'}") as store:
        job, _ = store.enqueue("leave", {"n": 1})
        ran = Folder(tmp_path).run("worker", "--until-idle")
        assert ran.code == 1
        assert "worker_ended" in ran.err
        assert "Traceback" not in ran.err
        assert Folder(tmp_path).run("worker", "--until-idle").code == 0
        job = store.job(job.public_id)
        error = json.loads(job.error_json or "")
        assert (job.status, job.failures, error["code"], error["exit_code"]) == ("failed", 0, "worker_died", 3)
        place = f"{tmp_path / 'agent.py'}:10 leave"
        assert error["message"].startswith(f"its process was ended by SystemExit: 3 ({place}) at step 0, node leave (")
        assert error["next_step"] == f"raise an ordinary error there instead; then: everstep retry {job.public_id}"


def test_an_answer_with_a_credential_is_refused(tmp_path: Path) -> None:
    """A secret-looking key in the value of an answer does not reach the record."""
    graph = chain(lambda state: {"log": [interrupt("what?")]})
    with Store.open(f"sqlite:///{tmp_path / 'record.db'}") as store:
        store.enqueue("ask", {"log": []})
        Worker(store, {"ask": graph}).run(until_idle=True)
        (review,) = store.reviews()
        with pytest.raises(SecretInPayload, match=r"\$\.api_key"):
            store.answer(review.public_id, "respond", value={"api_key": "x"})
        assert store.review(review.public_id).status == "open"
