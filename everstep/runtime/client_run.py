"""The side of a leg that a client sees: how its run is configured, where it starts, and what is told of it.

For a job that no client started all of it is nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.constants import END
from langgraph.pregel import Pregel
from langgraph.runtime import RunControl

from everstep.checkpoints import rollback
from everstep.checkpoints.job import Job
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.errors import CheckpointNotFound
from everstep.observability.measures import Measures
from everstep.runtime.feed import Standing
from everstep.runtime.results import json_ready
from everstep.runtime.run_options import RunOptions, goes_to, require_nodes
from everstep.runtime.slow_clients import SlowClients
from everstep.runtime.streams import EventWriter, emitted

Graph = Pregel[Any, Any, Any, Any]


class ClientRun:
    """One leg's.

    Args:
        store: The record.
        job: The job as claimed.
        control: Through which the worker asks it to stop.
        measures: What the process measures.

    Attributes:
        options: How it runs.
        told: What the run and its thread are told when the leg is settled (`turns.tell_values`).
    """

    def __init__(self, store: Store, job: Job, control: RunControl, measures: Measures) -> None:
        self._store = store
        self._job = job
        self.options = RunOptions.of(job)
        self.told: dict[str, str] = {}
        self._events: EventWriter | None = None
        if self.options.run_id is not None and self.options.stream_mode:
            modes, subgraphs = self.options.stream_mode, self.options.stream_subgraphs
            slow, budget_s = None, self.options.slow_client
            if budget_s is not None:
                slow = SlowClients(store, job, self.options.run_id, budget_s, control, measures)
            self._events = EventWriter(store, job, self.options.run_id, modes, subgraphs=subgraphs, slow_clients=slow)

    @property
    def run_id(self) -> str:
        """One id for each time the graph is fed an input: LangGraph ignores one that is fed to a run it has seen."""
        return rollback.name_of_steps(self.options.run_id or self._job.public_id, self._job.returns)

    def config(self) -> RunnableConfig:
        """The run's config, without what the worker adds."""
        given = self.options.config
        about = {"everstep_job": self._job.public_id, "everstep_leg": self._job.claim_no}
        config: RunnableConfig = {
            "configurable": {**self.options.configurable(self._job), "run_id": self.run_id},
            "metadata": {**given.get("metadata", {}), **about},
        }
        if given.get("tags"):
            config["tags"] = list(given["tags"])
        if given.get("recursion_limit"):
            config["recursion_limit"] = given["recursion_limit"]
        return config

    async def prepare(self) -> None:
        """Take away the steps of earlier runs of the thread that were cancelled so."""
        if self.options.run_id is not None:
            await rollback.take_away(self._store, self._job.thread_id)

    async def starts_at(self, graph: Graph, config: RunnableConfig) -> RunnableConfig:
        """The config of the first feeding: an input may be fed to an earlier checkpoint.

        Without an input the thread is forked there now, and goes on from the fork; one that is to end where it is ends.
        """
        if self._job.input_applied or self._job.next_input_json is not None:  # it began, and goes on from where it is
            return config
        require_nodes(self._job.graph, graph.nodes, goes_to(self.options.command))
        if self.options.resolves:
            await graph.aupdate_state(config, None, as_node=END)
        place = self.options.forks_at()
        if not place:
            return config
        there: RunnableConfig = {**config, "configurable": {**config.get("configurable", {}), **place}}
        if await StepSaver(self._store).aget_tuple(there) is None:  # the graph would begin with nothing
            raise CheckpointNotFound(
                f"the thread has no checkpoint {place['checkpoint_id']} any more, where the run was to begin",
                next_step="start another run, at a checkpoint that is there",
                thread=self._job.thread_id,
            )
        if self._job.next_input is not None:
            return there
        await graph.aupdate_state(there, None, as_node="__copy__")
        return config

    async def stream(self, graph: Graph, given: Any, config: RunnableConfig, how: Mapping[str, Any]) -> None:
        """Run the graph until it pauses or ends; tell what it emits, if somebody may want to know.

        Args:
            graph: The graph.
            given: What it is fed.
            config: The run's config.
            how: Further arguments of `astream`.
        """
        events, options = self._events, self.options
        if options.context is not None:
            how = {**how, "context": options.context}
        if events is None:
            async for _ in graph.astream(given, config, stream_mode="updates", **how):
                pass
            return
        try:
            async with aclosing(emitted(graph, given, config, options.stream_mode, how)) as parts:
                async for namespace, mode, chunk in parts:
                    events.emit(namespace, mode, chunk)
                    await events.room()
        finally:
            events.flush()

    def tell(self, where: Standing) -> None:
        """The graph paused or finished: what the run and its thread are told."""
        if self.options.run_id is None:
            return
        values: Any = json_ready(where.values)
        interrupts: dict[str, list[Any]] = json_ready(where.interrupts)
        if interrupts and isinstance(values, dict):
            values["__interrupt__"] = [one for asked in interrupts.values() for one in asked]
        if self._events is not None:
            self._events.end_with(values)
        told: dict[str, Any] = {"values_json": values, "state_json": json_ready(where.state)}
        told["interrupts_json"] = interrupts
        self.told = {name: json.dumps(value) for name, value in told.items()}

    async def tell_state(self, graph: Graph, config: RunnableConfig) -> None:
        """The graph failed: its thread is told the state as it is."""
        if self.options.run_id is not None:
            with suppress(Exception):
                snapshot = await graph.aget_state(config)
                self.told = {"state_json": json.dumps(json_ready(snapshot.values))}
