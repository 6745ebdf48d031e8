"""The ledger of effects: what was intended before the call, and what is known of it after.

States: `intended` (committed before the call), `confirmed` (it happened, here is the result), `rejected` (it surely did
not happen; it may run again), `unknown` (nobody can say yet: a probe, the provider's idempotency key or a person must).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, RowMapping, and_, bindparam, func, insert, or_, select, update

from everstep.checkpoints import claims, jobs
from everstep.checkpoints.schema import agent_jobs, reviews
from everstep.checkpoints.schema import effects as table
from everstep.checkpoints.statements import Statement
from everstep.errors import JobStateConflict

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol


@cache
def _serializer() -> SerializerProtocol:
    """LangGraph's serializer; it takes half a second to import, which listing jobs need not wait for."""
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    return JsonPlusSerializer()


@dataclass(frozen=True)
class Effect:
    """A row of the ledger. `calls` counts how often the function was started; times are UTC milliseconds."""

    id: int
    key: str
    job_id: int
    name: str
    state: str
    claim_no: int
    calls: int
    arguments_digest: str
    arguments_json: str
    result_type: str | None
    result: str | None
    settled_by: str | None
    error: str | None
    created_at: int
    updated_at: int
    place: str | None = None

    def value(self) -> Any:
        """The stored result, as the function returned it."""
        if self.result_type is None or self.result is None:
            return None
        if self.result_type == "json":
            return json.loads(self.result)
        return _serializer().loads_typed((self.result_type, base64.b64decode(self.result)))


def encode_result(value: Any) -> tuple[str, str]:
    """A result in storable form: readable JSON where that is exact, otherwise LangGraph's own serialisation.

    Raises:
        TypeError: The value cannot be stored.
    """
    try:
        text = json.dumps(value, allow_nan=False)
        if json.loads(text) == value and _plain(value):
            return "json", text
    except (TypeError, ValueError):
        pass
    kind, data = _serializer().dumps_typed(value)
    return kind, base64.b64encode(data).decode()


def _plain(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _plain(item) for key, item in cast("dict[Any, Any]", value).items())
    if type(value) is list:
        return all(_plain(item) for item in cast("list[Any]", value))
    return type(value) in (str, int, float, bool, type(None))


IS_UNSETTLED = or_(table.c.state == "intended", table.c.state == "unknown")
_UNSETTLED = Statement(select(table).where(table.c.job_id == bindparam("job_id"), IS_UNSETTLED).order_by(table.c.id))


def _effect(row: RowMapping) -> Effect:
    return Effect(**row)


def by_key(connection: Connection, key: str) -> Effect | None:
    """The effect with this key."""
    row = connection.execute(select(table).where(table.c.key == key)).mappings().first()
    return None if row is None else _effect(row)


def of_job(connection: Connection, job_id: int, *, newest: int | None = None) -> list[Effect]:
    """A job's effects, oldest first; only so many of the newest if a number is given."""
    query = select(table).where(table.c.job_id == job_id).order_by(table.c.id.desc()).limit(newest)
    return [_effect(row) for row in connection.execute(query).mappings()][::-1]


def how_many(connection: Connection, job_id: int) -> int:
    """How many effects a job has."""
    return connection.execute(select(func.count()).where(table.c.job_id == job_id)).scalar_one()


def unsettled(connection: Connection, job_id: int) -> list[Effect]:
    """A job's effects that may or may not have happened."""
    return [Effect(**row) for row in _UNSETTLED.rows(connection, {"job_id": job_id})]


def begin(
    connection: Connection,
    *,
    job_id: int,
    claim_no: int,
    key: str,
    name: str,
    arguments_digest: str,
    arguments_json: str,
    now: int,
    place: str | None = None,
) -> tuple[Effect, bool]:
    """Write down the intent, or find what is known of it already.

    Returns:
        The effect, and whether to call the function now (it is new, or was surely rejected before). An effect found
        `intended` was interrupted in flight and comes back as `unknown`.

    Raises:
        LostClaim: The claim is no longer the job's.
    """
    claims.fence(connection, job_id, claim_no)
    if not connection.execute(select(agent_jobs.c.input_applied).where(agent_jobs.c.id == job_id)).scalar_one():
        raise RuntimeError(f"effect {name} ran before the job's input was committed")
    effect = by_key(connection, key)
    if effect is None:
        connection.execute(
            insert(table).values(
                key=key,
                job_id=job_id,
                name=name,
                state="intended",
                claim_no=claim_no,
                calls=1,
                arguments_digest=arguments_digest,
                arguments_json=arguments_json,
                created_at=now,
                updated_at=now,
                place=place,
            )
        )
        return _required(connection, key), True
    if effect.state == "rejected":
        return call_again(connection, effect, claim_no=claim_no, now=now), True
    if effect.state == "intended":
        return mark_unknown(connection, effect, now=now), False
    return effect, False


def call_again(connection: Connection, effect: Effect, *, claim_no: int, now: int) -> Effect:
    """Write down the intent to call once more: it surely did not happen, or the provider honours the same key.

    Returns:
        The effect, `intended`; or `confirmed`, if a person said meanwhile that it happened.

    Raises:
        LostClaim: The claim is no longer the job's.
    """
    claims.fence(connection, effect.job_id, claim_no)
    effect = _as_a_person_left_it(connection, effect)
    if effect.state == "confirmed":
        return effect
    return _set(
        connection,
        effect,
        now,
        state="intended",
        claim_no=claim_no,
        calls=effect.calls + 1,
        error=None,
        settled_by=None,
    )


def confirm(
    connection: Connection, effect: Effect, *, claim_no: int, result: tuple[str, str], settled_by: str, now: int
) -> Effect:
    """It happened: store the result. What a person said meanwhile stands, if it is that it happened.

    Raises:
        LostClaim: The claim is no longer the job's.
    """
    claims.advance(connection, effect.job_id, claim_no, now=now)
    effect = _as_a_person_left_it(connection, effect)
    if effect.state == "confirmed":
        return effect
    return _set(
        connection,
        effect,
        now,
        state="confirmed",
        result_type=result[0],
        result=result[1],
        settled_by=settled_by,
        error=None,
    )


def reject(
    connection: Connection, effect: Effect, *, claim_no: int, settled_by: str, error: str | None, now: int
) -> Effect:
    """It surely did not happen, unless a person said meanwhile that it did.

    Raises:
        LostClaim: The claim is no longer the job's.
    """
    claims.fence(connection, effect.job_id, claim_no)
    effect = _as_a_person_left_it(connection, effect)
    if effect.state == "confirmed":
        return effect
    return _set(connection, effect, now, state="rejected", settled_by=settled_by, error=error)


def fail_to_know(connection: Connection, effect: Effect, *, claim_no: int, error: str, now: int) -> Effect:
    """The call ended in a way that leaves open whether it happened.

    Raises:
        LostClaim: The claim is no longer the job's.
    """
    claims.fence(connection, effect.job_id, claim_no)
    return mark_unknown(connection, effect, now=now, error=error)


def mark_unknown(connection: Connection, effect: Effect, *, now: int, error: str | None = None) -> Effect:
    """Nobody can say whether it happened."""
    return _set(connection, effect, now, state="unknown", error=error or effect.error)


def settle_by_person(connection: Connection, key: str, *, happened: bool, result: Any, now: int) -> Effect:
    """A person says what became of an unknown effect.

    Raises:
        JobStateConflict: It is not unknown (any more).
    """
    effect = _required(connection, key)
    if effect.state != "unknown":
        raise JobStateConflict(f"effect {effect.name} is {effect.state}; nobody need settle it", effect=key)
    if happened:
        kind, text = encode_result(result)
        return _set(connection, effect, now, state="confirmed", result_type=kind, result=text, settled_by="person")
    return _set(connection, effect, now, state="rejected", settled_by="person")


def _as_a_person_left_it(connection: Connection, effect: Effect) -> Effect:
    """The effect as a person settled it while its run looked into it; else as the caller saw it."""
    now = _required(connection, effect.key)
    return now if effect.state == "unknown" and now.settled_by == "person" and now.calls == effect.calls else effect


def _set(connection: Connection, effect: Effect, now: int, **values: Any) -> Effect:
    guard = and_(table.c.id == effect.id, table.c.state == effect.state, table.c.calls == effect.calls)
    if connection.execute(update(table).where(guard).values(updated_at=now, **values)).rowcount == 0:
        raise jobs.LostClaim(f"effect {effect.name} ({effect.key}) changed under this call")
    if effect.state == "unknown" and values["state"] != "unknown":
        about = and_(reviews.c.job_id == effect.job_id, reviews.c.kind == "effect", reviews.c.subject == effect.key)
        asked = and_(about, reviews.c.status == "open")
        connection.execute(update(reviews).where(asked).values(status="closed", answered_at=now))
    return _required(connection, effect.key)


def _required(connection: Connection, key: str) -> Effect:
    effect = by_key(connection, key)
    if effect is None:
        raise LookupError(f"no effect has the key {key}")
    return effect
