"""What waits for each destination of spans, and how that destination fares: rows that any process can work off.

Of all processes one sends to a destination at a time, under a lease. A row goes when it is delivered or given up; both
are counted. Nothing of a destination is here but its name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from everstep.checkpoints.schema import span_destinations, span_outbox, spans

ERROR_LIMIT = 500


@dataclass(frozen=True)
class Waiting:
    """A span that waits for a destination: its place in the queue, and its body as it is stored."""

    id: int
    body: bytes


@dataclass(frozen=True)
class Destination:
    """How a destination fares. Times are UTC milliseconds.

    Attributes:
        name: Its name; no credentials are in it.
        waiting: Spans that wait for it.
        oldest_at: Since when the oldest of them does.
        delivered: Spans that arrived.
        dropped: Spans that were given up: refused for good, or too many, or too old.
        failing_since: Since when it takes nothing; None if it does.
        last_error: Why.
        next_try_at: When it is tried again.
        leased_by: Who sends to it.
        lease_until: For how long, if not renewed.
    """

    name: str
    waiting: int
    oldest_at: int | None
    delivered: int
    dropped: int
    failing_since: int | None
    last_error: str | None
    next_try_at: int | None
    leased_by: str | None
    lease_until: int | None


def newest(connection: Connection, name: str) -> int | None:
    """The last place in the queue of a destination; None if nothing waits."""
    query = select(span_outbox.c.id).where(span_outbox.c.destination == name)
    return connection.execute(query.order_by(span_outbox.c.id.desc()).limit(1)).scalar()


def may_send(connection: Connection, name: str, *, holder: str, now: int, at_once: bool = False) -> bool:
    """Whether this process could send: nobody else holds the lease, and it is time to try. Locks nothing."""
    row = connection.execute(select(span_destinations).where(span_destinations.c.name == name)).first()
    if row is None:
        return True
    held = row.leased_by not in (None, holder) and (row.lease_until or 0) > now
    return not held and (at_once or (row.next_try_at or 0) <= now)


def take(connection: Connection, name: str, *, holder: str, now: int, lease_ms: int) -> bool:
    """Take or renew the lease of a destination.

    Args:
        connection: The write transaction.
        name: The destination.
        holder: Who wants to send.
        now: UTC milliseconds.
        lease_ms: Length of the lease from now, milliseconds.

    Returns:
        Whether it is the holder's now.
    """
    _know(connection, name, now)
    free = or_(
        span_destinations.c.leased_by.is_(None),
        span_destinations.c.leased_by == holder,
        span_destinations.c.lease_until <= now,
    )
    taken = connection.execute(
        update(span_destinations)
        .where(span_destinations.c.name == name, free)
        .values(leased_by=holder, lease_until=now + lease_ms, updated_at=now)
    )
    return taken.rowcount == 1


def release(connection: Connection, name: str, *, holder: str, now: int) -> None:
    """Give the lease back."""
    mine = and_(span_destinations.c.name == name, span_destinations.c.leased_by == holder)
    connection.execute(update(span_destinations).where(mine).values(leased_by=None, lease_until=None, updated_at=now))


def batch(connection: Connection, name: str, *, up_to: int, most: int, most_bytes: int) -> list[Waiting]:
    """The oldest spans that wait for a destination, so many and so large at most, but one at least.

    Args:
        connection: A snapshot.
        name: The destination.
        up_to: The last place in the queue that is wanted.
        most: Spans at most.
        most_bytes: Bytes of all at most.
    """
    query = (
        select(span_outbox.c.id, func.length(spans.c.body).label("size"))
        .join(spans, spans.c.id == span_outbox.c.span)
        .where(span_outbox.c.destination == name, span_outbox.c.id <= up_to)
        .order_by(span_outbox.c.id)
        .limit(most)
    )
    ids: list[int] = []
    size = 0
    for row in connection.execute(query):
        size += row.size
        if ids and size > most_bytes:
            break
        ids.append(row.id)
    if not ids:
        return []
    bodies = select(span_outbox.c.id, spans.c.body).join(spans, spans.c.id == span_outbox.c.span)
    bodies = bodies.where(span_outbox.c.destination == name, span_outbox.c.id.between(ids[0], ids[-1]))
    rows = connection.execute(bodies.order_by(span_outbox.c.id))
    return [Waiting(row.id, bytes(row.body)) for row in rows]


def done(
    connection: Connection,
    name: str,
    delivered: Collection[int],
    dropped: Collection[int],
    *,
    now: int,
    holder: str,
    lease_ms: int,
    refusal: str | None = None,
) -> None:
    """These arrived, and those were refused for good; the destination works, and the lease goes on.

    Args:
        connection: The write transaction.
        name: The destination.
        delivered: Places in the queue of those that arrived.
        dropped: Of those that were refused.
        now: UTC milliseconds.
        holder: Who sends.
        lease_ms: Length of the lease from now, milliseconds.
        refusal: Why those were refused.
    """
    arrived = _remove(connection, delivered)
    refused = _remove(connection, dropped)
    mine = span_destinations.c.leased_by == holder
    values: dict[str, Any] = {
        "delivered": span_destinations.c.delivered + arrived,
        "dropped": span_destinations.c.dropped + refused,
        "failing_since": None,
        "next_try_at": None,
        "updated_at": now,
    }
    if refused:
        values["last_error"] = (refusal or "")[:ERROR_LIMIT]
    connection.execute(update(span_destinations).where(span_destinations.c.name == name).values(**values))
    connection.execute(
        update(span_destinations).where(span_destinations.c.name == name, mine).values(lease_until=now + lease_ms)
    )


def failed(connection: Connection, name: str, *, reason: str, now: int, again_at: int) -> None:
    """The destination took nothing; all that waits goes on waiting."""
    since = func.coalesce(span_destinations.c.failing_since, now)
    values = {"failing_since": since, "last_error": reason[:ERROR_LIMIT], "next_try_at": again_at, "updated_at": now}
    connection.execute(update(span_destinations).where(span_destinations.c.name == name).values(**values))


def drop(connection: Connection, name: str, ids: Collection[int], *, now: int) -> int:
    """Give these up, and count them."""
    if dropped := _remove(connection, ids):
        _know(connection, name, now)
        connection.execute(
            update(span_destinations)
            .where(span_destinations.c.name == name)
            .values(dropped=span_destinations.c.dropped + dropped, updated_at=now)
        )
    return dropped


def forget(connection: Connection, name: str, *, limit: int) -> int:
    """Let spans wait for a destination no more, so many at most; when none does, it is not known any more either.

    Args:
        connection: The write transaction.
        name: The destination.
        limit: How many places in the queue at most.

    Returns:
        How many there were.
    """
    query = select(span_outbox.c.id).where(span_outbox.c.destination == name)
    removed = _remove(connection, connection.execute(query.order_by(span_outbox.c.id).limit(limit)).scalars().all())
    if removed == 0:
        connection.execute(delete(span_destinations).where(span_destinations.c.name == name))
    return removed


def count(connection: Connection, name: str) -> int:
    """How many spans wait for a destination."""
    query = select(func.count()).select_from(span_outbox).where(span_outbox.c.destination == name)
    return int(connection.execute(query).scalar_one())


def older(connection: Connection, *, before: int, limit: int) -> dict[str, list[int]]:
    """By destination, the places in the queue of spans that have waited since before this moment, oldest first."""
    query = select(span_outbox.c.id, span_outbox.c.destination, span_outbox.c.queued_at)
    found: dict[str, list[int]] = {}
    for row in connection.execute(query.order_by(span_outbox.c.id).limit(limit)):
        if row.queued_at < before:
            found.setdefault(row.destination, []).append(row.id)
    return found


def oldest(connection: Connection, name: str, *, after: int, limit: int) -> list[Waiting]:
    """The oldest spans that wait for a destination behind a place in the queue."""
    query = select(span_outbox.c.id, spans.c.body).join(spans, spans.c.id == span_outbox.c.span)
    query = query.where(span_outbox.c.destination == name, span_outbox.c.id > after)
    rows = connection.execute(query.order_by(span_outbox.c.id).limit(limit))
    return [Waiting(row.id, bytes(row.body)) for row in rows]


def every(connection: Connection, also: Sequence[str] = ()) -> list[Destination]:
    """All destinations the record knows of, by name.

    Args:
        connection: A snapshot.
        also: Names that are told of though the record does not know them yet.
    """
    destination, at = span_outbox.c.destination, func.min(span_outbox.c.queued_at).label("at")
    query = select(destination, func.count().label("waiting"), at).group_by(destination)
    waiting = {row.destination: (row.waiting, row.at) for row in connection.execute(query)}
    known = {row["name"]: row for row in connection.execute(select(span_destinations)).mappings()}
    found: list[Destination] = []
    for name in sorted({*waiting, *known, *also}):
        row = known.get(name)
        number, at = waiting.get(name, (0, None))
        found.append(
            Destination(
                name=name,
                waiting=number,
                oldest_at=at,
                delivered=row["delivered"] if row else 0,
                dropped=row["dropped"] if row else 0,
                failing_since=row["failing_since"] if row else None,
                last_error=row["last_error"] if row else None,
                next_try_at=row["next_try_at"] if row else None,
                leased_by=row["leased_by"] if row else None,
                lease_until=row["lease_until"] if row else None,
            )
        )
    return found


def _know(connection: Connection, name: str, now: int) -> None:
    of_dialect: Any = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    connection.execute(of_dialect(span_destinations).values(name=name, updated_at=now).on_conflict_do_nothing())


def _remove(connection: Connection, ids: Collection[int]) -> int:
    """Delete these; how many were still there: an exporter that lost its lease counts nothing twice."""
    if not ids:
        return 0
    return connection.execute(delete(span_outbox).where(span_outbox.c.id.in_(ids))).rowcount
