"""A state machine over paid tasks: whoever tells what, in whatever order, money is taken once or not at all.

Two processes submit, poll and repair with what they saw of the tasks some time ago; the provider tells anything, twice,
late, out of order and contradicting itself; transactions are rolled back when they have done everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from sqlalchemy import Connection, select

from everstep.checkpoints import jobs, ledger, provider_events, provider_tasks, signals
from everstep.checkpoints.provider_status import FINAL, ProviderEvent, ProviderStatus
from everstep.checkpoints.provider_tasks import ProviderTask
from everstep.checkpoints.schema import metadata
from everstep.checkpoints.store import Store
from everstep.errors import (
    EverstepError,
    GenerationRefused,
    GrantConflict,
    InsufficientCredit,
    ProviderTaskConflict,
    SubmissionConflict,
)
from tests.support.machines import RecordMachine, machine_settings
from tests.support.paid import CURRENCY, OWNER, PROVIDER, price

ACTORS = ("a", "b")
TABLES = ("provider_tasks", "provider_events", "credit_accounts", "ledger", "signals", "evidence")
IDS = ("film-1", "film-2", "film-3", "film-4", "film-5")

actors = st.sampled_from(ACTORS)
crashes = st.sampled_from([False, False, False, True])
ids = st.sampled_from([None, *IDS])
statuses = st.builds(
    ProviderStatus,
    st.sampled_from(["pending", "succeeded", "failed"]),
    provider_task_id=ids,
    progress=st.sampled_from([None, 10, 90]),
)


class Crash(Exception):
    """The process dies before the commit."""


class PaidLife(RecordMachine):
    """Two keys, three generations, a provider that says anything."""

    def __init__(self) -> None:
        super().__init__()
        self.stores = {name: self.opened.enter_context(self._another()) for name in ACTORS}
        self.job = self.store.enqueue("graph", {}).job.public_id
        self.granted: dict[str, int] = {}
        self.known: dict[int, ProviderTask] = {}
        self.seen: list[ProviderTask] = []
        self.polls: list[tuple[str, ProviderTask]] = []

    def _another(self) -> Store:
        return Store.open(self.store.url, clock=self.clock)

    def teardown(self) -> None:
        try:
            self.every_task_ends()
        finally:
            self.opened.close()

    # ---- rules

    @initialize(amount=st.sampled_from([5, 12]))
    def begin(self, amount: int) -> None:
        """There is some credit, and three tasks on their way."""
        self.grant("a", "first", amount, False)
        for key, price_of in (("cat", 5), ("dog", 0), ("owl", 0)):
            self.create("a", key, 1, "x", price_of, False)
            self.move("a", self.seen[-1], "submitting", self.job, False)

    @rule(actor=actors, key=st.sampled_from(["first", "second"]), amount=st.sampled_from([5, 12]), crash=crashes)
    def grant(self, actor: str, key: str, amount: int, crash: bool) -> None:
        """Credit is given, once for each key."""
        before = self.granted.get(key)
        given = self.act(
            actor,
            crash,
            lambda c, now: ledger.grant(c, OWNER, CURRENCY, amount, reason="x", key=key, actor=actor, now=now),
        )
        if before is not None:
            assert isinstance(given, GrantConflict) if before != amount else crash or not given[1]
        elif not crash:
            assert given[1]
            self.granted[key] = amount

    @rule(
        actor=actors,
        key=st.sampled_from(["cat", "dog", "owl", "fox"]),
        generation=st.integers(1, 3),
        request=st.sampled_from(["x", "x", "x", "y"]),
        amount=st.sampled_from([0, 5, 7]),
        crash=crashes,
    )
    def create(self, actor: str, key: str, generation: int, request: str, amount: int, crash: bool) -> None:
        """Somebody comes with a key: the task is made and paid, found, or refused."""
        tasks = {(task.submission_key, task.generation): task for task in self.known.values()}
        before, there = tasks.get((key, generation - 1)), tasks.get((key, generation))
        expected: Any = None
        if generation > 1 and (before is None or before.state != "failed"):
            expected = GenerationRefused
        elif any(one is not None and one.request != request for one in (before, there)):
            expected = SubmissionConflict
        elif there is None and amount > self.balance():
            expected = InsufficientCredit
        asked: dict[str, Any] = {"owner": OWNER, "submission_key": key, "generation": generation, "request": request}
        asked |= {"job": self.job if actor == "a" else "another", "provider": PROVIDER, "quote": price(amount)}
        made = self.act(actor, crash, lambda c, now: provider_tasks.create(c, **asked, actor=actor, now=now))
        if expected is not None:
            assert isinstance(made, expected)
        elif not crash:
            assert made[1] == (there is None)
            assert there is None or made[0] == there
            self.see(made[0])

    @precondition(lambda self: self.seen)
    @rule(
        actor=actors,
        task=st.data(),
        how=st.sampled_from(["submitting", "submitting", "unknown", "not_accepted"]),
        crash=crashes,
    )
    def submitter_moves(self, actor: str, task: st.DataObject, how: str, crash: bool) -> None:
        """A job submits, loses the answer, or is told that the provider surely has nothing."""
        self.move(actor, self.draw(task), how, self.job if actor == "a" else "another", crash)

    @precondition(lambda self: self.seen)
    @rule(actor=actors, task=st.data(), provider_task_id=st.sampled_from(IDS), crash=crashes)
    def accepted(self, actor: str, task: st.DataObject, provider_task_id: str, crash: bool) -> None:
        """The submit is answered; or a person links a task, perhaps to another's."""
        drawn = self.draw(task)
        before = self.known[drawn.id]
        taken = {one.provider_task_id: one.id for one in self.known.values()}
        after = self.act(
            actor,
            crash,
            lambda c, now: provider_tasks.accepted(c, drawn, provider_task_id, now=now, next_poll_at=now + 2000),
        )
        if before.provider_task_id is None and taken.get(provider_task_id, before.id) != before.id:
            assert isinstance(after, ProviderTaskConflict)
        elif not crash:
            assert after.provider_task_id == before.provider_task_id or before.provider_task_id is None
            assert after.state not in ("created", "submitting", "submission_unknown")

    @precondition(lambda self: self.seen)
    @rule(
        actor=actors,
        task=st.data(),
        status=statuses,
        source=st.sampled_from(["poll", "probe", "admin"]),
        crash=crashes,
    )
    def told(self, actor: str, task: st.DataObject, status: ProviderStatus, source: str, crash: bool) -> None:
        """A poll, a probe or a person says what the provider says."""
        drawn = self.draw(task)
        before = self.known[drawn.id]
        answer = self.act(
            actor,
            crash,
            lambda c, now: provider_tasks.reconcile(c, drawn, status, source=source, actor=actor, now=now),
        )
        if crash:
            return
        if before.is_final and status.is_final and status.state != before.state:
            assert answer.contradiction
        elif status.is_final and not before.is_final and not answer.contradiction:
            named = status.provider_task_id is not None or before.provider_task_id is not None
            assert answer.changed == (named or before.state != "created")
            assert answer.task.is_final == answer.changed

    @rule(
        actor=actors,
        event_id=st.integers(0, 9),
        status=statuses,
        by_key=st.booleans(),
        task=st.data(),
        crash=crashes,
    )
    def event(
        self, actor: str, event_id: int, status: ProviderStatus, by_key: bool, task: st.DataObject, crash: bool
    ) -> None:
        """A webhook comes, perhaps again, perhaps before anybody knows its task."""
        key = self.draw(task).provider_key if by_key and self.seen else None
        came = ProviderEvent(f"event-{event_id}", status, status.provider_task_id, key)
        known = self.events()
        taken = self.act(actor, crash, lambda c, now: provider_events.take(c, PROVIDER, came, now=now))
        if not crash:
            assert taken.duplicate == (came.event_id in known)

    @precondition(lambda self: self.events())
    @rule(actor=actors, event=st.data(), crash=crashes)
    def replay(self, actor: str, event: st.DataObject, crash: bool) -> None:
        """A person has an event told again."""
        found = self.events()
        drawn = found[event.draw(st.sampled_from(sorted(found)))]
        self.act(actor, crash, lambda c, now: provider_events.replay(c, drawn, actor=actor, now=now))

    @precondition(lambda self: self.seen)
    @rule(actor=actors, task=st.data(), crash=crashes)
    def withdraw(self, actor: str, task: st.DataObject, crash: bool) -> None:
        """Somebody gives up what was not submitted."""
        drawn = self.draw(task)
        before = self.known[drawn.id]
        after = self.act(
            actor, crash, lambda c, now: provider_tasks.withdraw(c, drawn, error="given up", actor=actor, now=now)
        )
        if before.state != "created":
            assert isinstance(after, ProviderTaskConflict)

    @rule(actor=actors, crash=crashes)
    def take_due(self, actor: str, crash: bool) -> None:
        """A poller takes what is due: nothing that another has under a living lease."""
        now = self.clock.now_ms()
        living = {one.id for one in self.known.values() if one.lease_until is not None and one.lease_until > now}
        taken = self.act(
            actor,
            crash,
            lambda c, now: provider_tasks.take_due(c, PROVIDER, holder=actor, now=now, lease_ms=5000, limit=2),
        )
        if not crash:
            assert not living & {task.id for task in taken}
            assert all(task.state == "pending" for task in taken)
            self.polls += [(actor, task) for task in taken]

    @precondition(lambda self: self.polls)
    @rule(poll=st.data(), failure=st.sampled_from([None, "503"]), crash=crashes)
    def polled(self, poll: st.DataObject, failure: str | None, crash: bool) -> None:
        """A poller has asked, perhaps when its lease was long over."""
        actor, task = self.polls.pop(poll.draw(st.integers(0, len(self.polls) - 1)))
        before = self.known[task.id]
        mine = (before.leased_by, before.polls) == (actor, task.polls)
        done = self.act(
            actor,
            crash,
            lambda c, now: provider_tasks.polled(
                c, task, holder=actor, now=now, next_poll_at=now + 3000, failure=failure
            ),
        )
        if not crash:
            assert done == mine

    @rule(jump=st.sampled_from([1, 2000, 5000, 3_600_000, -4000]))
    def time_passes(self, jump: int) -> None:
        """The clock moves, mostly forward."""
        self.clock.advance(jump)

    @precondition(lambda self: self.store.job(self.job).status == "pending")
    @rule(cancelled=st.booleans())
    def the_job_ends(self, cancelled: bool) -> None:
        """Whoever comes next with its key may submit what it did not; a person who cancels it has that refunded."""
        before = self.known
        if cancelled:
            self.store.cancel(self.job)
        else:
            row, now = self.store.job(self.job).id, self.clock.now_ms()
            ended = {"now": now, "actor": "test", "reason": "used up"}
            self.store.write(lambda c: jobs.fail(c, jobs.lock(c, row), **ended)).result()
        self.look()
        for task in before.values():
            unsent = task.state in ("created", "submitting") and task.job == self.job
            assert self.known[task.id].state == ("failed" if cancelled and unsent else task.state)

    # ---- what must hold after every step

    @invariant()
    def money_is_right(self) -> None:
        """For each task nothing or its price is taken, by one charge and one refund at most; balances add up."""
        entries = self.store.read(lambda c: ledger.entries(c, limit=1000))
        of_task: dict[str, list[tuple[str, int]]] = {}
        for entry in reversed(entries):
            if entry.task is not None:
                of_task.setdefault(entry.task, []).append((entry.kind, entry.amount))
        for task in self.known.values():
            paid = [("charge", -task.amount)] if task.amount else []
            back = [("refund", task.amount)] if task.amount and task.state == "failed" else []
            assert of_task.get(task.public_id, []) == paid + back, task.state
        assert self.store.read(ledger.mismatches) == []
        assert self.store.read(lambda c: ledger.balance(c, OWNER, CURRENCY)) == self.balance() >= 0

    @invariant()
    def tasks_are_whole(self) -> None:
        """Where a task is, what it has, and whether anybody asks for it, fit together."""
        for task in self.known.values():
            assert (task.next_poll_at is not None) == (task.state == "pending")
            assert task.leased_by is None or task.state == "pending"
            assert (task.leased_by is None) == (task.lease_until is None)
            assert (task.submitted_at is None) == (task.provider_task_id is None)
            assert task.provider_task_id is None or task.state in ("pending", *FINAL)
            assert task.provider_task_id is not None or task.state != "pending"
            assert (task.finished_at is None, task.settled_by is None) == (not task.is_final, not task.is_final)
            signal = self.store.read(lambda c, task=task: signals.find(c, OWNER, task.signal))
            assert (signal.payload if signal else None) == ({"state": task.state} if task.is_final else None)

    @invariant()
    def no_event_is_forgotten(self) -> None:
        """None is parked that a task answers to."""
        by_id = {task.provider_task_id for task in self.known.values()} - {None}
        by_key = {
            task.provider_key for task in self.known.values() if task.state not in ("created", "submitting")
        }  # fmt: skip
        for event in self.events().values():
            if event.state == "parked":
                assert event.provider_task_id not in by_id
                assert event.provider_key not in by_key

    # ---- what the rules share

    def act(self, actor: str, crash: bool, operation: Callable[[Connection, int], Any]) -> Any:
        """What an actor's transaction gives, or the error; if it crashes, nothing of it is left."""
        now, before = self.clock.now_ms(), self.dump()

        def whole(connection: Connection) -> Any:
            result = operation(connection, now)
            if crash:
                raise Crash
            return result

        try:
            result = self.stores[actor].write(whole).result()
        except (EverstepError, Crash) as error:
            assert self.dump() == before
            return error
        self.look()
        return result

    def move(self, actor: str, task: ProviderTask, how: str, job: str, crash: bool) -> None:
        """A move of a submitter, and what it must come to."""
        before = self.known[task.id]
        more = {"job": job} if how == "submitting" else {}
        may = before.job == job or self.store.job(self.job).status == "failed" or before.job != self.job
        after = self.act(actor, crash, lambda c, now: getattr(provider_tasks, how)(c, task, now=now, **more))
        if crash:
            return
        to = {
            "submitting": {"created": "submitting"} if may else {},
            "unknown": dict.fromkeys(("created", "submitting"), "submission_unknown"),
            "not_accepted": {"submitting": "created", "submission_unknown": "created"},
        }[how].get(before.state, before.state)
        assert after.state == to or (how == "unknown" and to == "submission_unknown" and after.settled_by == "webhook")
        self.see(after)

    def look(self) -> None:
        """Every task as it is now; what may never change has not."""
        rows = self.store.read(lambda c: provider_tasks.listed(c))
        for task in rows:
            before = self.known.get(task.id)
            if before is None:
                continue
            assert (task.amount, task.request, task.provider_key) == (
                before.amount,
                before.request,
                before.provider_key,
            )
            assert before.provider_task_id in (None, task.provider_task_id)
            assert (task.progress or 0) >= (before.progress or 0)
            if before.is_final:
                learned = {name: getattr(task, name) for name in ("provider_task_id", "submitted_at", "updated_at")}
                assert replace(before, **learned) == task
        assert {task.id for task in rows} >= set(self.known)
        self.known = {task.id: task for task in rows}

    def see(self, task: ProviderTask) -> None:
        """Somebody has this view of a task from now on."""
        self.seen.append(task)

    def draw(self, data: st.DataObject) -> ProviderTask:
        """A task as somebody saw it some time ago."""
        return self.seen[-1 - data.draw(st.integers(0, min(len(self.seen), 8) - 1))]

    def balance(self) -> int:
        """What the owner must have."""
        spent = sum(task.amount for task in self.known.values() if task.state != "failed")
        return sum(self.granted.values()) - spent

    def events(self) -> dict[str, provider_events.StoredEvent]:
        """The events that are kept, by the provider's id."""
        return {one.event_id: one for one in self.store.read(lambda c: provider_events.listed(c))}

    def dump(self) -> Any:
        """Every row that a transaction here may touch."""
        tables = [metadata.tables[name] for name in TABLES]
        return self.store.read(lambda c: [c.execute(select(one).order_by(one.c.id)).all() for one in tables])

    def every_task_ends(self) -> None:
        """Whatever happened, a person can bring every task to its end, and has then paid for what succeeded."""
        for task in list(self.known.values()):
            now = self.clock.now_ms()
            if task.state == "created":
                write = self.store.write(
                    lambda c, task=task, now=now: provider_tasks.withdraw(c, task, error="over", actor="ann", now=now)
                )
                assert write.result().state == "failed"
            elif not task.is_final:
                told = self.store.write(
                    lambda c, task=task, now=now: provider_tasks.reconcile(
                        c, task, ProviderStatus("failed"), source="admin", actor="ann", now=now
                    )
                )
                assert told.result().changed
        self.look()
        self.money_is_right()
        paid = sum(task.amount for task in self.known.values() if task.state == "succeeded")
        assert self.balance() == sum(self.granted.values()) - paid


class PaidLifeOnPostgres(PaidLife):
    """The same on the other database."""

    database = "postgres"


TestPaidLife = PaidLife.TestCase
TestPaidLife.settings = machine_settings(25, 50)
TestPaidLifeOnPostgres = PaidLifeOnPostgres.TestCase
TestPaidLifeOnPostgres.settings = machine_settings(5, 50)
