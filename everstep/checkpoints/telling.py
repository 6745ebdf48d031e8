"""The most telling runs of a time: what went wrong, what was slowest, what was dearest. For whoever looks at a day.

It reads small columns only, no state; input and result of a run are left out unless asked for.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nlargest
from itertools import zip_longest
from statistics import median
from typing import Any, Final, Literal

from sqlalchemy import Connection, func, select

from everstep.checkpoints import large_texts
from everstep.checkpoints.health import first_event_since
from everstep.checkpoints.payload import without_secrets
from everstep.checkpoints.schema import agent_jobs, effects, job_events

Why = Literal["error", "slow", "dear"]
LONGEST_TEXT: Final = 2_000
_ENDS: Final = ("retry", "review", "done", "failed")
_GRAVITY: Final = {"failed": 3, "review": 2, "retry": 1}
_COLUMNS = (
    agent_jobs.c.id,
    agent_jobs.c.public_id,
    agent_jobs.c.graph,
    agent_jobs.c.status,
    agent_jobs.c.claim_no,
    agent_jobs.c.attempts,
    agent_jobs.c.failures,
    agent_jobs.c.step,
    agent_jobs.c.run_ms,
    agent_jobs.c.cost_micros,
    agent_jobs.c.input_tokens,
    agent_jobs.c.output_tokens,
    agent_jobs.c.error_json,
    agent_jobs.c.cancel_requested_at,
)


@dataclass(frozen=True)
class Window:
    """Which runs are looked at.

    Attributes:
        since: From when on, UTC milliseconds.
        until: Until before when.
        owner: Only this owner's; None: everybody's.
        without: Row id of the job that looks.
    """

    since: int
    until: int
    owner: str | None
    without: int


@dataclass(frozen=True)
class Candidate:
    """A run that may be chosen.

    Attributes:
        key: What it is.
        graph: Of which graph; what is typical is told by graph.
        gravity: How wrong it went; 0: it did not.
        seconds: How long it ran.
        cost: What its model calls cost, US dollars.
        tokens: What they took, where nobody knows the cost.
    """

    key: Any
    graph: str
    gravity: int
    seconds: float
    cost: float
    tokens: int


@dataclass(frozen=True)
class Chosen:
    """A run that was chosen, why, and what is typical of its graph in that time."""

    candidate: Candidate
    why: Why
    typical_seconds: float
    typical_cost: float


def pick(candidates: Iterable[Candidate], most: int) -> list[Chosen]:
    """The most telling runs, in turn of the three kinds: errors, slowest, dearest; each run once.

    Args:
        candidates: All runs of the time.
        most: How many are wanted.
    """
    seconds, cost = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    every: list[Candidate] = []
    for one in candidates:
        every.append(one)
        seconds[one.graph].append(one.seconds)
        cost[one.graph].append(one.cost)
    kinds = (
        nlargest(most, (one for one in every if one.gravity), key=lambda one: one.gravity),
        nlargest(most, (one for one in every if one.seconds > 0), key=lambda one: one.seconds),
        nlargest(most, (one for one in every if _price(one) > (0, 0)), key=_price),
    )
    chosen: dict[Any, Chosen] = {}
    whys: tuple[Why, ...] = ("error", "slow", "dear")
    for turn in zip_longest(*kinds):
        for why, one in zip(whys, turn, strict=True):
            if one is not None and len(chosen) < most and one.key not in chosen:
                chosen[one.key] = Chosen(one, why, median(seconds[one.graph]), median(cost[one.graph]))
    return list(chosen.values())


def choose(connection: Connection, window: Window, *, most: int, with_content: bool = False) -> list[dict[str, Any]]:
    """The most telling runs of the record in a time; see `pick`.

    Args:
        connection: A snapshot.
        window: Which runs are looked at.
        most: How many are wanted.
        with_content: Whether input and result come along, cut and without credentials.

    Returns:
        JSON data: `job, leg, graph, why, status, error, seconds, typical_seconds, cost, typical_cost, tokens, attempts,
        failures, steps, unknown_effects, at_ms`; the leg is the run's last.
    """
    return [_case(connection, chosen, with_content) for chosen in pick(_candidates(connection, window), most)]


def _candidates(connection: Connection, window: Window) -> Iterator[Candidate]:
    for row in _ended_within(connection, window):
        tokens = row.input_tokens + row.output_tokens
        yield Candidate(row.id, row.graph, _gravity(row), row.run_ms / 1000, row.cost_micros / 1_000_000, tokens)


def _ended_within(connection: Connection, window: Window) -> Iterator[Any]:
    first = first_event_since(connection, window.since)
    ended = select(job_events.c.job_id).where(
        job_events.c.id >= first,
        job_events.c.at >= window.since,
        job_events.c.at < window.until,
        job_events.c.to_status.in_(_ENDS),
    )
    query = select(*_COLUMNS).where(agent_jobs.c.id.in_(ended), agent_jobs.c.id != window.without)
    query = query if window.owner is None else query.where(agent_jobs.c.owner == window.owner)
    yield from connection.execution_options(yield_per=1000).execute(query)


def _gravity(row: Any) -> int:
    """How wrong a run went; 0: it did not, or a person ended it."""
    if row.cancel_requested_at is not None:
        return 0
    return (_GRAVITY.get(row.status, 0) if row.error_json is not None else 0) or int(row.failures > 0)


def _price(candidate: Candidate) -> tuple[float, int]:
    return candidate.cost, candidate.tokens


def _case(connection: Connection, chosen: Chosen, with_content: bool) -> dict[str, Any]:
    of_row = select(*_COLUMNS, agent_jobs.c.payload_json, agent_jobs.c.result_json, agent_jobs.c.thread_id)
    row = connection.execute(of_row.where(agent_jobs.c.id == chosen.candidate.key)).one()
    error: dict[str, Any] = json.loads(row.error_json or "{}")
    of_job = effects.c.job_id == row.id
    unknown = select(func.count()).where(of_job, effects.c.state.in_(("intended", "unknown")))
    began = select(func.max(job_events.c.at)).where(
        job_events.c.job_id == row.id, job_events.c.to_status == "running", job_events.c.claim_no == row.claim_no
    )
    case: dict[str, Any] = {
        "job": row.public_id,
        "leg": row.claim_no,
        "graph": row.graph,
        "why": chosen.why,
        "status": row.status,
        "error": {
            "code": error.get("code"),
            "type": error.get("type"),
            "message": without_secrets(str(error.get("message", "")))[:LONGEST_TEXT],
        }
        if error
        else None,
        "seconds": chosen.candidate.seconds,
        "typical_seconds": chosen.typical_seconds,
        "cost": chosen.candidate.cost,
        "typical_cost": chosen.typical_cost,
        "tokens": chosen.candidate.tokens,
        "attempts": row.attempts,
        "failures": row.failures,
        "steps": row.step,
        "unknown_effects": connection.execute(unknown).scalar_one(),
        "at_ms": connection.execute(began).scalar_one() or 0,
    }
    if with_content:
        result = row.result_json and large_texts.whole(connection, row.thread_id, row.result_json)
        case |= {"input": _cut(row.payload_json), "result": _cut(result)}
    return case


def _cut(text: str | None) -> str | None:
    return None if text is None else without_secrets(text)[:LONGEST_TEXT]
