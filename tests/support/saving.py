"""Checkpoints put by hand, under a claim or none, and LangGraph's own saver on our record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver

from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.nodes.attempt import Attempt


def thread(name: str = "thread") -> RunnableConfig:
    """The config of a root thread."""
    return {"configurable": {"thread_id": name, "checkpoint_ns": ""}}


def checkpoint_with(version: str = "1", **values: Any) -> tuple[Checkpoint, dict[str, Any]]:
    """A checkpoint with these channels, and their versions."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = dict.fromkeys(values, version)
    return checkpoint, dict.fromkeys(values, version)


def count(store: Store, table: str) -> int:
    """How many rows a table has."""
    return store.read(lambda c: c.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())


def fenced(store: Store, job: Job) -> Attempt:
    """The attempt of a claimed job."""
    return Attempt(store, job.id, job.public_id, job.idempotency_key, job.claim_no, lambda _error: False)


@contextmanager
def stock_saver(store: Store) -> Iterator[BaseCheckpointSaver[str]]:
    """LangGraph's own saver on our record."""
    if store.url.startswith("sqlite"):
        with SqliteSaver.from_conn_string(str(store.path)) as saver:
            yield saver
        return
    with PostgresSaver.from_conn_string(store.url) as saver:
        yield saver
