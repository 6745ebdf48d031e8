"""What a run with a crash must have in common with the uninterrupted ones, and where it does not."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

from everstep.checkpoints.answers import MISSING
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Review
from everstep.runtime.crash_test import money, world
from everstep.runtime.crash_test.answers import Answer, Replay
from everstep.runtime.crash_test.differences import differences, patterns
from everstep.runtime.crash_test.one_run import EffectSeen, Run
from everstep.runtime.crash_test.points import Point

Outcome = Literal["held", "asks", "differs", "hung", "not reached"]


@dataclass(frozen=True)
class Reference:
    """Uninterrupted runs, and what differs between them by itself.

    Attributes:
        run: The first, which everything is compared with.
        again: The others.
    """

    run: Run
    again: list[Run]

    @property
    def unstable_state(self) -> frozenset[str]:
        """Patterns of places in the state."""
        return frozenset[str]().union(*(patterns(differences(self.run.state, other.state)) for other in self.again))

    @property
    def unstable_world(self) -> list[str]:
        """Files."""
        return world.unstable(self.run.world, [other.world for other in self.again])

    @property
    def stable_questions(self) -> bool:
        """Whether all were asked the same."""
        return all(_questions(other) == _questions(self.run) for other in self.again)

    def touches_of(self, effect: EffectSeen) -> int:
        """How often the function of the same effect touched the world in the uninterrupted run."""
        touched = self.run.touched()
        for seen in self.run.effects:
            if (seen.name, seen.arguments) == (effect.name, effect.arguments):
                return touched[seen.key]
        return 0

    def result_of(self, effect: EffectSeen | None) -> Any:
        """What the same effect returned in the uninterrupted run; `MISSING` if that is not known, or not JSON."""
        for seen in self.run.effects:
            if effect is not None and (seen.name, seen.arguments) == (effect.name, effect.arguments):
                return seen.result
        return MISSING


@dataclass
class PointResult:
    """What became of one crash point.

    Attributes:
        outcome: `held`; `asks`: a person has to settle an effect, as declared; `differs`; `hung`; `not reached`.
        problems: What differs, in words; empty unless it differs or hung.
        notes: What a reader may want to know besides.
        ran_again: Nodes whose bodies ran more often than without the crash, and how often.
        effects: Effects whose function was started more than once, or settled by other means than its call.
        asked: Effects a person was asked about.
    """

    point: Point
    outcome: Outcome
    problems: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    ran_again: dict[str, int] = field(default_factory=dict[str, int])
    effects: list[EffectSeen] = field(default_factory=list[EffectSeen])
    asked: list[str] = field(default_factory=list[str])
    status: str = ""
    attempts: int = 0
    seconds: float = 0.0
    folder: str = ""


class Witness:
    """The person of a run with a crash: repeats the first run's answers, and knows of effects what the tester saw.

    The tester saw whether an effect's function had returned when the worker was killed. One that had begun and not
    returned may have happened, or half: it is guessed to have happened.
    """

    def __init__(self, reference: Reference, replay: Replay) -> None:
        self._reference = reference
        self._replay = replay

    def __call__(self, review: Review, job: Job, run: Run) -> tuple[Answer, bool]:
        if review.kind != "effect":
            return self._replay.answer(review, str(run.place)), False
        if not run.returned()[review.subject] and _killed_before_call(run, review.subject):
            return Answer("reject", reason="it was not called"), False
        arguments = json.dumps(review.value["arguments"]).replace(str(run.place), "{run}")
        asked = EffectSeen(review.subject, str(review.value["effect"]), arguments, "", 0, None, None)
        result = self._reference.result_of(asked)
        guessed = not run.returned()[review.subject] or result is MISSING
        return Answer("approve", result, "it had happened"), guessed


def _killed_before_call(run: Run, key: str) -> bool:
    """Whether a worker died at the very point where this effect was intended and not called yet."""
    for trace in run.traces:
        points = [event for event in trace if event["event"] == "point"]
        if points and points[-1]["name"] == "effect.intended" and points[-1]["key"] == key:
            return True
    return False


def judge(reference: Reference, run: Run, point: Point) -> PointResult:
    """Compare a run with a crash with the uninterrupted runs."""
    result = PointResult(point, "held", status=run.status, attempts=run.attempts, seconds=round(run.seconds, 3))
    result.folder = str(run.folder)
    if not run.killed and not run.ended:
        result.outcome = "not reached"
        result.notes.append("the run did not come to this point again")
        return result
    guessed = any(asked.guessed for asked in run.asked)
    found = [*_end(reference, run), *_effects(reference, run), *_questions_differ(reference, run)]
    found += money.differences(reference.run.paid, run.paid)
    doubtful = _state(reference, run)
    changed = world.compare(reference.run.world, [other.world for other in reference.again], run.world)
    doubtful += changed.wrong
    result.notes += [f"{name} has the same lines in another order" for name in changed.other_order]
    if guessed and doubtful:
        result.notes += [f"{words} (an effect's outcome or result had to be guessed)" for words in doubtful]
        doubtful = []
    result.problems = [*found, *doubtful]
    again = run.bodies() - reference.run.bodies()
    result.ran_again = dict(sorted(again.items()))
    result.effects = [effect for effect in run.effects if effect.calls > 1 or effect.settled_by not in ("call", None)]
    result.asked = [asked.effect for asked in run.asked if asked.kind == "effect"]
    if run.timed_out:
        result.outcome = "hung"
    elif result.problems:
        result.outcome = "differs"
    elif result.asked:
        result.outcome = "asks"
    return result


def _end(reference: Reference, run: Run) -> list[str]:
    if run.ended:
        return [run.ended]
    if run.status != reference.run.status:
        why = f": {run.error['message']}" if run.error else ""
        return [f"the job is {run.status} instead of {reference.run.status}{why}"]
    return []


def _state(reference: Reference, run: Run) -> list[str]:
    if run.status != "done":
        return []
    found = differences(reference.run.state, run.state, reference.unstable_state)
    return [f"state {difference}" for difference in found]


def _effects(reference: Reference, run: Run) -> list[str]:
    """Effects that are missing or too many, unsettled, or that were done twice though nothing allows that."""
    problems: list[str] = []
    if not run.ended and run.status == reference.run.status:
        problems += _counted(reference, run)
    declared, began, happened = run.declared(), run.began(), _happened(reference, run)
    for effect in run.effects:
        if (about := declared.get(effect.key)) is None or about["idempotent"]:
            continue
        if happened[effect.key] > 1:
            why = "its probe did not see that it had happened" if about["probe"] else "it was called again"
            problems.append(f"effect {effect.name} happened {happened[effect.key]} times: {why}")
        elif not about["probe"] and began[effect.key] > 1 + run.denied()[effect.key]:
            problems.append(f"effect {effect.name} was called {began[effect.key]} times, and nobody was asked")
    return problems


def _happened(reference: Reference, run: Run) -> Counter[str]:
    """How often each effect was done, by key: its function returned, or did all it does and was killed then."""
    happened = run.returned()
    for effect in run.effects:
        full, touched = reference.touches_of(effect), run.touched()[effect.key]
        interrupted = run.began()[effect.key] - run.ended_calls()[effect.key]
        if full and interrupted and touched >= full * (happened[effect.key] + interrupted):
            happened[effect.key] += interrupted
    return happened


def _counted(reference: Reference, run: Run) -> list[str]:
    def counted(run: Run) -> Counter[tuple[str, str]]:
        return Counter((effect.name, effect.state) for effect in run.effects)

    before, now = counted(reference.run), counted(run)
    if before == now or any(counted(other) != before for other in reference.again):
        return []
    return [
        f"effect {name}: {now[name, state]} {state} instead of {before[name, state]}"
        for name, state in sorted({*before, *now})
        if before[name, state] != now[name, state]
    ]


def _questions(run: Run) -> Counter[tuple[str, str]]:
    return Counter((asked.kind, asked.question) for asked in run.asked if asked.kind != "effect")


def _questions_differ(reference: Reference, run: Run) -> list[str]:
    if run.ended:
        return []
    before, now = _questions(reference.run), _questions(run)
    if not reference.stable_questions:
        before, now = (Counter((kind, "") for kind, _ in asked.elements()) for asked in (before, now))
    told = [(f"asked once more ({kind})", question) for kind, question in (now - before).elements()]
    told += [(f"not asked ({kind})", question) for kind, question in (before - now).elements()]
    return [f"{what}: {question[:160]}" for what, question in told]
