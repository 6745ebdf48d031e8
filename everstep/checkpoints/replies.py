"""What creating requests were answered, by `Idempotency-Key`: the same request again gets the same answer.

The reply is written in the transaction that creates, so one is never there without the other. The order is that of a
claim: `begin` takes the key's row, which makes everybody else who comes with the key wait or find it; what the request
creates follows; `remember` fills the answer in. If the transaction fails, the row goes with it, and nothing was
remembered.

    def operation(connection):
        known = replies.begin(connection, request, now=now)
        if known is not None:
            return known
        thread = conversations.create(connection, …)
        return replies.remember(connection, request, Reply(200, view(thread)))

A path function does not do that by itself: it uses `everstep.server.once`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, delete, select, update

from everstep.checkpoints.database import insert_or_ignore
from everstep.checkpoints.schema import replies as table
from everstep.errors import IdempotencyConflict

KEPT_MS = 86_400_000
"""How long a reply is known, milliseconds."""
PART = 1000
UNANSWERED = 0


@dataclass(frozen=True)
class Asked:
    """A creating request with a key.

    Attributes:
        owner: For whom it creates; the same key of another owner is another request.
        route: Method and path.
        key: The header's value.
        digest: What tells whether it is the same request.
    """

    owner: str
    route: str
    key: str
    digest: str


@dataclass(frozen=True)
class Reply:
    """An answer.

    Attributes:
        status: HTTP status.
        body: JSON data.
        headers: Headers besides those every answer has.
    """

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def begin(connection: Connection, asked: Asked, *, now: int) -> Reply | None:
    """Take the key for this transaction; or find what the request was answered before.

    Args:
        connection: The write transaction.
        asked: The request.
        now: UTC milliseconds.

    Returns:
        The answer it had before; None: it has none, and whatever follows in this transaction is done once.

    Raises:
        IdempotencyConflict: The key came before with another request.
    """
    mine = (
        table.c.owner == asked.owner,
        table.c.route == asked.route,
        table.c.idempotency_key == asked.key,
    )
    connection.execute(delete(table).where(*mine, table.c.expires_at <= now))
    values = {
        "owner": asked.owner,
        "route": asked.route,
        "idempotency_key": asked.key,
        "request_digest": asked.digest,
        "status_code": UNANSWERED,
        "body_json": "null",
        "created_at": now,
        "expires_at": now + KEPT_MS,
    }
    while insert_or_ignore(connection, table, values) is None:
        row = connection.execute(select(table).where(*mine)).mappings().one_or_none()
        if row is None:  # forgotten since
            continue
        if row["request_digest"] != asked.digest:
            raise IdempotencyConflict(
                "the Idempotency-Key came before with another request",
                next_step="give each request a key of its own; only one that is repeated keeps its key",
                route=asked.route,
            )
        return Reply(row["status_code"], json.loads(row["body_json"]), json.loads(row["headers_json"]))
    return None


def remember(connection: Connection, asked: Asked, reply: Reply) -> Reply:
    """Keep what a request is answered, in the transaction that `begin` was called in.

    Returns:
        The reply.
    """
    mine = (table.c.owner == asked.owner, table.c.route == asked.route, table.c.idempotency_key == asked.key)
    filled = {
        "status_code": reply.status,
        "headers_json": json.dumps(dict(reply.headers)),
        "body_json": json.dumps(reply.body),
    }
    connection.execute(update(table).where(*mine).values(**filled))
    return reply


def forget(connection: Connection, *, now: int) -> int:
    """Delete a part of the replies whose time is over; how many."""
    over = select(table.c.id).where(table.c.expires_at <= now).limit(PART)
    return connection.execute(delete(table).where(table.c.id.in_(over))).rowcount
