"""What a leg uses of its job's budget: counted, kept in the record as it grows, and asked about when it is used up.

Kept with each stored step, after each model call and at heartbeats that come ten seconds after the last; so a killed
worker loses of the count what its calls under way used, and ten seconds.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from threading import Lock
from typing import Any

from sqlalchemy import Connection, insert, select, update

from everstep.checkpoints import budgets, claims
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.schema import agent_jobs, evidence
from everstep.checkpoints.store import Store
from everstep.observability.cost import Price, priced_micros
from everstep.observability.tokens import TokenCounter, Tokens
from everstep.observability.usage import Usage

USED_UP = "the job's budget is used up"
BEAT_MS = 10_000
Unpriced = list[tuple[int, dict[str, Any]]]
WITHOUT_PRICE, PRICED = "without_price", "priced"
"""Kinds of evidence: calls whose cost nobody knew, under a cost budget; and those counted since."""


class Spending:
    """Counts for one leg.

    Args:
        store: The record.
        job: The job as claimed.
        prices: US dollars for a million tokens, by model name.
        stop: Asks the run to stop at its next step.
        write: Queues a write; the record's own when omitted.
    """

    def __init__(
        self,
        store: Store,
        job: Job,
        prices: Mapping[str, Price],
        stop: Callable[[], None],
        write: Callable[[Callable[[Connection], None]], Future[None]] | None = None,
    ) -> None:
        self._write = write or store.write
        self.counter = TokenCounter(prices, counted=self.note_soon)
        self._store = store
        self._job = job
        self._prices = prices
        self._stop = stop
        self._why: dict[str, Any] | None = None
        self._earlier: dict[str, Any] = {}
        self._lock = Lock()
        self._now = self._noted = store.clock.now_ms()
        self._run_ms = 0
        self._charged_micros = 0

    @property
    def question(self) -> Question | None:
        """Why the job must not go on, if it must not, as it was at the last stored step."""
        return None if self._why is None else budgets.question(self._why, self._job.claim_no)

    def columns(self) -> dict[str, int]:
        """The columns of the job that tell what was used, this leg included."""
        tokens = self.counter.snapshot()
        return {
            "input_tokens": self._job.input_tokens + tokens.input_tokens,
            "output_tokens": self._job.output_tokens + tokens.output_tokens,
            "cost_micros": self._job.cost_micros + self._charged_micros + tokens.cost_micros,
            "run_ms": self._job.run_ms + self._elapsed_ms(),
        }

    async def begin(self, unpriced: Unpriced) -> Question | None:
        """Before the leg: charge calls of earlier legs whose price is known by now.

        Args:
            unpriced: What `unpriced` found, in the snapshot in which `look_before` looked.

        Returns:
            Why the job must not run, if it must not.
        """
        for row_id, models in unpriced:
            costs = [
                priced_micros(Usage(told["input_tokens"], told["output_tokens"]), [name], self._prices)
                for name, told in models.items()
            ]
            known = [cost for cost in costs if cost is not None]
            if len(known) < len(costs):
                self._earlier |= models
                continue
            await self._store.awrite(functools.partial(self._charge, row_id=row_id, micros=sum(known)))
            self._charged_micros += sum(known)
        return await self.refusal() if unpriced else self.question

    def look_before(self, connection: Connection) -> None:
        """Before the leg, in a snapshot: whether the job may run."""
        self._look(connection)

    async def refusal(self) -> Question | None:
        """Why the job must not run on from here, if it must not."""
        await self._store.aread(self._look)
        return self.question

    def look(self, connection: Connection) -> None:
        """In the transaction of a step that is stored: whether the job may go on to the next."""
        self._noted = self._now
        self._look(connection)

    def stepped(self) -> None:
        """The step is stored."""
        if self._why is not None:
            self._stop()

    def note(self, connection: Connection) -> None:
        """Bring the record up to date, between steps and at the end of the leg."""
        self._noted = self._now
        if not budgets.note(connection, self._job.id, self._job.claim_no, **self.columns()):
            return
        unpriced = self.counter.without_price()
        if unpriced and any(account.budget.cost is not None for account in budgets.binding(connection, self._job.id)):
            self._keep_unpriced(connection, unpriced)

    def note_soon(self) -> None:
        """Bring the record up to date, without waiting for it; the next step would say if it cannot be."""
        with contextlib.suppress(RuntimeError):  # the record is closed: a call that was given up came back
            self._write(self.note).add_done_callback(lambda done: done.exception())

    def beat(self) -> None:
        """The claim was renewed; thread-safe."""
        if self._store.clock.now_ms() - self._noted >= BEAT_MS:
            self.note_soon()

    def _elapsed_ms(self) -> int:
        """Milliseconds of this leg so far; a clock that is set back takes nothing away."""
        with self._lock:
            now = self._store.clock.now_ms()
            self._run_ms += max(now - self._now, 0)
            self._now = now
            return self._run_ms

    def _look(self, connection: Connection) -> None:
        line = budgets.binding(connection, self._job.id)
        unpriced = {**self._earlier, **_as_json(self.counter.without_price())}
        self._why = budgets.why_stop(line, without_price=unpriced, without_usage=self.counter.without_usage())

    # ---- calls whose price was not known

    def _keep_unpriced(self, connection: Connection, unpriced: Mapping[str, Tokens]) -> None:
        mine = (evidence.c.job_id == self._job.id, evidence.c.claim_no == self._job.claim_no)
        text = json.dumps({"models": _as_json(unpriced)})
        row = connection.execute(select(evidence.c.id).where(*mine, evidence.c.kind == WITHOUT_PRICE)).first()
        if row is not None:
            connection.execute(update(evidence).where(evidence.c.id == row.id).values(detail_json=text))
            return
        connection.execute(
            insert(evidence).values(
                job_id=self._job.id,
                claim_no=self._job.claim_no,
                kind=WITHOUT_PRICE,
                detail_json=text,
                at=self._store.clock.now_ms(),
            )
        )

    def unpriced(self, connection: Connection) -> Unpriced:
        """Calls of earlier legs whose price was not known: row id of the evidence, and tokens by model."""
        query = select(evidence.c.id, evidence.c.detail_json)
        query = query.where(evidence.c.job_id == self._job.id, evidence.c.kind == WITHOUT_PRICE)
        rows = connection.execute(query.order_by(evidence.c.id)).all()
        return [(row.id, json.loads(row.detail_json)["models"]) for row in rows]

    def _charge(self, connection: Connection, row_id: int, micros: int) -> None:
        claims.fence(connection, self._job.id, self._job.claim_no)
        job = agent_jobs.c.id == self._job.id
        connection.execute(update(agent_jobs).where(job).values(cost_micros=agent_jobs.c.cost_micros + micros))
        connection.execute(update(evidence).where(evidence.c.id == row_id).values(kind=PRICED))


def _as_json(unpriced: Mapping[str, Tokens]) -> dict[str, Any]:
    return {
        name: {"calls": told.model_calls, "input_tokens": told.input_tokens, "output_tokens": told.output_tokens}
        for name, told in unpriced.items()
    }
