"""What an earlier run of a node called, and its replay did not.

A replay asks for the same effects again, in the same order, up to where the earlier run ended. One that asks for a new
effect while an earlier one of the same name was not asked for took another way: its arguments came from a clock, a
model or the world, or LangGraph gave it another place. Then nobody can tell whether the new call is the old one.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select, union

from everstep.checkpoints.schema import effects as table
from everstep.errors import EffectNotRepeated
from everstep.nodes import arguments
from everstep.nodes.attempt import Attempt

SETTLED_ELSEWHERE = ("confirmed", "intended", "unknown")


@dataclass(frozen=True)
class Asked:
    """A call that is about to be made for the first time."""

    key: str
    name: str
    digest: str
    place: str
    body: tuple[int, str]


@dataclass(frozen=True)
class Strays:
    """Effects that may be the one that is asked for: their keys, and arguments as a person may see them."""

    keys: list[str]
    arguments: list[str]


def strays(connection: Connection, attempt: Attempt, asked: Asked) -> Strays | None:
    """Effects that may be the one that is asked for, if there are any.

    They are of the same name and this job, may have happened, and were called in the same task with whatever arguments
    by another run of its body that this one has not repeated; or with equal arguments in another run of the subgraph.
    """
    around, run = arguments.subgraph_run(asked.place)
    alike = select(table.c.key, table.c.place, table.c.arguments_digest, table.c.arguments_json).where(
        table.c.job_id == attempt.job_id,
        table.c.name == asked.name,
        table.c.state.in_(SETTLED_ELSEWHERE),
        table.c.place.is_not(None),
    )
    either = (table.c.place == asked.place, table.c.arguments_digest == asked.digest)
    rows = connection.execute(union(*(alike.where(one) for one in either))).all()
    if any(row.key == asked.key for row in rows):
        return None  # it is no new one
    found = Strays([], [])
    for row in rows:
        if row.place == asked.place:
            unasked = not attempt.has_asked(row.key, asked.body)
        else:
            other_around, other_run = arguments.subgraph_run(row.place)
            unasked = other_around == around and other_run != run and not attempt.has_asked(row.key)
        if unasked and row.key not in attempt.accepted:
            found.keys.append(row.key)
            found.arguments.append(row.arguments_json)
    return found if found.keys else None


def refusal(name: str, now: str, earlier: Strays) -> EffectNotRepeated:
    """The error for a call that may be one of these."""
    return EffectNotRepeated(
        f"effect {name} is called with {now}, but an earlier run of this node called it with {earlier.arguments[0]},"
        " which this run did not repeat; nothing tells whether this is the same call",
        next_step="look at the world; approve if it is meant to be another call. To mend it, make what differs in each"
        " run (a model's answer, the time, a random number) in a node of its own, or give the effect a key",
        effect=name,
        effects=earlier.keys,
    )
