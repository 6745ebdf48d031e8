"""One run of the job, from a fresh record to its end: workers one after another, and the person who answers between."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import update

from everstep.checkpoints.answers import MISSING
from everstep.checkpoints.effects import Effect
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.store import Store
from everstep.runtime.crash_test import money
from everstep.runtime.crash_test.answers import BY, Answer, asked
from everstep.runtime.crash_test.fork_client import ForkServer
from everstep.runtime.crash_test.inside import POINT
from everstep.runtime.crash_test.money import Paid
from everstep.runtime.crash_test.order import Order
from everstep.runtime.crash_test.points import Point, Trace
from everstep.runtime.crash_test.records import Records
from everstep.runtime.crash_test.world import Content, Manifest, Snapshot, manifest

MOST_WORKERS = 500
PLACE = "{run}"
KEY = "crash-test"


@dataclass(frozen=True)
class Setting:
    """What all runs of a crash test share.

    Attributes:
        config: The user's `langgraph.json`.
        graph: The graph's name.
        input: Its input; `{run}` in a text becomes the run's own folder.
        records: Gives each run an empty record.
        servers: Where workers come from, in turn: each has another hash seed, as a restart has.
        snapshot: The user's places in the world.
        seconds: How long a run may take.
        credit: Currencies in which the job's owner has plenty.
    """

    config: Path
    graph: str
    input: Any
    records: Records
    servers: Sequence[ForkServer]
    snapshot: Snapshot
    seconds: float
    credit: Sequence[str] = ()


@dataclass(frozen=True)
class Asked:
    """A review and how it was answered; `guessed` when nobody could know if the effect of this key had happened."""

    kind: str
    question: str
    effect: str
    answer: Answer
    guessed: bool = False
    key: str = ""


@dataclass(frozen=True)
class EffectSeen:
    """An effect at the end of a run; arguments are named as in every run."""

    key: str
    name: str
    arguments: str
    state: str
    calls: int
    settled_by: str | None
    result: Any


@dataclass
class Run:
    """What came of a run.

    Attributes:
        status: The job's status at the end.
        state: The graph's final state, as JSON data.
        error: The job's error, if it has one.
        ended: Why the run could not be carried to the job's end; empty when it was.
        timed_out: It took too long.
        killed: A worker was killed at the crash point.
        attempts: Starts of the job that count.
        traces: What each worker told.
        paid: What was paid, and what for.
        seconds: How long it took.
    """

    folder: Path
    status: str = ""
    state: Any = None
    error: dict[str, Any] | None = None
    ended: str = ""
    timed_out: bool = False
    killed: bool = False
    attempts: int = 0
    effects: list[EffectSeen] = field(default_factory=list[EffectSeen])
    asked: list[Asked] = field(default_factory=list[Asked])
    traces: list[Trace] = field(default_factory=list[Trace])
    world: Manifest = field(default_factory=dict[str, Content])
    paid: Paid = field(default_factory=dict[str, int])
    seconds: float = 0.0

    @property
    def place(self) -> Path:
        """The run's own part of the world."""
        return self.folder / "run"

    def bodies(self) -> Counter[str]:
        """How often each node's body began."""
        return Counter(str(event["node"]) for trace in self.traces for event in trace if event["event"] == "body")

    def touches(self) -> list[dict[str, Any]]:
        """What nodes did outside of effects."""
        return [event for trace in self.traces for event in trace if event["event"] == "touch"]

    def returned(self) -> Counter[str]:
        """How often each effect's function returned, by the effect's key."""
        return Counter(str(event["key"]) for event in self._points("effect.called"))

    def began(self) -> Counter[str]:
        """How often each effect's function was called, by the effect's key."""
        return Counter(str(event["key"]) for event in self._points("effect.intended"))

    def ended_calls(self) -> Counter[str]:
        """How often each effect's function returned or raised, by the effect's key."""
        return self.returned() + Counter(str(event["key"]) for event in self._points("effect.raised"))

    def denied(self) -> Counter[str]:
        """How often the person said of each effect that it had not happened, by the effect's key."""
        told = (asked for asked in self.asked if asked.kind == "effect" and asked.answer.decision == "reject")
        return Counter(asked.key for asked in told)

    def touched(self) -> Counter[str]:
        """How often each effect's function was seen to touch the world, by the effect's key."""
        return Counter(str(event["key"]) for event in self._points(POINT))

    def declared(self) -> dict[str, dict[str, Any]]:
        """How each effect that was called is declared (`idempotent`, `probe`), by key."""
        return {str(event["key"]): event for event in self._points("effect.intended")}

    def _points(self, name: str) -> list[dict[str, Any]]:
        return [event for trace in self.traces for event in trace if event.get("name") == name]


class Person(Protocol):
    """Answers a review of a run."""

    def __call__(self, review: Review, job: Job, run: Run) -> tuple[Answer, bool]:
        """The answer, and whether it is a guess."""
        ...


def carry_out(setting: Setting, folder: Path, person: Person, crash: Point | None = None, *, first: int = 0) -> Run:
    """Run the job to its end.

    Args:
        setting: What all runs share.
        folder: The run's folder; made here.
        person: Answers reviews.
        crash: Where a worker is killed.
        first: Which server the first worker comes from.
    """
    run = Run(folder)
    run.place.mkdir(parents=True)
    setting.snapshot.restore()
    started = time.monotonic()
    with setting.records.fresh(folder) as url, Store.open(url) as store:
        money.give(store, setting.credit)
        job, _ = store.enqueue(setting.graph, _placed(setting.input, str(run.place)), key=KEY)
        for number in range(MOST_WORKERS):
            here = crash if crash is not None and crash.worker == number else None
            left = setting.seconds - (time.monotonic() - started)
            server = setting.servers[(number + first) % len(setting.servers)]
            if not _work(run, number, setting, server, here, left, store):
                break
            job = store.job(job.public_id)
            if job.status in ("done", "failed"):
                break
            if run.killed and here is not None:
                continue
            questions = [review for review in store.reviews() if review.status == "open"]
            if not questions:
                run.ended = f"the job is {job.status}, nothing is asked, and no worker goes on with it"
                break
            for review in questions:
                _answer(store, run, review, job, person)
        else:
            run.ended = f"the job has not ended after {MOST_WORKERS} workers"
        _look(run, store, store.job(job.public_id))
        run.paid = money.paid(store, setting.credit)
    run.seconds = time.monotonic() - started
    run.world = manifest([*setting.snapshot.places.items(), (PLACE, run.place)], run=run.place)
    return run


def _work(
    run: Run, number: int, setting: Setting, server: ForkServer, crash: Point | None, seconds: float, store: Store
) -> bool:
    """One worker; returns whether the run goes on."""
    observed = run.folder / f"observed-{number}.jsonl"
    observed.touch()
    order = Order(
        config=str(setting.config),
        store=store.url,
        crash_at=None if crash is None else crash.crash_at,
        folder=str(run.folder),
        place=str(run.place),
        observed=str(observed),
        log=str(run.folder / "worker.log"),
    )
    ended = server.run(order, seconds, lambda: _hurry(store))
    run.traces.append([json.loads(line) for line in observed.read_text(encoding="utf-8").splitlines()])
    if crash is not None and ended.killed and _came_to(run.traces[-1], crash):
        run.killed = True
        return True
    if ended.timed_out:
        run.timed_out = True
        run.ended = f"it was not over after {setting.seconds:g} s; {_last_seen(number, run.traces[-1])}"
        return False
    if ended.code != 0:
        run.ended = f"the worker's process ended with code {ended.code}: {_last_line(run.folder / 'worker.log')}"
        return False
    return True


def _last_seen(number: int, trace: Trace) -> str:
    """Where a worker was heard of last."""
    last = trace[-1] if trace else {}
    words = ":".join(str(last[name]) for name in ("name", "subject", "node") if last.get(name))
    return f"worker {number} was last seen at {words or 'its start'}"


def _hurry(store: Store) -> None:
    """A job that waits for its backoff need not wait here; its failures count as ever."""
    if store.jobs(status="retry"):
        waiting = update(agent_jobs).where(agent_jobs.c.status == "retry")
        now = store.clock.now_ms()
        store.write(lambda connection: connection.execute(waiting.values(next_run_at=now))).result()


def _came_to(trace: Trace, point: Point) -> bool:
    """Whether a worker passed its crash point: another process may have killed it before, such as the kernel."""
    seen = [event for event in trace if event.get("name") == point.name and event.get("subject") == point.subject]
    return len(seen) == point.local


def _answer(store: Store, run: Run, review: Review, job: Job, person: Person) -> None:
    answer, guessed = person(review, job, run)
    extra = {} if answer.value is MISSING else {"value": answer.value}
    store.answer(review.public_id, answer.decision, reason=answer.reason, by=BY, **extra)
    effect = str(review.value["effect"]) if review.kind == "effect" else ""
    key = review.subject if review.kind == "effect" else ""
    run.asked.append(Asked(review.kind, asked(review, str(run.place)), effect, answer, guessed, key))


def _look(run: Run, store: Store, job: Job) -> None:
    place = str(run.place)
    run.status, run.attempts = job.status, job.attempts
    run.state = None if job.result_json is None else json.loads(job.result_json.replace(place, PLACE))
    run.error = None if job.error_json is None else json.loads(job.error_json.replace(place, PLACE))
    run.effects = [_seen(effect, place) for effect in store.effects(job)]


def _seen(effect: Effect, place: str) -> EffectSeen:
    return EffectSeen(
        key=effect.key,
        name=effect.name,
        arguments=effect.arguments_json.replace(place, PLACE),
        state=effect.state,
        calls=effect.calls,
        settled_by=effect.settled_by,
        result=json.loads(effect.result) if effect.result_type == "json" and effect.result else MISSING,
    )


def _placed(value: Any, place: str) -> Any:
    """The input with `{run}` in its texts replaced."""
    return json.loads(json.dumps(value).replace(PLACE, json.dumps(place)[1:-1]))


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1][:300] if lines else "it said nothing"
