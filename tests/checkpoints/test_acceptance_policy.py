"""What an acceptance may say, and what becomes of a review about it while others are open."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everstep.checkpoints import answers
from everstep.checkpoints.policy import Acceptance, JobPolicy, feedback
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.store import Store
from everstep.errors import PayloadInvalid
from everstep.runtime.settle import Outcome
from tests.support.record import begin_running, settled

FAILED = {"code": "acceptance_failed", "feedback": {"channel": "messages", "form": "message"}}


def test_an_acceptance_comes_back_from_the_record_as_it_was(store: Store) -> None:
    """Stored with the job, every part of it is the same."""
    acceptance = Acceptance(("a", "b"), "{x}", 1.5, 0, "notes", ("*.md",), "abc")
    job = store.enqueue("graph", {}, policy=JobPolicy(acceptance=acceptance)).job
    assert Acceptance.of(job.acceptance) == acceptance
    assert Acceptance.of(Acceptance(high_risk=()).as_dict()).high_risk == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"returns": -1},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"verify": ("true", " ")},
        {"verify": ('"',)},
        {"verify": ("curl https://user:pass@host",)},
        {"high_risk": ("*.md",)},
        {"base": ""},
    ],
)
def test_an_acceptance_that_cannot_hold_is_refused(wrong: dict[str, Any]) -> None:
    """What would check nothing, never end, or put a credential into the record, is an error when it is made."""
    with pytest.raises(PayloadInvalid) as refused:
        Acceptance(**wrong)
    assert refused.value.next_step or "at least 0" in refused.value.message
    assert "user:pass" not in str(refused.value)


def test_feedback_has_the_form_of_its_channel() -> None:
    """A text becomes a user's message, a list of one, or stays as it is."""
    assert feedback("messages", "message", "x") == {"messages": [{"role": "user", "content": "x"}]}
    assert feedback("notes", "list", "x") == {"notes": ["x"]}
    assert feedback("note", "text", "x") == {"note": "x"}


def test_respond_is_offered_only_where_words_can_go() -> None:
    """A review whose graph cannot take words is approved or rejected."""
    assert list(answers.choices("policy", FAILED)) == ["approve", "respond", "reject"]
    for value in ({"code": "acceptance_failed"}, None, "text", {"feedback": None}):
        assert list(answers.choices("policy", value)) == ["approve", "reject"]


@pytest.mark.both_databases
def test_words_given_while_another_question_is_open_are_kept(store: Store) -> None:
    """Whether the job goes on at all is still asked; when it does, the words are what its graph is fed."""
    store.enqueue("graph", {})
    other = Question("fingerprint", "digest", {"question": "changed?"})
    settled(store, begin_running(store), Outcome("review", questions=[Question("policy", "x", FAILED), other]))
    policy, fingerprint = store.reviews()
    _, job = store.answer(policy.public_id, "respond", value="do it")
    assert (job.status, job.input_applied, job.returns) == ("review", 0, 1)
    _, job = store.answer(fingerprint.public_id, "approve")
    assert job.status == "pending"
    assert job.next_input == {"messages": [{"role": "user", "content": "do it"}]}


@pytest.mark.both_databases
def test_words_hold_no_credential(store: Store) -> None:
    """What a person writes into the reason is kept from the state as what a command prints is."""
    store.enqueue("graph", {})
    settled(store, begin_running(store), Outcome("review", questions=[Question("policy", "x", FAILED)]))
    _, job = store.answer(store.reviews()[0].public_id, "respond", reason="use ghp_" + "a1" * 18)
    assert json.loads(job.next_input_json or "")["messages"][0]["content"] == "use ***"
