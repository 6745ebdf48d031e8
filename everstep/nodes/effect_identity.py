"""What makes a call of an effect the same call in every replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everstep.checkpoints.jobs import loose_digest
from everstep.errors import EffectInvalid
from everstep.nodes import arguments, replays
from everstep.nodes.attempt import Attempt, Turn

Wording = Callable[..., str] | str | bool | None


@dataclass(frozen=True)
class Declaration:
    """How an effect is kept safe; the arguments of `effect`."""

    name: str
    probe: Callable[..., Any] | None
    idempotent: bool
    key: Callable[..., Any] | str | None
    approval: Wording = None


@dataclass(frozen=True)
class Identity:
    """What makes a call the same call in every replay.

    Attributes:
        plain: The arguments in canonical form; or the business key.
        key: The effect's key.
        body: The run of the node's body it is made in.
        call: What it shares with equal calls there.
        turn: Which of them it is, and which of those before it were not over when it was asked for.
        place: The namespace of the task.
        asked: What an earlier run is looked through for; None where a business key tells what is the same.
    """

    plain: dict[str, Any]
    key: str
    body: Any = None
    call: tuple[str, ...] = ()
    turn: Turn = field(default_factory=Turn)
    place: str = ""
    asked: replays.Asked | None = None

    def give_back(self, attempt: Attempt) -> None:
        """The call surely did not happen."""
        if self.call:
            attempt.give_back(self.body, self.call, self.turn.number)


def identify(
    attempt: Attempt, declaration: Declaration, given: dict[str, Any], tool_call_id: str | None, *, inside: bool
) -> Identity:
    """The identity of a call that is made now.

    Args:
        attempt: The attempt it is made in.
        declaration: The effect.
        given: The arguments, by name.
        tool_call_id: The id of the tool call, if it is one.
        inside: Whether another effect makes the call; a replay that finds that one does not ask for it again.

    Raises:
        EffectInvalid: Nothing would find the call again.
    """
    name = declaration.name
    if declaration.key is not None:
        business = str(declaration.key(**given) if callable(declaration.key) else declaration.key)
        key = arguments.effect_key(attempt.job_key, name, "business", business)
        return Identity({"key": business}, key, place=arguments.position().place)
    plain = arguments.canonical(name, given)
    at = arguments.position()
    if not at.stable:
        raise EffectInvalid(
            f"effect {name} is called in a graph with a checkpointer of its own, where a replay cannot find it again",
            next_step="compile that subgraph without a checkpointer, or give the effect a key: @effect(name, key=…)",
            effect=name,
        )
    digest = loose_digest(plain)
    around, run = arguments.subgraph_run(at.place)
    if attempt.first_run((around, tool_call_id, name, digest), run) != run:
        raise EffectInvalid(
            f"effect {name} was called before in an earlier run of the same subgraph in the same task,"
            " and nothing tells whether this is meant to be another call",
            next_step="leave retries of a subgraph's node to Everstep (no retry_policy), or give the effect a key",
            effect=name,
        )
    place = at.place if tool_call_id is None else f"{at.place}|{tool_call_id}"
    call = (at.node_attempt, place, name, digest)

    def key_of(number: int) -> str:
        return arguments.effect_key(attempt.job_key, name, digest, place, number)

    turn = attempt.take(at.body, call, key_of)
    key = key_of(turn.number)
    body = (id(at.body), at.node_attempt)
    attempt.ask(key, body)
    asked = None if inside else replays.Asked(key, name, digest, at.place, body)
    return Identity(plain, key, at.body, call, turn, at.place, asked)
