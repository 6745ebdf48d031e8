"""The ledger of effects: its states, its fence, its results, and who may settle what."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from everstep.checkpoints import effects, reviews
from everstep.checkpoints.effects import Effect
from everstep.checkpoints.jobs import Job, LostClaim
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import JobStateConflict, ReviewAnswered
from tests.support.record import begin_effect, begin_running, claim

pytestmark = pytest.mark.both_databases


@pytest.fixture
def job(store: Store) -> Job:
    """A running job."""
    store.enqueue("graph", {})
    return begin_running(store)


class Ledger:
    """The ledger as one claim of a job uses it."""

    def __init__(self, store: Store, job: Job) -> None:
        self.store, self.job = store, job
        self.now = store.clock.now_ms()

    def begin(self, key: str = "key") -> tuple[Effect, bool]:
        """Write the intent, or find what is known."""
        return begin_effect(self.store, self.job, key)

    def confirm(self, effect: Effect, result: Any = "ref", by: str = "call") -> Effect:
        """It happened."""
        encoded = effects.encode_result(result)
        return self.store.write(
            lambda c: effects.confirm(
                c, effect, claim_no=self.job.claim_no, result=encoded, settled_by=by, now=self.now
            )
        ).result()

    def reject(self, effect: Effect, by: str = "call") -> Effect:
        """It did not happen."""
        return self.store.write(
            lambda c: effects.reject(
                c, effect, claim_no=self.job.claim_no, settled_by=by, error="refused", now=self.now
            )
        ).result()

    def fail_to_know(self, effect: Effect) -> Effect:
        """Nobody knows."""
        return self.store.write(
            lambda c: effects.fail_to_know(c, effect, claim_no=self.job.claim_no, error="timeout", now=self.now)
        ).result()

    def again(self, effect: Effect) -> Effect:
        """Call once more."""
        return self.store.write(
            lambda c: effects.call_again(c, effect, claim_no=self.job.claim_no, now=self.now)
        ).result()

    def ask(self, effect: Effect) -> reviews.Review:
        """Ask a person."""
        return self.store.write(
            lambda c: reviews.open_for_effect(c, self.job, effect, now=self.now, why="why")
        ).result()


@pytest.fixture
def ledger(store: Store, job: Job) -> Ledger:
    """The ledger of the running job."""
    return Ledger(store, job)


def test_an_intent_is_written_before_the_call(ledger: Ledger, store: Store) -> None:
    """Beginning an effect stores it as intended, with its arguments, and says to call."""
    effect, call_now = ledger.begin()
    assert call_now
    assert (effect.state, effect.calls, effect.claim_no, effect.name) == ("intended", 1, 1, "push")
    assert store.effects(ledger.job) == [effect]


def test_a_confirmed_effect_is_never_called_again(ledger: Ledger) -> None:
    """Beginning a confirmed effect again gives its result and no call."""
    ledger.confirm(ledger.begin()[0], {"ref": "abc"})
    effect, call_now = ledger.begin()
    assert not call_now
    assert effect.value() == {"ref": "abc"}
    assert effect.calls == 1


def test_a_rejected_effect_may_be_called_again(ledger: Ledger) -> None:
    """What surely did not happen is called again, and the calls are counted."""
    ledger.reject(ledger.begin()[0])
    effect, call_now = ledger.begin()
    assert call_now
    assert (effect.state, effect.calls, effect.error, effect.settled_by) == ("intended", 2, None, None)


def test_an_interrupted_effect_is_unknown(ledger: Ledger) -> None:
    """An intent without an outcome is found as unknown and is not called, however often it is asked for."""
    ledger.begin()
    for _ in range(2):
        effect, call_now = ledger.begin()
        assert not call_now
        assert (effect.state, effect.calls) == ("unknown", 1)


def test_an_unknown_effect_can_be_called_again_on_purpose(ledger: Ledger) -> None:
    """With a probe's or provider's assurance an unknown effect goes back to intended and counts the call."""
    unknown = ledger.fail_to_know(ledger.begin()[0])
    assert unknown.error == "timeout"
    assert (ledger.again(unknown).state, ledger.again(store_effect(ledger)).calls) == ("intended", 3)


def store_effect(ledger: Ledger) -> Effect:
    """The job's only effect, as it is in the record."""
    (effect,) = ledger.store.effects(ledger.job)
    return effect


def test_an_outcome_counts_for_the_call_it_was_of(ledger: Ledger) -> None:
    """Who comes back after the effect was begun anew changes nothing: outcomes carry the number of their call."""
    first, _ = ledger.begin()
    ledger.reject(first)
    ledger.begin()
    for late in (ledger.confirm, ledger.reject, ledger.fail_to_know):
        with pytest.raises(LostClaim):
            late(first)
    assert (store_effect(ledger).state, store_effect(ledger).calls) == ("intended", 2)


def test_no_outcome_overwrites_another(ledger: Ledger) -> None:
    """A late caller cannot reject, confirm anew, call again or make unknown what was confirmed."""
    first, _ = ledger.begin()
    ledger.confirm(first, "first")
    for late in (ledger.reject, ledger.fail_to_know, ledger.again, lambda effect: ledger.confirm(effect, "second")):
        with pytest.raises(LostClaim):
            late(first)
    assert store_effect(ledger).value() == "first"


def test_effects_are_told_apart_by_key_across_jobs(ledger: Ledger, store: Store) -> None:
    """Another key is another effect; an effect belongs to one job."""
    store.enqueue("graph", {"n": 2})
    other = Ledger(store, begin_running(store, "b"))
    assert all(called for _, called in (ledger.begin("one"), ledger.begin("two"), other.begin("three")))
    assert [effect.key for effect in store.effects(ledger.job)] == ["one", "two"]
    assert [effect.key for effect in store.effects(other.job)] == ["three"]


def test_no_effect_runs_before_the_input_is_committed(store: Store) -> None:
    """An effect of a job whose input is not yet part of its thread is refused: a crash would feed the input again."""
    store.enqueue("graph", {})
    (job,) = claim(store)
    with pytest.raises(RuntimeError, match="input"):
        Ledger(store, job).begin()
    assert store.effects(job) == []


def test_a_lost_claim_settles_nothing(ledger: Ledger, store: Store, clock: ManualClock) -> None:
    """After a takeover the first worker can neither begin, confirm, reject nor question an effect."""
    effect, _ = ledger.begin()
    clock.advance(1000)
    claim(store, "b")
    for late in (ledger.confirm, ledger.reject, ledger.fail_to_know, ledger.again):
        with pytest.raises(LostClaim):
            late(effect)
    with pytest.raises(LostClaim):
        ledger.begin("another")
    assert store.effects(ledger.job) == [effect]


@pytest.mark.parametrize(
    "value",
    [None, True, 0, 1.5, "text", "é\n", [], {}, [1, {"a": None}], {"a": [1.0, -0.0]}, 2**60, "\x00"],
    ids=repr,
)
def test_plain_results_are_stored_as_readable_json(value: Any) -> None:
    """A result that JSON holds exactly is stored as JSON, and read with the same types."""
    kind, text = effects.encode_result(value)
    assert kind == "json"
    read = restored(kind, text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "value",
    [b"bytes", {1: "a"}, {1, 2}, datetime(2027, 1, 2, tzinfo=UTC), AIMessage("hi"), [b"x", {"a": 1 + 0}]],
    ids=repr,
)
def test_other_results_are_stored_by_langgraphs_serialiser(value: Any) -> None:
    """A result beyond JSON is stored as LangGraph would store it in the state."""
    kind, text = effects.encode_result(value)
    assert kind != "json"
    assert restored(kind, text) == value


def test_a_result_that_is_no_number_is_kept() -> None:
    """NaN, which JSON has not, comes back as NaN."""
    assert math.isnan(restored(*effects.encode_result(math.nan)))


def test_a_result_that_cannot_be_stored_is_refused() -> None:
    """An object nobody can serialise is a TypeError, before anything is written."""
    with pytest.raises(TypeError):
        effects.encode_result(object())


def restored(kind: str, text: str) -> Any:
    """The value as a replay gets it."""
    return Effect(1, "k", 1, "n", "confirmed", 1, 1, "", "", kind, text, None, None, 0, 0).value()


# ---- a person


@pytest.mark.parametrize(("happened", "state"), [(True, "confirmed"), (False, "rejected")])
def test_a_person_settles_an_unknown_effect(ledger: Ledger, store: Store, happened: bool, state: str) -> None:
    """A person says that an unknown effect happened, and with which result, or that it did not."""
    ledger.fail_to_know(ledger.begin()[0])
    effect = store.write(
        lambda c: effects.settle_by_person(c, "key", happened=happened, result={"by": "hand"}, now=0)
    ).result()
    assert (effect.state, effect.settled_by) == (state, "person")
    assert effect.value() == ({"by": "hand"} if happened else None)


@pytest.mark.parametrize("state", ["intended", "confirmed", "rejected"])
def test_a_person_cannot_unsettle_what_is_known(ledger: Ledger, store: Store, state: str) -> None:
    """An effect that is under way, or whose outcome is known, is not for a person to decide."""
    effect, _ = ledger.begin()
    if state == "confirmed":
        ledger.confirm(effect)
    if state == "rejected":
        ledger.reject(effect)
    for happened in (True, False):
        with pytest.raises(JobStateConflict, match=state):
            store.write(lambda c, h=happened: effects.settle_by_person(c, "key", happened=h, result=1, now=0)).result()
    assert store_effect(ledger).state == state


@pytest.mark.parametrize("found_out", ["confirm", "reject", "again"])
def test_an_effect_that_was_found_out_takes_its_question_back(ledger: Ledger, store: Store, found_out: str) -> None:
    """When a probe or another call settles an unknown effect its question closes; a late answer changes nothing."""
    unknown = ledger.fail_to_know(ledger.begin()[0])
    asked = ledger.ask(unknown)
    {"confirm": ledger.confirm, "reject": ledger.reject, "again": ledger.again}[found_out](unknown)
    assert store.reviews() == []
    before = store_effect(ledger)
    with pytest.raises(ReviewAnswered, match="settled without it"):
        store.answer(asked.public_id, "reject")
    assert store_effect(ledger) == before


def test_an_effect_in_doubt_again_is_asked_about_again(ledger: Ledger, store: Store) -> None:
    """A second doubt about one effect is a new question; the first one's answer is not used for it."""
    first = ledger.ask(ledger.fail_to_know(ledger.begin()[0]))
    store.answer(first.public_id, "reject")
    effect, call_now = ledger.begin()
    assert call_now
    second = ledger.ask(ledger.fail_to_know(effect))
    assert second.public_id != first.public_id
    assert [review.public_id for review in store.reviews()] == [second.public_id]


def test_the_question_shows_what_a_person_needs(ledger: Ledger) -> None:
    """The question about an effect names it, its arguments, when it was called and what went wrong."""
    value = ledger.ask(ledger.fail_to_know(ledger.begin()[0])).value
    assert value["effect"] == "push"
    assert value["arguments"] == {"to": "main"}
    assert value["error"] == "timeout"
    assert value["called_at"].endswith("Z")
