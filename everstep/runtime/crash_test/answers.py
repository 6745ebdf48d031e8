"""What a person would answer: as the user says, the same in every run; of a crash's effects, what the tester knows.

Answers are given as a list, in the order questions come, or as an object: by the question's words, the action's name,
or the node that asks. Each is a decision (`"approve"`, or `{"decision": …, "value": …, "reason": …}`), or else the
value the graph is resumed with. What is not answered is approved.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from everstep.checkpoints.answers import DECISIONS, MISSING, choices
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Review
from everstep.errors import PayloadInvalid, ReviewAnswerInvalid

BY = "crash-test"


@dataclass(frozen=True)
class Answer:
    """A decision, and the value and reason that go with it."""

    decision: str
    value: Any = MISSING
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As JSON data."""
        value = {} if self.value is MISSING else {"value": self.value}
        return {"decision": self.decision, **value, **({"reason": self.reason} if self.reason else {})}


def asked(review: Review, run: str) -> str:
    """What a review asks, in a form that is the same in every run."""
    return json.dumps(review.value, sort_keys=True).replace(run, "{run}")


class Script:
    """The user's answers, and what was answered in the uninterrupted run.

    Args:
        given: A list or an object, as the module says; None: approve everything.

    Raises:
        PayloadInvalid: It is neither.
    """

    def __init__(self, given: Any = None) -> None:
        if not isinstance(given, list | dict | None):
            raise PayloadInvalid(
                "--answers is neither a list nor an object",
                next_step='give ["approve", {"decision": "edit", "value": …}] in the order of the questions, or an '
                "object that names the question, the action or the node for each answer",
            )
        self._given = cast("list[Any] | dict[str, Any] | None", given)
        self._in_order: list[Answer] = []
        self._by_question: dict[str, list[Answer]] = defaultdict(list[Answer])
        self._used: set[str] = set()

    def first(self, review: Review, job: Job, run: str) -> Answer:
        """The answer to a question of the first uninterrupted run; the later runs repeat it.

        Raises:
            ReviewAnswerInvalid: The question takes no plain approval, and no answer was given.
        """
        answer = self._look_up(review, job)
        self._in_order.append(answer)
        self._by_question[asked(review, run)].append(answer)
        return answer

    def unused(self) -> list[str]:
        """Names in the user's object that no question had, and the number of answers of a list that were left over."""
        if isinstance(self._given, dict):
            return [name for name in self._given if name not in self._used]
        left = len(self._given or ()) - len(self._in_order)
        return [f"{left} at the end of the list"] if left > 0 else []

    def _look_up(self, review: Review, job: Job) -> Answer:
        if isinstance(self._given, list):
            number = len(self._in_order)
            if number < len(self._given):
                return _answer(self._given[number])
        elif self._given:
            for name in _names(review, job):
                if name in self._given:
                    self._used.add(name)
                    return _answer(self._given[name])
        if "approve" not in choices(review.kind, review.value):
            raise ReviewAnswerInvalid(
                f"the graph asks what cannot be approved: {json.dumps(review.value)[:200]}",
                next_step=f"give --answers; it takes: {', '.join(choices(review.kind, review.value))}",
            )
        return Answer("approve")


class Replay:
    """The answers of the first run, given once more to one run's questions."""

    def __init__(self, script: Script) -> None:
        self._in_order = [*script._in_order]  # pyright: ignore[reportPrivateUsage]
        self._left = {
            question: [*answers]
            for question, answers in script._by_question.items()  # pyright: ignore[reportPrivateUsage]
        }
        self._number = 0

    def answer(self, review: Review, run: str) -> Answer:
        """The answer that this question got in the first run; of a new one, that of the question at its place."""
        self._number += 1
        if left := self._left.get(asked(review, run)):
            return left.pop(0)
        return self._in_order[self._number - 1] if self._number <= len(self._in_order) else Answer("approve")


def _answer(given: Any) -> Answer:
    if isinstance(given, str) and given in DECISIONS:
        return Answer(given)
    if isinstance(given, dict) and cast("dict[str, Any]", given).get("decision") in DECISIONS:
        told = cast("dict[str, Any]", given)
        return Answer(str(told["decision"]), told.get("value", MISSING), told.get("reason"))
    return Answer("approve", given)


def _names(review: Review, job: Job) -> list[str]:
    """What a question may be called by."""
    value, names = review.value, list[str]()
    if isinstance(value, str):
        names.append(value)
    if isinstance(value, Mapping):
        told = cast("Mapping[str, Any]", value)
        actions = cast("list[Any]", told.get("action_requests") or [told.get("action_request")])
        for one in (told, *actions):
            if isinstance(one, Mapping):
                words = cast("Mapping[str, Any]", one)
                names += [str(words[name]) for name in ("question", "description", "name", "action") if name in words]
    names.append(json.dumps(value))
    return [*names, *(job.node or "").split(", ")]
