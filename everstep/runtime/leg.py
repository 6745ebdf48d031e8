"""One leg of a job: one attempt by one worker, from loading the graph to knowing what it came to."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphDrained
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.runtime import RunControl
from sqlalchemy import Connection

from everstep.checkpoints import jobs, reviews, trace_rows, waits
from everstep.checkpoints.jobs import Job, LostClaim
from everstep.checkpoints.policy import Acceptance
from everstep.checkpoints.reviews import Question, Review
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.store import Store
from everstep.errors import Cancelled, EffectInterrupted, EffectNotRepeated
from everstep.graphs.fingerprint import difference
from everstep.graphs.loader import GraphCatalogue
from everstep.nodes.attempt import Attempt, running
from everstep.nodes.effect import EffectUnknown
from everstep.nodes.providers.registry import Providers
from everstep.observability import metric_names
from everstep.observability.cost import NO_PRICES, Price
from everstep.observability.measures import NOTHING, Measures
from everstep.observability.tracing import Tracing
from everstep.runtime import leg_spans
from everstep.runtime.acceptance import Finished, feedback_form, judge
from everstep.runtime.classify import classify
from everstep.runtime.client_run import ClientRun
from everstep.runtime.feed import Standing, at_end, is_routed, standing
from everstep.runtime.service_trial import Trial
from everstep.runtime.settle import Outcome
from everstep.runtime.spending import USED_UP, Spending, Unpriced

RECURSION_LIMIT = 10_000
EFFECT_GRACE_S = 30.0
"""How long effects whose callers gave them up may go on; then those that can be are cancelled, and are unknown."""

Graph = Pregel[Any, Any, Any, Any]


def service_version() -> str:
    """This Everstep's version."""
    return version("everstep")


class Leg:
    """Runs one claimed job until it finishes, pauses, fails or is given back.

    Args:
        store: The record.
        graphs: Where its graph comes from.
        tracing: Where its spans go.
        job: The job as claimed.
        worker: Id of the worker.
        control: Through which the worker asks it to stop at the next step.
        prices: US dollars for a million tokens, by model name.
        measures: What the process measures.
        providers: The providers of paid work that there are.

    Attributes:
        spending: What it uses of its job's budget.
    """

    def __init__(
        self,
        store: Store,
        graphs: GraphCatalogue,
        tracing: Tracing,
        job: Job,
        *,
        worker: str,
        control: RunControl,
        prices: Mapping[str, Price] = NO_PRICES,
        measures: Measures = NOTHING,
        providers: Providers | None = None,
    ) -> None:
        self._store = store
        self._measures = measures
        self._stepped_at = 0.0
        self._unmeasured = 0
        self._graphs = graphs
        self._job = job
        self._control = control
        self._open = ExitStack()
        self._is_provisional = False
        self._outcome: Outcome | None = None
        self._finished: Finished | None = None
        self._trial = Trial(store, job)
        self._not_noted: dict[str, str] = {}
        self._over = EffectInterrupted("the run of this node is over", job=job.public_id)
        self._span = tracing.leg_of(leg_spans.described(job, worker), leg_spans.clock_of(store))
        self._span.price_by(prices)
        self._traced, self._worker = tracing.is_enabled(), worker
        self._spans = leg_spans.writer_of(store, tracing, self._span, job)
        submit = store.write if self._spans is None else self._spans.submit
        self.spending = Spending(store, job, prices, lambda: control.request_drain(USED_UP), submit)
        if measures.is_on:
            self.spending.counter.priced = self._priced
        self._client = ClientRun(store, job, control, measures)
        self._attempt = Attempt(
            store=store,
            job_id=job.id,
            public_id=job.public_id,
            job_key=job.idempotency_key,
            claim_no=job.claim_no,
            surely_not_sent=lambda error: classify(error).surely_not_sent,
            progress=self._columns,
            stepped=self._in_step,
            committed=self._committed,
            measures=measures,
            graph=job.graph,
            with_spans=None if self._spans is None else self._spans.submit,
            providers=providers or Providers(),
        )

    async def run(self) -> None:
        """Run; afterwards `outcome` tells what came of it.

        Raises:
            LostClaim: The claim is no longer the job's.
        """
        if self._traced:
            look = partial(leg_spans.looked_up, job=self._job, worker=self._worker)
            with suppress(Exception):  # without it less is known, and the leg runs
                self._span.describe(await self._store.aread(look))
        self._open.enter_context(self._span)
        with running(self._attempt):
            try:
                self._outcome = await self._run()
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a node may raise anything
                self._outcome = self._explained(error)
        # A node that failed leaves its siblings' effects under way: the next leg must not start beside one.
        await self.quiet()
        while in_flight := self._attempt.end(self._over):
            await asyncio.wait([asyncio.wrap_future(effect) for effect in in_flight])
        blocked = self._attempt.blocked
        if isinstance(blocked, LostClaim):
            self._span.outcome("lost", detail=str(blocked))
            self._open.close()
            raise blocked
        if blocked is not None and not self._is_consequence(blocked):  # also when the graph swallowed the exception
            self._outcome = self._explained(blocked)
        try:
            await self._judge()
        except Exception as error:
            self._outcome = self._explained(error)

    async def _judge(self) -> None:
        """A graph that finished is not done before what its job must pass has passed."""
        outcome, finished = self._outcome, self._finished
        if outcome is None or outcome.kind != "done" or finished is None:
            return
        judgement = await judge(self._store, self._job, finished, self._control)
        if judgement is None:
            self._outcome = Outcome("released")
            return
        questions = [judgement.question] if judgement.question else []
        self._outcome = replace(outcome, kind=judgement.kind, judgement=judgement, questions=questions)

    def _is_consequence(self, blocked: BaseException) -> bool:
        """Whether the run ended for another reason, and that ended its effects' callers."""
        failed = self._outcome is not None and self._outcome.kind == "error"
        return blocked is self._over or (failed and isinstance(blocked, EffectInterrupted))

    def outcome(self) -> Outcome:
        """What the leg came to."""
        if self._outcome is None:
            raise RuntimeError("the leg has not run")
        return self._outcome

    def stop(self) -> None:
        """Cancellation was requested: refuse every later write, also of a node that will not be cancelled."""
        self._attempt.block(Cancelled("the job was cancelled on request", job=self._job.public_id))

    def cancelled(self) -> None:
        """The run was stopped because its cancellation was requested."""
        self._outcome = Outcome("cancelled")

    async def quiet(self) -> None:
        """The run is over: give the effects under way a moment to end."""
        await self._attempt.quiet(EFFECT_GRACE_S)

    def release(self) -> bool:
        """Give the job back, if that is safe: no effect of it is under way in a thread that cannot be stopped."""
        if self._attempt.end(self._over):
            return False
        self._outcome = Outcome("released")
        return True

    def lost(self, reason: LostClaim) -> None:
        """The claim is gone: refuse every later write of this run."""
        self._is_provisional = False
        self._span.outcome("lost", detail=str(reason))
        self._attempt.block(reason)

    def end_spans(self, connection: Connection, settled: Job) -> None:
        """In the transaction that settles the job: end the leg's spans with what it is settled as, and write them.

        Another transaction may follow that settles it otherwise: `close` tells that this one was committed.
        """
        outcome = self._outcome
        status: Any = settled.status
        if status == "pending":
            status = "parked" if settled.next_run_at > settled.updated_at else "released"
        verdict = outcome.verdict if outcome else None
        if verdict is not None and verdict.outage is not None:
            self._span.met_outage(verdict.service or "", verdict.outage)
        error = outcome.error if outcome else None
        self._span.outcome(
            status,
            error=error,
            detail=f"{settled.status} at step {settled.step}",
            reason="" if error is None else trace_rows.last_reason(connection, settled.id),
        )
        self._span.finish()
        self._is_provisional = True
        if self._spans is not None:
            self._spans.write_rest(connection)

    def close(self) -> None:
        """The settlement is committed."""
        self._is_provisional = False
        self._open.close()
        if self._spans is not None:
            self._spans.forget_rest()

    def abandon(self) -> None:
        """The leg is over, settled or not: what is left of its spans is evidence, also without a claim."""
        if self._is_provisional:
            self._span.outcome(None, detail="its settlement may not have reached the record")
        self._open.close()
        if self._spans is not None:
            self._spans.write_alone()

    async def _run(self) -> Outcome:
        client = self._client
        callbacks = [self.spending.counter, *self._measured_calls(), *self._span.callbacks]
        config: RunnableConfig = {**client.config(), "callbacks": callbacks}
        saver = StepSaver(self._store, self._attempt)
        await client.prepare()
        items = self._graphs.items_of(self._store, self._job.owner, self._attempt)
        async with self._graphs.open(self._job.graph, config, checkpointer=saver, items=items) as graph:
            if self._is_new:
                saver.begin_empty(self._job.thread_id, routed=is_routed(graph))
            config = {"recursion_limit": (graph.config or {}).get("recursion_limit", RECURSION_LIMIT), **config}
            if (changed := self._changed(graph)) is not None:
                return Outcome("review", questions=[changed])
            used_up = None
            if not self._is_new or self._job.budget_json is not None or self._job.parent_id is not None:
                used_up = await self.spending.begin(await self._store.aread(self._before))
            if stops := client.options.stops():
                graph = graph.copy(update=stops)
            first = await client.starts_at(graph, config)
            where = await self._standing(graph, config, saver, has_run=False)
            fed: Any = None
            while where.kind == "runnable":
                if fed is not None and where.input == fed:
                    raise RuntimeError(f"the graph does not take what it is fed: {where.input!r}")
                if fed is not None:
                    used_up = await self.spending.refusal()
                if used_up is not None:
                    return Outcome("review", questions=[used_up])
                fed = where.input
                self._stepped_at = time.monotonic()
                if not self._job.input_applied:  # what stores the input, and starts a graph of nodes, is no step
                    self._unmeasured = 2 if isinstance(graph, CompiledStateGraph) else 1
                try:
                    how = {"durability": "sync", "control": self._control}
                    await client.stream(graph, where.input, first, how)
                except Exception:
                    await client.tell_state(graph, config)
                    raise
                first = config
                where = await self._standing(graph, config, saver, has_run=True)
            client.tell(where)
            if where.kind == "finished" and self._job.acceptance is not None:
                form = feedback_form(graph, Acceptance.of(self._job.acceptance).feedback)
                self._finished = Finished(where.state, where.checkpoint_id, form)
        if where.kind == "finished":
            return Outcome("done", values=where.values, told=self._client.told)
        if where.kind == "parked":
            return Outcome("parked", questions=where.questions, waits=where.waits, told=self._client.told)
        return Outcome("review", questions=where.questions, told=self._client.told)

    def _measured_calls(self) -> list[BaseCallbackHandler]:
        if not self._measures.is_on:
            return []
        from everstep.observability.measured_calls import MeasuredCalls

        return [MeasuredCalls(self._measures)]

    def _priced(self, model: str, micros: int) -> None:
        self._measures.add(metric_names.COST, micros / 1_000_000, model)

    async def _standing(self, graph: Graph, config: RunnableConfig, saver: StepSaver, *, has_run: bool) -> Standing:
        def read() -> tuple[Job, list[Review]]:
            self._store.flush()  # a graph that stops before its first node has written nothing but what is held
            id_ = self._job.id
            found = self._store.read(lambda connection: (jobs.get(connection, id_), reviews.of_job(connection, id_)))
            saver.read_ahead(config)
            return found

        if has_run and saver.knows(config) and (ended := await at_end(graph, config)) is not None:
            return ended  # as most do, and nothing need be read for it
        alone = self._client.options.run_id is None
        if alone and not has_run and not self._job.input_applied:  # nothing of this input was ever asked about
            job, of_job = self._job, list[Review]()
        else:
            job, of_job = await self._store.in_thread(read)
        command, open_waits = self._client.options.command, self._open_waits
        return await standing(graph, config, job, of_job, saver, has_run=has_run, command=command, waits=open_waits)

    async def _open_waits(self) -> list[str]:
        now = self._store.clock.now_ms()
        return await self._store.aread(lambda connection: waits.still_open(connection, self._job.id, now=now))

    @property
    def _is_new(self) -> bool:
        """Whether this is the first leg of a job that is alone on its thread: nothing of it can be stored so far."""
        job = self._job
        return job.claim_no == 1 and job.run_json is None and job.thread_id == job.public_id

    def _in_step(self, connection: Connection) -> None:
        """In the transaction of each checkpoint."""
        self._trial.look(connection)
        self.spending.look(connection)

    def _before(self, connection: Connection) -> Unpriced:
        """What the record says before the leg begins; of the first leg of a job most of it is known to be nothing."""
        self._trial.look(connection)
        self.spending.look_before(connection)
        if self._job.claim_no == 1:
            return []
        self._attempt.accepted |= self._accepted(connection)
        return self.spending.unpriced(connection)

    def _accepted(self, connection: Connection) -> set[str]:
        """Effects of earlier runs that a person said this one need not repeat."""
        asked = [review for review in reviews.of_job(connection, self._job.id) if review.kind == "error"]
        approved = [review.value for review in asked if review.decision == "approve"]
        return {key for value in approved if value.get("code") == EffectNotRepeated.code for key in value["effects"]}

    def _changed(self, graph: Graph) -> Question | None:
        """Have the graph's fingerprint noted with the next write, or ask whether to go on with a graph that changed."""
        now = self._graphs.fingerprint(self._job.graph, graph)
        self._attempt.fingerprint, parts = now.digest, now.parts_json
        if self._job.fingerprint == now.digest and self._job.fingerprint_json == parts:
            return None
        begun = self._job.input_applied or self._job.next_input_json is not None
        if self._job.fingerprint not in (None, now.digest) and begun:
            lines = difference(json.loads(self._job.fingerprint_json or "{}"), now.parts)
            value = {"question": "The graph changed since this job began. Go on with it?", "changes": lines}
            return Question("fingerprint", now.digest, value, occurrence=self._job.claim_no)
        self._not_noted = {"fingerprint": now.digest, "fingerprint_json": parts}
        return None

    def _columns(self) -> dict[str, Any]:
        """Columns of the job to keep current with what is stored."""
        return {**self.spending.columns(), **self._not_noted}

    def _explained(self, error: BaseException) -> Outcome:
        if isinstance(error, GraphDrained):
            used_up = self.spending.question
            return Outcome("released") if used_up is None else Outcome("review", questions=[used_up])
        if isinstance(error, EffectUnknown):
            return Outcome("effect", effect_key=error.ids.get("key"), error=error)
        if isinstance(error, LostClaim):
            self._attempt.block(error)
        verdict = classify(error, now_ms=self._store.clock.now_ms())
        return Outcome("error", error=error, verdict=verdict, told=self._client.told)

    def _committed(self, checkpoint_id: str, checkpoint_ns: str) -> None:
        """A checkpoint is stored."""
        self._not_noted = {}
        self._span.committed(checkpoint_id, checkpoint_ns)
        self.spending.stepped()
        if self._measures.is_on and not checkpoint_ns:
            if self._unmeasured:  # nobody waited for it: the first step began already
                self._unmeasured -= 1
            else:
                before, self._stepped_at = self._stepped_at, time.monotonic()
                self._measures.add(metric_names.STEP_DURATION, self._stepped_at - before, self._job.graph)
        if not checkpoint_ns:
            self._trial.stepped()
