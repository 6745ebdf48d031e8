"""What the paths of LangGraph's runs share: admitting a run, and finding one that the caller may see."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from fastapi import Request
from langgraph.constants import END
from sqlalchemy import Connection

from everstep.checkpoints import assistants, conversations, jobs, runs, stream_readers
from everstep.checkpoints.replies import Reply
from everstep.checkpoints.runs import Run, RunRequest
from everstep.checkpoints.thread import Thread
from everstep.clock import rfc3339, uuid7
from everstep.errors import GraphLoadFailed, RequestInvalid, RunNotFound, ThreadNotFound
from everstep.runtime import run_options
from everstep.runtime.addresses import Guard
from everstep.server import access, configurable
from everstep.server.bodies import apart
from everstep.server.context import Caller, Served
from everstep.server.langgraph import following, slow_client
from everstep.server.langgraph.run_requests import RunCreate
from everstep.server.once import Answered, Once
from everstep.server.watch import Watch

AsStands = Callable[[Connection, str, RunRequest], RunRequest]
"""Gives the request by how its thread stands."""


class RunContext:
    """What the path functions of runs share: the request, what is served, who asks."""

    def __init__(self, request: Request, served: Served, caller: Caller) -> None:
        self.request, self.served, self.caller = request, served, caller
        state = request.app.state
        if not hasattr(state, "watch"):
            state.watch = Watch(served.store)
        self.watch = cast(Watch, state.watch)

    async def start(
        self, body: RunCreate, once: Once, thread_id: str | None, ending: str = "", as_stands: AsStands | None = None
    ) -> tuple[Run, Answered]:
        """Admit a run; its answer tells where it is, and where to ask for what follows.

        Args:
            body: What is asked for.
            once: Creates it once.
            thread_id: Its thread; None: one of its own.
            ending: What of the run's path tells what follows.
            as_stands: Changes the request by how the thread stands, in the transaction that admits it.
        """
        created: dict[str, Run] = {}
        answered = await once.write(await self.prepared(body, thread_id, ending, as_stands, created))
        run_id = str(cast("Mapping[str, Any]", answered.reply.body)["run_id"])
        if not answered.replayed:
            return created[run_id], answered
        return await self.served.store.aread(lambda connection: runs.find(connection, run_id)), answered

    async def prepared(
        self,
        body: RunCreate,
        thread_id: str | None,
        ending: str = "",
        as_stands: AsStands | None = None,
        created: dict[str, Run] | None = None,
    ) -> Callable[[Connection], Reply]:
        """What admits a run, in the write transaction it is given, and notes it in `created`; see `start`."""
        store, caller, now = self.served.store, self.caller, self.served.store.clock.now_ms()
        if body.command is not None and "resume" in body.command.model_fields_set:
            access.require(caller, "review")
        if body.webhook is not None and not self.served.http.webhooks:
            raise RequestInvalid("webhook is not supported: http.disable_webhooks of langgraph.json says so")
        if body.webhook is not None:
            Guard.of(self.served.policies.webhooks.allow).require(body.webhook)
        assistant = await store.aread(
            lambda connection: assistants.resolve(connection, body.assistant_id, owner=caller.owner)
        )
        self.served.graphs.require(assistant.graph)
        value: dict[str, Any] = {"thread_id": thread_id, "assistant_id": assistant.assistant_id, **body.model_dump()}
        filters = await access.allow(self.request, "threads", "create_run", value)
        told = configurable.of_request(self.request)
        request = await apart(body.as_request, assistant, told, stateless=thread_id is None)
        request = replace(
            request,
            metadata={**request.metadata, **(value.get("metadata") or {})},
            slow_client=slow_client.of_request(self.request),
        )
        await self._require_nodes(request, thread_id)
        policy = self.served.policies.of_graph(assistant.graph)

        def create(connection: Connection) -> Reply:
            thread = self._thread(connection, body, request, thread_id, filters, now)
            if request.checkpoint is not None:
                conversations.require_checkpoint(connection, thread.thread_id, request.checkpoint["checkpoint_id"])
            run = runs.create(
                connection,
                request if as_stands is None else as_stands(connection, thread.thread_id, request),
                thread_id=thread.thread_id,
                owner=thread.owner,
                now=now,
                actor=caller.identity,
                policy=policy,
            )
            if created is not None:
                created[run.run_id] = run
            if request.slow_client is not None and ending == "/stream":  # who asks reads from the first event on
                stream_readers.read_to(connection, run.run_id, job_id=run.job_id, run_id=run.run_id, seen=0, now=now)
            place = f"/runs/{run.run_id}" if thread_id is None else f"/threads/{run.thread_id}/runs/{run.run_id}"
            where = {"Content-Location": place, **({"Location": place + ending} if ending else {})}
            return Reply(200, view(run), where)

        return create

    async def _require_nodes(self, request: RunRequest, thread_id: str | None) -> None:
        """Refuse a command to a node that its graph does not have; a graph that cannot be opened is left to the job.

        Raises:
            PayloadInvalid: Names the nodes there are.
        """
        wanted = [name for name in run_options.goes_to(request.command) if name != END]
        if not wanted:
            return
        config: Any = {"configurable": {**request.config.get("configurable", {}), "thread_id": thread_id}}
        with suppress(GraphLoadFailed):
            async with self.served.graphs.open(request.graph, config, purpose="assistants.read") as graph:
                run_options.require_nodes(request.graph, graph.nodes, wanted)

    def _thread(
        self,
        connection: Connection,
        body: RunCreate,
        request: RunRequest,
        thread_id: str | None,
        filters: access.Filters,
        now: int,
    ) -> Thread:
        if thread_id is not None:
            try:
                found = conversations.find(connection, thread_id, owner=self.caller.owner)
            except ThreadNotFound:
                if body.if_not_exists != "create":
                    raise
            else:
                if not access.matches(filters, found.metadata):
                    raise ThreadNotFound(f"there is no thread {thread_id}", thread_id=thread_id)
        owner = self.caller.makes_for
        metadata = {name: one for name, one in filters.items() if isinstance(one, str)}
        thread = conversations.ensure(
            connection,
            thread_id or uuid7(now),
            owner=owner,
            now=now,
            graph=request.graph,
            assistant_id=request.assistant_id,
            metadata=metadata,
            make=thread_id is None or body.if_not_exists == "create",
        )
        if not self.caller.sees(thread.owner):
            raise ThreadNotFound(f"there is no thread {thread_id}", thread_id=thread_id)
        return thread

    async def run(self, run_id: str, thread_id: str | None, action: str = "read") -> Run:
        """The run, if the caller may see it.

        Raises:
            RunNotFound: There is none for this caller.
        """
        filters = await access.allow(self.request, "threads", action, {"thread_id": thread_id, "run_id": run_id})

        def look(connection: Connection) -> Run:
            run = runs.find(connection, run_id.lower())
            owner, metadata = _owner_of(connection, run)
            fits = thread_id is None or run.thread_id == thread_id.lower()
            if not fits or not self.caller.sees(owner) or not access.matches(filters, metadata):
                raise RunNotFound(f"there is no run {run_id}", run=run_id)
            return run

        return await self.served.store.aread(look)

    async def run_to_follow(self, run_id: str, thread_id: str | None, cancels: bool) -> Run:
        """The run, if the caller may see it, and cancel it where their leaving does.

        Raises:
            RunNotFound: There is none for this caller.
            NotPermitted: They may look alone.
        """
        if cancels:
            access.require(self.caller, "run")
        return await self.run(run_id, thread_id, "update" if cancels else "read")

    async def cancel(self, run: Run, *, rollback: bool = False) -> None:
        """Ask for a run's end."""
        store, actor = self.served.store, self.caller.identity
        now = store.clock.now_ms()
        await store.awrite(lambda c: runs.cancel(c, runs.find(c, run.run_id), now=now, actor=actor, rollback=rollback))

    def leave(self, run: Run, cancels: bool) -> following.Leave | None:
        """What the client's leaving does to the run."""

        async def cancel() -> None:
            await self.cancel(run)

        return cancel if cancels else None


def _owner_of(connection: Connection, run: Run) -> tuple[str, dict[str, Any]]:
    try:
        thread = conversations.find(connection, run.thread_id)
    except ThreadNotFound:  # it was made for this run, and is gone
        return jobs.get(connection, run.job_id).owner, {}
    return thread.owner, thread.metadata


def view(run: Run) -> dict[str, Any]:
    """A run as LangGraph's clients read it."""
    return {
        "run_id": run.run_id,
        "thread_id": run.thread_id,
        "assistant_id": run.assistant_id,
        "created_at": rfc3339(run.created_at),
        "updated_at": rfc3339(run.updated_at),
        "status": run.status,
        "metadata": json.loads(run.metadata_json),
        "kwargs": json.loads(run.kwargs_json),
        "multitask_strategy": run.multitask_strategy,
    }
