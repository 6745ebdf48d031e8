"""API keys: who may ask the server, for whom and what. A key is shown once; the record holds its SHA-256 alone.

A key is 256 random bits, so its hash needs no salt and no slow function: it is found by its hash, and there is nothing
to guess and nothing to compare byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, insert, select, update

from everstep.checkpoints.database import has_id
from everstep.checkpoints.schema import api_keys
from everstep.clock import uuid7
from everstep.errors import ApiKeyNotFound, PayloadInvalid

PREFIX = "esk_"
SCOPES = ("read", "run", "review", "admin")
"""What a key may do: look; start, change and cancel; answer reviews; everything. Each of them may look."""
EVERYBODY = "*"
"""As an owner: the key sees everybody's."""
USED_EVERY_MS = 60_000
"""How exactly the moment of a key's last use is kept, milliseconds."""


@dataclass(frozen=True)
class ApiKey:
    """A row of `api_keys`. Times are UTC milliseconds.

    Attributes:
        owner: Whose jobs, threads and schedules it sees and makes; `*`: it sees everybody's.
        scopes: What it may do; see `SCOPES`.
    """

    id: int
    public_id: str
    name: str
    owner: str
    scopes: tuple[str, ...]
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None

    def state(self, now: int) -> str:
        """`valid`, `revoked` or `expired`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "valid"


def create(
    connection: Connection,
    *,
    name: str,
    owner: str,
    scopes: Sequence[str],
    now: int,
    expires_at: int | None = None,
    entropy: Callable[[int], bytes] = secrets.token_bytes,
) -> tuple[ApiKey, str]:
    """Make a key.

    Args:
        connection: The write transaction.
        name: What it is for, in the words of whoever makes it.
        owner: Whose jobs, threads and schedules it sees and makes; `*`: it sees everybody's.
        scopes: What it may do.
        now: UTC milliseconds.
        expires_at: Until when it counts, UTC milliseconds; None: until it is revoked.
        entropy: Where its random bytes come from.

    Returns:
        The row, and the key itself, which nobody can read again.

    Raises:
        PayloadInvalid: A scope is unknown or there is none, the name or the owner is empty, or it would be expired.
    """
    unknown = [scope for scope in scopes if scope not in SCOPES]
    if unknown or not scopes:
        said = f"there is no scope {unknown[0]!r}" if unknown else "a key without a scope may do nothing"
        raise PayloadInvalid(said, next_step=f"give one or more of: {', '.join(SCOPES)}")
    if not name.strip() or not owner.strip():
        raise PayloadInvalid("a key needs a name and an owner", next_step="everstep keys create NAME --owner OWNER")
    if expires_at is not None and expires_at <= now:
        raise PayloadInvalid("the key would have expired already", next_step="give a later moment")
    key = PREFIX + entropy(32).hex()
    values = {
        "public_id": uuid7(now),
        "name": name.strip(),
        "owner": owner.strip(),
        "scopes_json": json.dumps(sorted(set(scopes), key=SCOPES.index)),
        "key_hash": hash_of(key),
        "created_at": now,
        "expires_at": expires_at,
    }
    row = connection.execute(insert(api_keys).values(values).returning(api_keys)).mappings().one()
    return _key_of(row), key


def hash_of(key: str) -> str:
    """What the record knows a key by."""
    return hashlib.sha256(key.encode()).hexdigest()


def with_hash(connection: Connection, key_hash: str) -> ApiKey | None:
    """The key that has this hash, whether it counts or not."""
    row = connection.execute(select(api_keys).where(api_keys.c.key_hash == key_hash)).mappings().one_or_none()
    return None if row is None else _key_of(row)


def any_made(connection: Connection) -> bool:
    """Whether a key was ever made, were it revoked since: then whoever asks has to have one."""
    return connection.execute(select(api_keys.c.id).limit(1)).first() is not None


def any_valid(connection: Connection, *, now: int) -> bool:
    """Whether there is a key that counts."""
    return any(key.state(now) == "valid" for key in every(connection))


def every(connection: Connection) -> list[ApiKey]:
    """All keys, newest first."""
    query = select(api_keys).order_by(api_keys.c.id.desc())
    return [_key_of(row) for row in connection.execute(query).mappings()]


def used(connection: Connection, key: ApiKey, *, now: int) -> None:
    """Note that a key was used."""
    connection.execute(update(api_keys).where(api_keys.c.id == key.id).values(last_used_at=now))


def revoke(connection: Connection, public_id: str, *, now: int) -> ApiKey:
    """Revoke a key; one that was revoked stays as it was.

    Raises:
        ApiKeyNotFound: No key, or more than one, has an id that begins so.
    """
    query = select(api_keys).where(has_id(api_keys.c.public_id, public_id)).limit(2)
    found = [_key_of(row) for row in connection.execute(query).mappings()] if public_id else []
    if len(found) != 1:
        problem = f"no key has the id {public_id!r}" if not found else f"several keys have ids that begin {public_id!r}"
        raise ApiKeyNotFound(problem, next_step="list them with: everstep keys list", key=public_id)
    unrevoked = (api_keys.c.id == found[0].id, api_keys.c.revoked_at.is_(None))
    connection.execute(update(api_keys).where(*unrevoked).values(revoked_at=now))
    row = connection.execute(select(api_keys).where(api_keys.c.id == found[0].id)).mappings().one()
    return _key_of(row)


def _key_of(row: RowMapping) -> ApiKey:
    return ApiKey(
        id=row["id"],
        public_id=row["public_id"],
        name=row["name"],
        owner=row["owner"],
        scopes=tuple(json.loads(row["scopes_json"])),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        last_used_at=row["last_used_at"],
    )
