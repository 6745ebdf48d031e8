"""API keys, on both databases: shown once, known by their hash, until they expire or are revoked."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from everstep.checkpoints import api_keys
from everstep.checkpoints.api_keys import ApiKey
from everstep.checkpoints.schema import api_keys as table
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.credentials import holds_secret
from everstep.errors import ApiKeyNotFound, PayloadInvalid

pytestmark = pytest.mark.both_databases


def make(store: Store, **more: Any) -> tuple[ApiKey, str]:
    """A key."""
    given: dict[str, Any] = {"name": "laptop", "owner": "anna", "scopes": ["run", "read"], **more}
    return store.write(partial(api_keys.create, now=store.clock.now_ms(), **given)).result()


def found(store: Store, key: str) -> ApiKey | None:
    """What the record knows a key as."""
    return store.read(partial(api_keys.with_hash, key_hash=api_keys.hash_of(key)))


def test_a_key_is_found_by_its_hash_alone(store: Store) -> None:
    """The record holds no part of the key; scopes stand in their order."""
    made, key = make(store)
    assert found(store, key) == made
    assert made.scopes == ("read", "run")
    assert found(store, key[:-1] + ("0" if key[-1] != "0" else "1")) is None
    (row,) = store.read(lambda connection: connection.execute(table.select()).mappings().all())
    assert key[4:] not in repr(dict(row))


def test_a_key_is_256_random_bits(store: Store) -> None:
    """It begins `esk_`, so that it is told to be a credential wherever it stands; the rest is 64 hexadecimal digits."""
    _, key = make(store)
    _, other = make(store)
    assert len(bytes.fromhex(key.removeprefix(api_keys.PREFIX))) == 32
    assert key != other
    assert holds_secret(f"the key is {key}")


def test_a_key_expires_and_is_revoked(store: Store, clock: ManualClock) -> None:
    """It counts until its moment, or until it is revoked by the beginning of its id; the first revocation stands."""
    made, _ = make(store, expires_at=clock.now_ms() + 1000)
    lasting, key = make(store)
    assert made.state(clock.now_ms()) == "valid"
    clock.advance(1000)
    assert made.state(clock.now_ms()) == "expired"
    revoke = partial(api_keys.revoke, public_id=lasting.public_id)
    revoked = store.write(partial(revoke, now=5)).result()
    assert store.write(partial(revoke, now=9)).result() == revoked == found(store, key)
    assert (revoked.revoked_at, revoked.state(clock.now_ms())) == (5, "revoked")
    assert not store.read(partial(api_keys.any_valid, now=clock.now_ms()))
    assert store.read(api_keys.any_made)
    with pytest.raises(ApiKeyNotFound):
        store.write(partial(api_keys.revoke, public_id="0000", now=9)).result()


@pytest.mark.parametrize(
    "wrong", [{"scopes": []}, {"scopes": ["write"]}, {"name": " "}, {"owner": ""}, {"expires_at": 1}], ids=str
)
def test_a_useless_key_is_not_made(store: Store, wrong: dict[str, Any]) -> None:
    """Without a scope, a name or an owner, with a scope that is none, or expired, it is refused."""
    with pytest.raises(PayloadInvalid):
        make(store, **wrong)
    assert store.read(api_keys.every) == []
