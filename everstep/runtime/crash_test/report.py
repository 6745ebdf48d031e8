"""What a crash test found: the verdict, and the same as JSON data for scripts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from everstep.checkpoints.answers import MISSING
from everstep.counts import counted
from everstep.runtime.crash_test.judgement import PointResult, Reference
from everstep.runtime.crash_test.one_run import EffectSeen

INFORMATION = ("network", "database")
"""Kinds of touches that fail nothing by themselves: whether they only read cannot be seen."""


@dataclass(frozen=True)
class Touch:
    """A node touched the world outside an effect.

    Attributes:
        kind: `file`, `process`, `network` or `database`.
        what: The call; one of them where the same line made several.
        where: The line of the user's code that made it, and those that called that.
        different: How many different calls the line made.
        allowed: The user said that all of them are fine.
    """

    node: str
    kind: str
    what: str
    where: str
    different: int
    allowed: bool

    @property
    def fails(self) -> bool:
        """Whether the test fails for it."""
        return not self.allowed and self.kind not in INFORMATION


@dataclass
class Report:
    """The outcome of a crash test.

    Attributes:
        seed: What repeats it: the draw of points and the order of sets.
        sample: How many points were to be drawn; None: all.
        passed: How many crash points the graph passes.
        results: Of those that were tested, in the order they are passed.
        touches: What nodes do outside of effects, in whatever run.
        unused_answers: Answers of the user that no question asked for.
    """

    graph: str
    seed: int
    sample: int | None
    passed: int
    reference: Reference
    results: list[PointResult] = field(default_factory=list[PointResult])
    touches: list[Touch] = field(default_factory=list[Touch])
    unused_answers: list[str] = field(default_factory=list[str])

    @property
    def unseen_inside(self) -> list[str]:
        """Effects of which nothing could be seen while they ran: they were killed before and after, not within."""
        run = self.reference.run
        touched = run.touched()
        return sorted({str(event["subject"]) for key, event in run.declared().items() if not touched[key]})

    @property
    def held(self) -> bool:
        """Whether some worker was killed, nothing differed, and no node touches the world outside an effect."""
        outcomes = {result.outcome for result in self.results}
        if any(touch.fails for touch in self.touches) or outcomes & {"differs", "hung"}:
            return False
        return bool(outcomes & {"held", "asks"})

    def verdict(self) -> str:
        """One line."""
        counts = Counter(result.outcome for result in self.results)
        kills = len(self.results) - counts["not reached"]
        where = f" at {counted(self.passed, 'crash point')}" if kills != self.passed else ""
        words = [f"{counted(kills, 'kill')}{where}"]
        words.append(f"{counts['held'] + counts['asks']} held")
        for outcome, text in (
            ("asks", "of them ask a person about an effect"),
            ("differs", "differ"),
            ("hung", "hung"),
            ("not reached", "not reached"),
        ):
            if counts[outcome]:
                words.append(f"{counts[outcome]} {text}")
        touching = sorted({touch.node for touch in self.touches if touch.fails})
        if touching:
            words.append(
                f"{', '.join(touching)} {'touches' if len(touching) == 1 else 'touch'} the world outside an effect"
            )
        return "; ".join(words)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON data; docs/crash-test.md documents the fields."""
        run = self.reference.run
        return {
            "graph": self.graph,
            "seed": self.seed,
            "sample": self.sample,
            "held": self.held,
            "verdict": self.verdict(),
            "points_passed": self.passed,
            "points_tested": len(self.results),
            "uninterrupted": {
                "status": run.status,
                "state": run.state,
                "attempts": run.attempts,
                "nodes": dict(sorted(run.bodies().items())),
                "effects": [_effect(effect) for effect in run.effects],
                "reviews": [
                    {"kind": asked.kind, "question": asked.question, "answer": asked.answer.as_dict()}
                    for asked in run.asked
                ],
                "seconds": round(run.seconds, 3),
            },
            "differs_by_itself": {
                "state": sorted(self.reference.unstable_state),
                "world": self.reference.unstable_world,
                "questions": not self.reference.stable_questions,
            },
            "touches": [{**asdict(touch), "fails": touch.fails} for touch in self.touches],
            "unseen_inside": self.unseen_inside,
            "unused_answers": self.unused_answers,
            "points": [_point(result) for result in self.results],
        }


def touches(events: Iterable[dict[str, Any]], allowed: Sequence[str]) -> list[Touch]:
    """The touches of some runs, one for each call in the user's code.

    Args:
        events: What the workers told.
        allowed: Texts; a touch whose node, kind, call and place together hold one is allowed.
    """
    found: dict[tuple[str, ...], dict[str, bool]] = {}
    for event in events:
        node, kind, what, where = (str(event[name]) for name in ("node", "kind", "what", "where"))
        line = f"node {node} {kind} {what} {where}"
        found.setdefault((node, kind, where), {}).setdefault(what, any(text in line for text in allowed))
    return [
        Touch(node, kind, min(whats, key=lambda what: whats[what]), where, len(whats), allowed=all(whats.values()))
        for (node, kind, where), whats in found.items()
    ]


def _effect(effect: EffectSeen) -> dict[str, Any]:
    known = None if effect.result is MISSING else effect.result
    return {
        "name": effect.name,
        "state": effect.state,
        "calls": effect.calls,
        "settled_by": effect.settled_by,
        "arguments": effect.arguments,
        "result": known,
    }


def _point(result: PointResult) -> dict[str, Any]:
    return {
        "point": result.point.label,
        "after": result.point.after,
        "settles": result.point.settles,
        "worker": result.point.worker,
        "crash_at": result.point.crash_at,
        "outcome": result.outcome,
        "problems": result.problems,
        "notes": result.notes,
        "ran_again": result.ran_again,
        "effects": [_effect(effect) for effect in result.effects],
        "asked": result.asked,
        "status": result.status,
        "attempts": result.attempts,
        "seconds": result.seconds,
    }
