"""Approvals: what a person's yes to an effect was used for.

A yes lets one effect happen, once, with exactly the arguments that were approved, in a graph of the shape it was given
for. All of that makes the id of the question, so an answer is never found by anything else. It is reserved in the
transaction that writes the effect's intent, consumed in the one that confirms it, and given back when the effect surely
did not happen; while nobody can say, it stays reserved.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, delete, exists, select, update

from everstep.checkpoints import claims
from everstep.checkpoints.canonical import digest
from everstep.checkpoints.database import insert_or_ignore
from everstep.checkpoints.schema import approvals as table
from everstep.checkpoints.schema import effects, reviews
from everstep.errors import JobStateConflict

ID_LENGTH = 32
"""That of LangGraph's own interrupt ids, hexadecimal: an answer to a question with another id would be for any."""


@dataclass(frozen=True)
class Use:
    """A row of `approvals`: the effect that an answer was used for. Times are UTC milliseconds."""

    id: int
    job_id: int
    review_id: int
    action: str
    argument_digest: str
    fingerprint: str | None
    state: str
    effect_key: str
    reserved_at: int
    consumed_at: int | None


@dataclass(frozen=True)
class Given:
    """An answer to the question whether an effect may happen.

    Attributes:
        review_id: Its review's row.
        resume: What was answered.
        question: What was asked.
        use: What it was used for so far.
    """

    review_id: int
    resume: Any
    question: dict[str, Any]
    use: Use | None


@dataclass(frozen=True)
class Standing:
    """What the record holds of an effect that needs an approval.

    Attributes:
        state: The effect's; None: it was never begun.
        given: The answers to the questions about exactly this call, by how often it was asked.
        held: The answer that is reserved for it, whatever that was given for.
    """

    state: str | None
    given: list[Given]
    held: Given | None


def question_id(effect_key: str, argument_digest: str, fingerprint: str | None, number: int) -> str:
    """The id of the question whether an effect may happen.

    Args:
        effect_key: The effect's key, which holds its job.
        argument_digest: The digest of the arguments that are asked about.
        fingerprint: That of the graph that runs.
        number: How many answers to the same question were of no use.
    """
    return digest(["approval", effect_key, argument_digest, fingerprint, number])[:ID_LENGTH]


def standing(
    connection: Connection,
    *,
    job_id: int,
    claim_no: int,
    effect_key: str,
    argument_digest: str,
    fingerprint: str | None,
) -> Standing:
    """What was asked and answered about an effect.

    Raises:
        LostClaim: The claim is no longer the job's.
    """
    claims.fence(connection, job_id, claim_no)
    state = connection.execute(select(effects.c.state).where(effects.c.key == effect_key)).scalar_one_or_none()
    reserved = select(table.c.review_id).where(table.c.effect_key == effect_key).order_by(table.c.id.desc()).limit(1)
    given = list[Given]()
    while True:
        asked = question_id(effect_key, argument_digest, fingerprint, len(given))
        found = _given(connection, and_(reviews.c.job_id == job_id, reviews.c.subject == asked))
        if found is None:
            break
        given.append(found)
    return Standing(state, given, _given(connection, reviews.c.id.in_(reserved)))


def unused(connection: Connection, job_id: int, action: str) -> dict[str, dict[str, Any]]:
    """Questions about an action that were answered, and whose answers were used for nothing: id → what was asked."""
    query = select(reviews.c.subject, reviews.c.value_json).where(
        reviews.c.job_id == job_id,
        reviews.c.kind == "interrupt",
        reviews.c.status == "answered",
        ~exists(select(table.c.id).where(table.c.review_id == reviews.c.id)),
    )
    asked = {row.subject: json.loads(row.value_json) for row in connection.execute(query.order_by(reviews.c.id))}
    return {subject: value for subject, value in asked.items() if effect_of(value) == action}


def effect_of(value: Any) -> str | None:
    """Name of the effect that a question is about; None: it is another kind of question."""
    if isinstance(value, dict) and isinstance(value.get("approval"), dict):  # pyright: ignore[reportUnknownMemberType]
        name: Any = value["approval"].get("effect")  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        return name if isinstance(name, str) else None
    return None


def reserve(
    connection: Connection,
    *,
    job_id: int,
    review_id: int,
    action: str,
    argument_digest: str,
    fingerprint: str | None,
    effect_key: str,
    now: int,
) -> None:
    """Take an answer for one effect, in the transaction that writes its intent.

    Args:
        connection: The write transaction, under the fence of the job's claim.
        job_id: Row id of the job.
        review_id: Row id of the answered review.
        action: The effect's name.
        argument_digest: The digest of the arguments that are about to be used.
        fingerprint: That of the graph the answer was given for.
        effect_key: The effect's key.
        now: UTC milliseconds.

    Raises:
        JobStateConflict: The answer is another job's, or is used. Nothing may be called.
    """
    answered = and_(reviews.c.id == review_id, reviews.c.job_id == job_id, reviews.c.status == "answered")
    values = {
        "job_id": job_id,
        "review_id": review_id,
        "action": action,
        "argument_digest": argument_digest,
        "fingerprint": fingerprint,
        "state": "reserved",
        "effect_key": effect_key,
        "reserved_at": now,
    }
    is_answer = connection.execute(select(exists(select(reviews.c.id).where(answered)))).scalar_one()
    if is_answer:
        if insert_or_ignore(connection, table, values):
            return
        use = _use(connection, review_id)
        same = {name: values[name] for name in ("job_id", "action", "argument_digest", "fingerprint", "effect_key")}
        if use is not None and use.state == "reserved" and all(getattr(use, name) == same[name] for name in same):
            return
    raise JobStateConflict(f"the approval of {action} cannot be used (any more)", effect=effect_key)


def settled(connection: Connection, effect_key: str, *, happened: bool, now: int) -> None:
    """An effect is known to have happened, which consumes its approval, or not to have, which gives it back."""
    mine = and_(table.c.effect_key == effect_key, table.c.state == "reserved")
    if happened:
        connection.execute(update(table).where(mine).values(state="consumed", consumed_at=now))
    else:
        connection.execute(delete(table).where(mine))


def uses(connection: Connection, review_ids: Collection[int]) -> dict[int, Use]:
    """What answers were used for, by the row ids of their reviews; those that were not are missing."""
    query = select(table).where(table.c.review_id.in_(tuple(review_ids)))
    return {row["review_id"]: Use(**row) for row in connection.execute(query).mappings()}


def _use(connection: Connection, review_id: int) -> Use | None:
    row: RowMapping | None = (
        connection.execute(select(table).where(table.c.review_id == review_id)).mappings().one_or_none()
    )
    return None if row is None else Use(**row)


def _given(connection: Connection, which: Any) -> Given | None:
    answered = and_(which, reviews.c.kind == "interrupt", reviews.c.status == "answered")
    query = select(reviews.c.id, reviews.c.resume_json, reviews.c.value_json).where(answered)
    row = connection.execute(query.order_by(reviews.c.occurrence.desc()).limit(1)).one_or_none()
    if row is None:
        return None
    return Given(row.id, json.loads(row.resume_json or "null"), json.loads(row.value_json), _use(connection, row.id))
