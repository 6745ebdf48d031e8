"""Signals: named events that happen once. Who waits for one is woken by it, whether it comes before or after.

The first emission of a name wins, for each owner; a later one changes nothing and is told the first. Names that begin
with `everstep.` are emitted by Everstep itself.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, and_, delete, exists, select

from everstep.checkpoints.database import insert_or_ignore
from everstep.checkpoints.payload import check_payload
from everstep.checkpoints.schema import signals as table
from everstep.checkpoints.schema import waits
from everstep.clock import rfc3339, uuid7
from everstep.errors import SignalInvalid

RESERVED = "everstep."
LONGEST_NAME = 200
MOST_PAYLOAD_BYTES = 262_144


@dataclass(frozen=True)
class Signal:
    """A row of `signals`; times are UTC milliseconds."""

    id: int
    public_id: str
    owner: str
    name: str
    payload_json: str
    emitted_by: str
    emitted_at: int

    @property
    def payload(self) -> Any:
        """What it carries."""
        return json.loads(self.payload_json)

    def view(self) -> dict[str, Any]:
        """As commands and HTTP tell it."""
        return {
            "id": self.public_id,
            "name": self.name,
            "payload": self.payload,
            "emitted_by": self.emitted_by,
            "emitted_at": rfc3339(self.emitted_at),
        }


def _signal(row: RowMapping) -> Signal:
    return Signal(**row)


def require_name(name: Any) -> str:
    """A name that users may give a signal.

    Raises:
        SignalInvalid: It is empty, too long, not printable, or kept for Everstep.
    """
    problem = None
    if not isinstance(name, str):
        raise SignalInvalid(f"the signal's name is {name!r}, which is no text", next_step="give one such as paid:17")
    if not name.strip() or name != name.strip():
        problem = "is empty, or begins or ends with white space"
    elif len(name) > LONGEST_NAME:
        problem = f"has {len(name)} characters; {LONGEST_NAME} are the most"
    elif not name.isprintable() or "\ufffd" in name:
        problem = "holds characters that cannot be printed"
    elif name.startswith(RESERVED):
        problem = f"begins with {RESERVED!r}, which Everstep keeps for its own"
    if problem is not None:
        raise SignalInvalid(
            f"the signal's name {name[:LONGEST_NAME]!r} {problem}",
            next_step="choose one such as payment-received:order-17",
        )
    return name


def payload_text(payload: Any, *, allow_secret_keys: bool = False) -> str:
    """The stored form of a payload.

    Raises:
        SignalInvalid: It is no JSON, or too large.
        SecretInPayload: It seems to hold credentials.
    """
    try:
        text = json.dumps(payload, allow_nan=False)
        json.dumps(payload, ensure_ascii=False).encode()  # which refuses half of a character
    except (TypeError, ValueError, RecursionError) as error:
        raise SignalInvalid(f"the signal's payload is not JSON: {error}", next_step="send JSON data") from error
    if len(text) > MOST_PAYLOAD_BYTES:
        raise SignalInvalid(
            f"the signal's payload has {len(text)} bytes; {MOST_PAYLOAD_BYTES} are the most",
            next_step="store it elsewhere and send where it is",
        )
    if "\\u0000" in text:
        raise SignalInvalid("the signal's payload holds a NUL character", next_step="leave it out")
    check_payload(payload, allow_secret_keys)
    return text


def emit(connection: Connection, name: str, payload: Any, *, owner: str, by: str, now: int) -> tuple[Signal, bool]:
    """Emit a signal, and wake the jobs that wait for it, in one transaction.

    Args:
        connection: The write transaction.
        name: Its name; see `require_name` for those that users give.
        payload: What it carries; JSON.
        owner: Whose it is; only jobs of this owner hear it.
        by: Who emits it.
        now: UTC milliseconds.

    Returns:
        The signal of this name, and whether it was emitted now.
    """
    from everstep.checkpoints.waits import meet

    hold(connection, owner, name)
    values = {
        "public_id": uuid7(now),
        "owner": owner,
        "name": name,
        "payload_json": json.dumps(payload),
        "emitted_by": by,
        "emitted_at": now,
    }
    emitted = bool(insert_or_ignore(connection, table, values))
    signal = find(connection, owner, name)
    assert signal is not None
    if emitted:
        meet(connection, signal, now=now)
    return signal, emitted


def find(connection: Connection, owner: str, name: str) -> Signal | None:
    """The signal of this name, if it was emitted."""
    query = select(table).where(table.c.owner == owner, table.c.name == name)
    row = connection.execute(query).mappings().first()
    return None if row is None else _signal(row)


def listed(connection: Connection, *, owner: str | None, limit: int, before: int | None = None) -> list[Signal]:
    """Signals that users emitted, newest first.

    Args:
        connection: A snapshot.
        owner: Only theirs; None: everybody's.
        limit: How many at most.
        before: Only those with a lower row id.
    """
    query = select(table).where(~table.c.name.startswith(RESERVED, autoescape=True))
    if owner is not None:
        query = query.where(table.c.owner == owner)
    if before is not None:
        query = query.where(table.c.id < before)
    return [_signal(row) for row in connection.execute(query.order_by(table.c.id.desc()).limit(limit)).mappings()]


def hold(connection: Connection, owner: str, name: str) -> None:
    """Let nobody else emit this signal, or begin to wait for it, until the transaction ends (PostgreSQL).

    Otherwise one that is emitted while a job begins to wait would see no wait, and the wait no signal.
    In SQLite one transaction writes at a time anyway.
    """
    if connection.dialect.name == "postgresql":
        number = int.from_bytes(hashlib.sha256(f"{owner}\n{name}".encode()).digest()[:8], signed=True)
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({number})")


def forget(connection: Connection, *, before: int, limit: int = 1000) -> int:
    """Delete users' signals that were emitted before a moment, UTC milliseconds, and that no open wait is for.

    Everstep's own stay with what they tell of: a paid task's end may be asked for at any time.

    Returns:
        How many were deleted.
    """
    waited = exists().where(waits.c.signal == table.c.name, waits.c.owner == table.c.owner, waits.c.state == "open")
    users = ~table.c.name.startswith(RESERVED, autoescape=True)
    ids = select(table.c.id).where(and_(table.c.emitted_at < before, users, ~waited)).limit(limit)
    return connection.execute(delete(table).where(table.c.id.in_(ids))).rowcount
