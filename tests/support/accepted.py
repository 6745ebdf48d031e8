"""An agent whose work is verified: what it does in each round, jobs that must pass, and what came of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph.message import add_messages

from everstep.checkpoints.jobs import Job
from everstep.checkpoints.policy import Acceptance, JobPolicy
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.store import Store
from tests.support.jobs import chain


class Talk(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    folder: str


def write(**files: str) -> Callable[[Path], None]:
    """Work that leaves these files in the folder; `__` in a name stands for a slash, `_py` at its end for `.py`."""

    def work(folder: Path) -> None:
        for name, content in files.items():
            path = folder / name.replace("__", "/").replace("_py", ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return work


NOTHING = write()
FAILS = "sh -c 'echo run >> runs; echo still broken; exit 3'"


class Agent:
    """A graph that does the next piece of work each time it is fed a message, and says that it is done."""

    def __init__(self, *rounds: Callable[[Path], None]) -> None:
        self.rounds = rounds
        self.told: list[list[str]] = []
        """What it had been told, run by run."""
        self.graph = chain(self._work, schema=Talk)

    def _work(self, state: Talk) -> Talk:
        said = [message.content for message in state["messages"] if message.type == "human"]
        self.told.append(said)
        self.rounds[min(len(said), len(self.rounds)) - 1](Path(state["folder"]))
        return {"messages": [{"role": "assistant", "content": f"done, {len(said)}"}]}


def enqueue(store: Store, folder: Path, *verify: str, workdir: str = "{folder}", **policy: Any) -> Job:
    """A job of `graph` that must pass these commands in the folder."""
    given = {"messages": [{"role": "user", "content": "build it"}], "folder": str(folder)}
    acceptance = Acceptance(verify=verify, workdir=workdir, **policy)
    return store.enqueue("graph", given, policy=JobPolicy(acceptance=acceptance)).job


def outcomes(store: Store, job: Job) -> list[str]:
    """What came of its acceptance, each time."""
    return [row["detail"]["outcome"] for row in store.evidence(job) if row["kind"] == "acceptance"]


def asked(store: Store, job: Job) -> Review:
    """The one open review of the job."""
    (review,) = [found for found in store.reviews(job) if found.status == "open"]
    return review


def result(store: Store, job: Job) -> Any:
    """What the job ended with."""
    job = store.job(job.public_id)
    assert job.status == "done", f"{job.status}: {job.error_json}"
    return json.loads(job.result_json or "")
