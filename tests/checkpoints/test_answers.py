"""What a person's decision becomes for the graph that asked, in each of the three shapes that are read."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.checkpoints.answers import DECISIONS, MISSING, choices, resume_value
from everstep.errors import ReviewAnswerInvalid


def middleware(*actions: str, **allowed: list[str]) -> dict[str, Any]:
    """A request of LangChain's human-in-the-loop middleware."""
    return {
        "action_requests": [{"name": name, "args": {"path": f"/{name}"}, "description": "?"} for name in actions],
        "review_configs": [
            {"action_name": name, "allowed_decisions": allowed.get(name, list(DECISIONS))} for name in actions
        ],
    }


def inbox(**flags: bool) -> list[dict[str, Any]]:
    """A request of Agent Inbox."""
    return [{"action_request": {"action": "mail", "args": {"to": "ann"}}, "config": flags, "description": "?"}]


# ---- a graph's own interrupt


@pytest.mark.parametrize("value", [None, {}, 0, "", False, [], "yes", {"a": 1}, [1, 2], 1.5])
@pytest.mark.parametrize("decision", DECISIONS)
def test_a_plain_question_gets_the_plain_value(decision: str, value: Any) -> None:
    """Whatever value is given, also an empty one, is what `interrupt()` returns, under every decision."""
    got = resume_value("what?", decision, value, None)
    assert got == value
    assert type(got) is type(value)


def test_a_plain_question_without_a_value_gets_yes_or_no() -> None:
    """Approved without a value is True, rejected is False; to edit or respond a value is needed."""
    assert resume_value({"question": "?"}, "approve", MISSING, None) is True
    assert resume_value({"question": "?"}, "reject", MISSING, "no") is False
    for decision in ("edit", "respond"):
        with pytest.raises(ReviewAnswerInvalid, match="needs a value"):
            resume_value(["?"], decision, MISSING, None)


# ---- LangChain's middleware


def test_a_request_is_answered_by_decisions() -> None:
    """Each decision takes the form the middleware reads."""
    asked = middleware("delete")
    assert resume_value(asked, "approve", MISSING, None) == {"decisions": [{"type": "approve"}]}
    assert resume_value(asked, "reject", MISSING, "too many") == {
        "decisions": [{"type": "reject", "message": "too many"}]
    }
    assert resume_value(asked, "reject", MISSING, None) == {"decisions": [{"type": "reject"}]}
    assert resume_value(asked, "respond", "look first", None) == {
        "decisions": [{"type": "respond", "message": "look first"}]
    }
    assert resume_value(asked, "edit", {"path": "/b"}, None) == {
        "decisions": [{"type": "edit", "edited_action": {"name": "delete", "args": {"path": "/b"}}}]
    }
    whole = {"name": "move", "args": {"path": "/b"}}
    assert resume_value(asked, "edit", whole, None) == {"decisions": [{"type": "edit", "edited_action": whole}]}


def test_one_decision_counts_for_every_action() -> None:
    """Approving or rejecting a request of several actions does so for each."""
    assert resume_value(middleware("a", "b"), "approve", MISSING, None) == {"decisions": [{"type": "approve"}] * 2}


def test_only_the_decisions_an_action_allows_are_taken() -> None:
    """`allowed_decisions` is honoured, in what is offered and in what is taken."""
    asked = middleware("delete", delete=["approve", "reject"])
    assert set(choices("interrupt", asked)) == {"approve", "reject"}
    with pytest.raises(ReviewAnswerInvalid):
        resume_value(asked, "edit", {"path": "/b"}, None)


def test_several_actions_can_be_decided_one_by_one() -> None:
    """A list of decisions is passed on, one for each action in order, of a type that action takes."""
    asked = middleware("a", "b", a=["approve"], b=["edit", "reject"])
    edit = {"type": "edit", "edited_action": {"name": "b", "args": {}}}
    for second in (edit, {"type": "reject", "message": "no"}):
        answer = {"decisions": [{"type": "approve"}, second]}
        assert resume_value(asked, "approve", answer, None) == answer


@pytest.mark.parametrize(
    "decisions",
    [
        [{"type": "approve"}],
        [{"type": "approve"}] * 3,
        [{"type": "approve"}, {"type": "approve"}],
        [{"type": "reject"}, {"type": "reject"}],
        [{"type": "approve"}, {"type": "edit"}],
        [{"type": "approve"}, "reject"],
        [{"type": "approve"}, {}],
        "approve",
        None,
    ],
)
def test_decisions_that_do_not_fit_are_refused(decisions: Any) -> None:
    """Too few, too many, of a type an action does not take, or of no form: refused before the graph sees them."""
    asked = middleware("a", "b", a=["approve"], b=["edit", "reject"])
    with pytest.raises(ReviewAnswerInvalid) as refused:
        resume_value(asked, "approve", {"decisions": decisions}, None)
    assert refused.value.next_step


def test_one_decision_that_not_every_action_takes_is_refused() -> None:
    """A single decision must be allowed for each action; the refusal says how to decide them one by one."""
    asked = middleware("a", "b", a=["approve"], b=["approve", "reject"])
    with pytest.raises(ReviewAnswerInvalid) as refused:
        resume_value(asked, "reject", MISSING, None)
    assert "decisions" in refused.value.next_step


@pytest.mark.parametrize("answer", [MISSING, "text", [1]])
def test_an_edit_needs_arguments(answer: Any) -> None:
    """An edit without an object of arguments is refused, and so is one of several actions at once."""
    with pytest.raises(ReviewAnswerInvalid):
        resume_value(middleware("a"), "edit", answer, None)
    with pytest.raises(ReviewAnswerInvalid):
        resume_value(middleware("a", "b"), "edit", {"path": "/"}, None)


def test_the_digest_of_what_was_asked_goes_back_with_the_answer() -> None:
    """A request that carries a digest of its arguments gets it back, so that the node can tell what was approved."""
    asked = {**middleware("a"), "argument_digest": "abc"}
    assert resume_value(asked, "approve", MISSING, None)["argument_digest"] == "abc"
    forged = {"decisions": [{"type": "approve"}], "argument_digest": "other"}
    assert resume_value(asked, "approve", forged, None)["argument_digest"] == "abc"


# ---- Agent Inbox


@pytest.mark.parametrize("wrapped", [True, False])
def test_an_inbox_request_is_answered_in_its_words(wrapped: bool) -> None:
    """Accept, edit, response and ignore, in a list of one, as Agent Inbox answers."""
    asked: Any = inbox() if wrapped else inbox()[0]
    assert resume_value(asked, "approve", MISSING, None) == [{"type": "accept", "args": None}]
    assert resume_value(asked, "edit", {"action": "mail", "args": {"to": "bob"}}, None) == [
        {"type": "edit", "args": {"action": "mail", "args": {"to": "bob"}}}
    ]
    assert resume_value(asked, "respond", "later", None) == [{"type": "response", "args": "later"}]
    assert resume_value(asked, "reject", MISSING, "no") == [{"type": "ignore", "args": "no"}]
    with pytest.raises(ReviewAnswerInvalid):
        resume_value(asked, "respond", MISSING, None)


def test_an_inbox_request_takes_only_what_its_config_allows() -> None:
    """The `allow_…` flags of Agent Inbox are honoured."""
    asked = inbox(allow_accept=True, allow_edit=False, allow_respond=False, allow_ignore=True)
    assert set(choices("interrupt", asked)) == {"approve", "reject"}
    with pytest.raises(ReviewAnswerInvalid):
        resume_value(asked, "respond", "text", None)


# ---- other kinds


@pytest.mark.parametrize("kind", ["effect", "error", "fingerprint", "breakpoint"])
def test_other_reviews_take_yes_or_no(kind: str) -> None:
    """Reviews that no graph asked for are approved or rejected, and each choice says what it would do."""
    offered = choices(kind, {"question": "?"})
    assert set(offered) == {"approve", "reject"}
    assert all(offered.values())
