"""The shipped graph `generation` at the simulated provider: workers in processes of their own, and a person."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from everstep import crash
from everstep.checkpoints import ledger, services
from everstep.checkpoints.job import Job
from everstep.checkpoints.store import Store
from everstep.graphs.generation import graph
from everstep.nodes.artefacts import FOLDER_VARIABLE
from everstep.runtime.worker import Worker
from examples.provider_simulator.server import Simulator
from tests.support.record import CONTEXT
from tests.support.simulated import Kind, simulated
from tests.support.waiting import PATIENCE, until

PRICE = 125
CREDIT = 1000
PRICES = """\
version = "1"
currency = "EUR"
[models.film-1]
per_call = 1.25
outputs = 4
"""
INPUT: dict[str, Any] = {"provider": "sim", "model": "film-1", "prompt": "a film"}


def _work(url: str, simulator: str, kind: Kind, folder: str, crash_at: str | None) -> None:
    os.environ[FOLDER_VARIABLE] = f"{folder}/artefacts"
    crash.arm(crash_at)
    waits = 1.0 if kind == "findable" else 5.0
    providers = simulated(simulator, kind, prices=f"{folder}/prices.toml", timeout=waits)
    with Store.open(url) as store:
        Worker(store, {"generation": graph}, providers=providers, lease=300.0).run(until_idle=True)


class Customer:
    """Who submits a generation, has workers run it, and does not wait for backoffs.

    Attributes:
        store: The record.
        killed: Whether a worker was killed at its crash point.
    """

    def __init__(self, store: Store, simulator: Simulator, kind: Kind, folder: Path) -> None:
        self.store = store
        self.killed = False
        self._simulator, self._kind, self._folder = simulator, kind, folder
        (folder / "prices.toml").write_text(PRICES)
        give = partial(ledger.grant, owner="default", currency="EUR", amount=CREDIT, reason="test", key="test")
        store.write(partial(give, actor="test", now=store.clock.now_ms())).result()

    def submit(self, **changes: Any) -> Job:
        """A generation that was submitted."""
        return self.store.enqueue("generation", {**INPUT, **changes}).job

    @contextmanager
    def working(self, crash_at: str | None = None) -> Generator[Any]:
        """A worker process while entered."""
        order = (self.store.url, self._simulator.url, self._kind, str(self._folder), crash_at)
        process = CONTEXT.Process(target=_work, args=order)
        process.start()
        try:
            yield process
        finally:
            with suppress(ValueError):
                process.kill()
            process.join(PATIENCE)

    def run(self, job: Job, crash_at: str | None = None) -> Job:
        """Work until the job has ended or a person could go on; where a worker is killed, the next one goes on."""
        with self.working(crash_at) as process:
            rests = until(lambda: self._rests(job, process), f"the end of {job.public_id}")
        if rests == "killed":
            self.killed = True
            return self.run(job)
        return self.store.job(job.public_id)

    def _rests(self, job: Job, process: Any) -> str | None:
        if not process.is_alive():
            return "killed" if process.exitcode else "idle"
        now = self.store.job(job.public_id)
        if now.status == "retry":
            with suppress(Exception):  # it went on by itself
                self.store.redrive(job.public_id)
        for service in self.store.services_out(now):
            opened = partial(services.open_gate, service=service, now=self.store.clock.now_ms())
            self.store.write(opened).result()
        return None

    def answer(self, job: Job, decision: str, value: Any = None) -> None:
        """Answer what the job asks."""
        (question,) = [review for review in self.store.reviews(job) if review.status == "open"]
        given = {} if value is None else {"value": value}
        self.store.answer(question.public_id, decision, **given)

    @property
    def balance(self) -> int:
        """What is left."""
        return self.store.read(lambda connection: ledger.balance(connection, "default", "EUR"))
