"""Replies by `Idempotency-Key`, on both databases: one creation, one answer, one commit."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import Connection, func, insert, select

from everstep.checkpoints import replies
from everstep.checkpoints.replies import KEPT_MS, Asked, Reply
from everstep.checkpoints.schema import api_keys as created
from everstep.checkpoints.schema import replies as table
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock, uuid7
from everstep.errors import IdempotencyConflict

pytestmark = pytest.mark.both_databases

ASKED = Asked("anna", "POST /things", "key", "digest")


def create(connection: Connection) -> Reply:
    """Make something, and say what."""
    thing = uuid7(1)
    row = {"public_id": thing, "name": "thing", "owner": "anna", "scopes_json": "[]", "key_hash": thing}
    connection.execute(insert(created).values(**row, created_at=1))
    return Reply(201, {"id": thing}, {"Content-Location": f"/things/{thing}"})


def ask(connection: Connection, now: int, asked: Asked = ASKED) -> Reply:
    """What a creating request does."""
    known = replies.begin(connection, asked, now=now)
    return known or replies.remember(connection, asked, create(connection))


def asked(store: Store, request: Asked = ASKED) -> Reply:
    """The answer to a request."""
    return store.write(partial(ask, now=store.clock.now_ms(), asked=request)).result()


def things(store: Store) -> int:
    """How many were created."""
    return store.read(lambda connection: connection.execute(select(func.count(created.c.id))).scalar_one())


def test_the_same_request_has_the_same_answer(store: Store) -> None:
    """Status, headers and body come again, and nothing is created again."""
    first, second = asked(store), asked(store)
    assert first == second
    assert things(store) == 1


def test_another_request_under_the_key_is_refused(store: Store) -> None:
    """The key belongs to the request it came with."""
    asked(store)
    with pytest.raises(IdempotencyConflict):
        asked(store, Asked("anna", "POST /things", "key", "other"))
    assert things(store) == 1


def test_a_key_is_an_owners_and_a_paths(store: Store) -> None:
    """Another owner's key, and the key at another path, are other requests."""
    for request in (ASKED, Asked("bert", "POST /things", "key", "digest"), Asked("anna", "POST /x", "key", "digest")):
        asked(store, request)
    assert things(store) == 3


def test_many_at_once_create_once(store: Store) -> None:
    """Fifty requests at once, over two writers of one record, create one thing and get one answer."""
    barrier = threading.Barrier(50)
    with Store.open(store.url, clock=store.clock) as other, ThreadPoolExecutor(50) as threads:

        def one(number: int) -> Reply:
            barrier.wait()
            return asked(store if number % 2 else other)

        answers = list(threads.map(one, range(50)))
    assert things(store) == 1
    assert all(answer == answers[0] for answer in answers)


def test_what_fails_is_not_remembered(store: Store) -> None:
    """A creation that fails leaves neither itself nor the key; the next request creates."""

    def fails(connection: Connection) -> Reply:
        replies.begin(connection, ASKED, now=store.clock.now_ms())
        create(connection)
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        store.write(fails).result()
    assert things(store) == 0
    asked(store)
    assert things(store) == 1


def test_a_key_is_free_after_a_day(store: Store, clock: ManualClock) -> None:
    """An expired reply counts no more, whether it was pruned or not; prune removes it, and no other."""
    asked(store)
    clock.advance(KEPT_MS - 1)
    asked(store)
    assert things(store) == 1
    clock.advance(1)
    asked(store, Asked("anna", "POST /things", "key", "other"))
    assert things(store) == 2
    clock.advance(KEPT_MS - 1)
    asked(store, Asked("anna", "POST /things", "newer", "digest"))
    clock.advance(1)
    store.prune()
    kept = store.read(lambda connection: connection.execute(select(table.c.idempotency_key)).scalars().all())
    assert kept == ["newer"]
