"""The outbox of webhooks: messages that a job ended or paused, written with that change and sent afterwards.

A message is `pending` until its receiver took it (`delivered`) or it was given up (`dead`). Any process sends what is
due: it takes a message under a lease by compare-and-set, and the lease's end is when the message is due again, so what
a dead process took is sent by another. A receiver tells repetitions by the message's id.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Connection, RowMapping, Select, and_, func, insert, not_, or_, select, true, update

from everstep.checkpoints import large_texts
from everstep.checkpoints.database import has_id, notify
from everstep.checkpoints.job import Job
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.schema import deliveries as table
from everstep.clock import rfc3339, uuid7
from everstep.credentials import without_secrets
from everstep.errors import DeliveryNotFound, WebhookInvalid

TOPIC = "everstep_deliveries"
"""What those who send are woken by."""
ERROR_LENGTH = 500
LONGEST_URL = 2048
TOLD = ("review", "done", "failed")
"""The statuses that a job's webhook is told of."""


@dataclass(frozen=True)
class Delivery:
    """A row of `deliveries`. Times are UTC milliseconds.

    Attributes:
        public_id: The message's id, the same whenever it is sent.
        job: The public id of the job it is about.
        url: Where to; it may hold what only its owner should see.
        body_json: What is sent, as JSON.
        state: `pending`, `delivered` or `dead`.
        tries: How often sending it began, since it was queued or replayed.
        next_try_at: When it is due.
        leased_by: Who sends it now.
        last_error: Why the last try did not do.
    """

    id: int
    public_id: str
    job: str
    url: str
    body_json: str
    state: str
    tries: int
    next_try_at: int
    leased_by: str | None
    lease_until: int | None
    last_error: str | None
    created_at: int
    delivered_at: int | None

    @property
    def body(self) -> dict[str, Any]:
        """What is sent."""
        return json.loads(self.body_json)


_COLUMNS = [agent_jobs.c.public_id.label("job"), *(column for column in table.c if column.name != "job_id")]
_WITH_JOB = select(*_COLUMNS, agent_jobs.c.thread_id).join(agent_jobs, agent_jobs.c.id == table.c.job_id)


def _delivery(connection: Connection, row: RowMapping) -> Delivery:
    known = dict(row)
    known["body_json"] = large_texts.whole(connection, known.pop("thread_id"), known["body_json"])
    return Delivery(**known)


def check_url(url: str) -> None:
    """Refuse what is no address of a webhook, or holds credentials: it is stored, and shown to who sees the job.

    Raises:
        WebhookInvalid: It is not `http://` or `https://` with a host, or holds what seems to be a credential.
    """
    try:
        parts = urlsplit(url)
        whole = url.startswith(("http://", "https://")) and parts.hostname and parts.port != 0
    except ValueError:  # a port that is none, half an IPv6 address
        parts, whole = urlsplit(""), False
    if not whole or not url.isascii() or not url.isprintable() or " " in url or len(url) > LONGEST_URL:
        raise WebhookInvalid(
            "the webhook is no address such as https://example.org/hook",
            next_step=f"give an http or https URL, percent-encoded, of {LONGEST_URL} characters at most",
        )
    if parts.username is not None or parts.password is not None or without_secrets(url) != url:
        raise WebhookInvalid(
            "the webhook's address seems to hold credentials; the record is no place for them",
            next_step="take them out: messages are signed, so a receiver knows them without",
        )


def queue(connection: Connection, job: Job, url: str, body: Mapping[str, Any], *, now: int) -> str:
    """Have a message sent once this transaction is committed.

    Args:
        connection: The write transaction that changes the job.
        job: The job it is about.
        url: Where to.
        body: JSON data. A member `webhook_sent_at` is set to the time of each sending.
        now: UTC milliseconds.

    Returns:
        The message's id.
    """
    message_id = uuid7(now)
    text = json.dumps(body)
    if job.run_json is not None:  # it holds a state that the thread's other rows hold as well
        text = large_texts.kept(connection, job.thread_id, text)
    row = {"public_id": message_id, "job_id": job.id, "url": url, "body_json": text}
    connection.execute(insert(table).values(**row, next_try_at=now, created_at=now))
    notify(connection, TOPIC)
    return message_id


def tell(connection: Connection, job: Job, *, now: int) -> None:
    """Have the job's webhook told what became of it, where that is something to tell; the job as it is, as JSON.

    Args:
        connection: The write transaction that changed the job.
        job: The job as it is then.
        now: UTC milliseconds.
    """
    if job.webhook is None or job.status not in TOLD:
        return
    from everstep.checkpoints import budgets, job_view  # which stand on jobs

    view = job_view.of(job, budgets.accounts(connection, [job.id]).get(job.id))
    queue(connection, job, job.webhook, {"type": f"job.{job.status}", **view, "webhook_sent_at": None}, now=now)


def tell_of_run(connection: Connection, job: Job, run: Mapping[str, Any], *, now: int) -> None:
    """Have a run's webhook told what became of it: the run as LangGraph's clients know it, and what it came to.

    Args:
        connection: The write transaction that ended the run.
        job: The run's job.
        run: The row of `runs`, as it is then.
        now: UTC milliseconds.
    """
    if run["webhook"] is None:
        return
    body = {
        "run_id": run["run_id"],
        "thread_id": run["thread_id"],
        "assistant_id": run["assistant_id"],
        "created_at": rfc3339(run["created_at"]),
        "updated_at": rfc3339(run["updated_at"]),
        "status": run["status"],
        "metadata": json.loads(run["metadata_json"]),
        "kwargs": json.loads(run["kwargs_json"]),
        "multitask_strategy": run["multitask_strategy"],
        "run_started_at": rfc3339(run["started_at"]),
        "run_ended_at": rfc3339(run["ended_at"]),
        "webhook_sent_at": None,
        "values": json.loads(large_texts.whole(connection, run["thread_id"], run["values_json"] or "null")),
        "error": json.loads(run["error_json"] or "null"),
    }
    queue(connection, job, run["webhook"], body, now=now)


def get(connection: Connection, delivery_id: int) -> Delivery:
    """The message by row id."""
    return _delivery(connection, connection.execute(_WITH_JOB.where(table.c.id == delivery_id)).mappings().one())


def find(connection: Connection, public_id: str, *, owner: str | None = None) -> Delivery:
    """The message by id, or by a prefix of it that fits one only.

    Args:
        connection: A snapshot.
        public_id: The id, or how it begins.
        owner: Only about jobs of this owner.

    Raises:
        DeliveryNotFound: None, or more than one, fits.
    """
    query = _owned(_WITH_JOB.where(has_id(table.c.public_id, public_id)), owner)
    rows = connection.execute(query.limit(2)).mappings().all()
    if len(rows) != 1:
        what = "several messages have ids that start with" if rows else "no message has the id"
        raise DeliveryNotFound(
            f"{what} {public_id!r}", next_step="list them with: everstep deliveries", delivery=public_id
        )
    return _delivery(connection, rows[0])


def every(
    connection: Connection,
    *,
    state: str | None = None,
    job: str | None = None,
    owner: str | None = None,
    behind: int | None = None,
    limit: int = 100,
) -> list[Delivery]:
    """Messages, newest first.

    Args:
        connection: A snapshot.
        state: Only those in this state.
        job: Only those about the job with this public id.
        owner: Only about jobs of this owner.
        behind: Only those older than the one with this row id.
        limit: Most of them.
    """
    query = _owned(_WITH_JOB.order_by(table.c.id.desc()).limit(limit), owner)
    query = query if state is None else query.where(table.c.state == state)
    query = query if job is None else query.where(agent_jobs.c.public_id == job)
    query = query if behind is None else query.where(table.c.id < behind)
    return [_delivery(connection, row) for row in connection.execute(query).mappings().all()]


def _owned(query: Select[Any], owner: str | None) -> Select[Any]:
    return query if owner is None else query.where(agent_jobs.c.owner == owner)


def count(connection: Connection) -> dict[str, int]:
    """How many messages wait or were given up, by state."""
    query = select(table.c.state, func.count()).where(table.c.state.in_(("pending", "dead"))).group_by(table.c.state)
    found = {str(row[0]): int(row[1]) for row in connection.execute(query)}
    return {"pending": found.get("pending", 0), "dead": found.get("dead", 0)}


# ---- sending


def next_try(connection: Connection, but: Collection[str] = ()) -> int | None:
    """When the first message is due, UTC milliseconds; None if none waits.

    Args:
        connection: A snapshot.
        but: Receivers that are busy, as scheme, host and port; their messages are not meant.
    """
    query = select(func.min(table.c.next_try_at)).where(table.c.state == "pending", _for_others(but))
    return connection.execute(query).scalar_one()


def take(
    connection: Connection, *, holder: str, now: int, lease_ms: int, limit: int, but: Collection[str] = ()
) -> list[Delivery]:
    """Take messages that are due, the longest waiting first; nobody else takes them before the lease ends.

    Args:
        connection: The write transaction.
        holder: Who sends them.
        now: UTC milliseconds.
        lease_ms: How long they are the holder's, milliseconds.
        limit: Most of them.
        but: As for `next_try`.
    """
    due = and_(table.c.state == "pending", table.c.next_try_at <= now, _for_others(but))
    query = select(table.c.id).where(due).order_by(table.c.next_try_at, table.c.id).limit(limit)
    ids = list(connection.execute(query.with_for_update(skip_locked=True)).scalars())
    held = {"leased_by": holder, "lease_until": now + lease_ms, "next_try_at": now + lease_ms}
    connection.execute(update(table).where(table.c.id.in_(ids)).values(**held, tries=table.c.tries + 1))
    return [get(connection, delivery_id) for delivery_id in ids]


def delivered(connection: Connection, delivery: Delivery, *, now: int) -> bool:
    """The receiver took it. Whether that is news: another may have sent it, too, when the lease was over."""
    done = {"state": "delivered", "delivered_at": now, "last_error": None, **_FREE}
    told = update(table).where(table.c.id == delivery.id, table.c.state != "delivered").values(**done)
    return connection.execute(told).rowcount == 1


def failed(connection: Connection, delivery: Delivery, *, reason: str, again_at: int | None) -> bool:
    """The receiver did not take it; whether it was still the caller's.

    Args:
        connection: The write transaction.
        delivery: The message as it was taken.
        reason: Why, in a few words.
        again_at: When to try again, UTC milliseconds; None: it is given up.
    """
    next_try = {"state": "dead"} if again_at is None else {"next_try_at": again_at}
    written = {"last_error": reason[:ERROR_LENGTH], **next_try, **_FREE}
    return connection.execute(update(table).where(_held(delivery)).values(**written)).rowcount == 1


def replay(connection: Connection, delivery: Delivery, *, now: int) -> Delivery:
    """Send a message again, under the same id, whatever became of it."""
    fresh = {"state": "pending", "tries": 0, "next_try_at": now, "delivered_at": None, "last_error": None, **_FREE}
    connection.execute(update(table).where(table.c.id == delivery.id).values(**fresh))
    notify(connection, TOPIC)
    return get(connection, delivery.id)


_FREE: Mapping[str, Any] = {"leased_by": None, "lease_until": None}


def _held(delivery: Delivery) -> Any:
    mine = and_(table.c.leased_by == delivery.leased_by, table.c.tries == delivery.tries)
    return and_(table.c.id == delivery.id, table.c.state == "pending", mine)


def _for_others(but: Collection[str]) -> Any:
    """Not for one of these receivers."""
    url = table.c.url
    theirs = [or_(url == one, *(url.startswith(one + end, autoescape=True) for end in "/?#")) for one in but]
    return and_(true(), *(not_(one) for one in theirs))
