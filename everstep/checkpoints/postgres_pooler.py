"""What stands between us and PostgreSQL: a pooler such as PgBouncer, which has its own mind about sessions.

It may refuse the settings that a connection asks for as it begins, or drop them: then they are set by statements. And
it may give a server's session to another client after each transaction: then `LISTEN`, the lock of a migration and
every setting get lost, and it is refused. Statements are not prepared here: that would be left to the next client.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from everstep.errors import StoreUrlInvalid

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

logger = logging.getLogger("everstep.record")
SILENT_S = 5.0
"""Seconds that a pooler may let a connection wait before that is said. PgBouncer says so itself after two minutes."""
_OPTION = re.compile(r"(?:-c\s*|--)(?P<name>[\w.-]+)=(?P<value>(?:\\.|\S)*)")
_REFUSALS = ("startup parameter", "command-line options")
"""Words of PgBouncer and of Amazon's proxy, which speak English only."""
_FULL_POOLER = ("query_wait_timeout", "max_client_conn", "max_db_client_connections", "max_user_client_connections")
_FULL_SERVER = ("too many clients already", "connection slots are reserved", "too many connections for")


class Found(NamedTuple):
    """What a connection tells of its way: its own `lock_timeout`, and whether something stands between."""

    lock_timeout: str
    is_between: bool


def look(connection: psycopg.Connection[Any]) -> Found:
    """What the server says of a connection, whose rows are dicts.

    A pooler makes up the number of the server's process that it tells as a connection begins.
    """
    query = "SELECT pg_backend_pid() AS process, current_setting('lock_timeout') AS lock_timeout"
    row: dict[str, Any] = connection.execute(query, prepare=False).fetchone() or {}
    return Found(str(row.get("lock_timeout")), row.get("process") != connection.info.backend_pid)


def refuses_options(error: BaseException) -> bool:
    """Whether a connection failed because it asked for settings as it began."""
    return any(words in str(error) for words in _REFUSALS)


def room_for(message: str) -> str:
    """What to do where a connection failed for want of a free one; empty if it failed for something else.

    Args:
        message: What the pooler or the server said.
    """
    if any(words in message for words in _FULL_POOLER):
        where = "the pooler (PgBouncer: default_pool_size, max_client_conn)"
    elif any(words in message for words in _FULL_SERVER):
        where = "PostgreSQL (max_connections, or the limit of the user or database)"
    else:
        return ""
    return f"all connections are taken: allow more of them in {where}, or run fewer processes; a worker holds up to 12"


class Patience:
    """Says, once, that a connection waits for its session: by itself a pooler that is full is silent for long.

    Args:
        label: The record's name.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._said = False

    @contextmanager
    def kept(self) -> Generator[None]:
        """While entered, something waits for the first answer to a connection."""
        waiting = threading.Timer(SILENT_S, self._say)
        waiting.daemon = True
        waiting.start()
        try:
            yield
        finally:
            waiting.cancel()

    def _say(self) -> None:
        if not self._said:
            self._said = True
            said = "a connection to %s was not served for %g s, and waits on; behind a pooler it means that %s"
            logger.warning(said, self._label, SILENT_S, room_for(_FULL_POOLER[0]))


def settings_in(options: str) -> list[tuple[str, str]]:
    """The settings of libpq's parameter `options`: `-c NAME=VALUE`, `-cNAME=VALUE` or `--NAME=VALUE`, in their order.

    Args:
        options: As PostgreSQL reads them: a backslash goes before a blank that belongs to a value.
    """
    found = (
        (one["name"].replace("-", "_"), re.sub(r"\\(.)", r"\1", one["value"])) for one in _OPTION.finditer(options)
    )
    return [*dict(found).items()]


def set_by_statement(connection: psycopg.Connection[Any], options: str) -> None:
    """Make settings for the rest of a session, and commit them."""
    settings = settings_in(options)
    if settings:
        words = ", ".join(["set_config(%s, %s, false)"] * len(settings))
        values = [part for setting in settings for part in setting]
        connection.execute(f"SELECT {words}".encode(), values, prepare=False)
    if not connection.autocommit:
        connection.commit()


def require_sessions(
    connection: psycopg.Connection[Any],
    another: Callable[[], AbstractContextManager[psycopg.Connection[Any]]],
    label: str,
) -> None:
    """Find out whether a pooler leaves a session to its client.

    Args:
        connection: In autocommit mode, with rows as dicts.
        another: Opens another such connection.
        label: The record's name.

    Raises:
        StoreUrlInvalid: It does not.
    """
    import psycopg

    mark = secrets.token_hex(8)
    connection.execute("SELECT set_config('everstep.session', %s, false)", (mark,), prepare=False)
    try:
        with another() as other, other.transaction():
            # The other one has taken the session over, or holds another while the first asks.
            shared = _marked(other) == mark or _marked(connection) != mark
    except psycopg.errors.ProtocolViolation:  # no transaction of more than one statement is let through
        shared = True
    if shared:
        raise StoreUrlInvalid(
            f"the pooler in front of {label} gives a session to others after each transaction or statement",
            next_step="name the server itself, or let the pooler work by session (PgBouncer: pool_mode=session)",
        )


def _marked(connection: psycopg.Connection[Any]) -> str | None:
    row = connection.execute("SELECT current_setting('everstep.session', true) AS mark", prepare=False).fetchone()
    return None if row is None else row["mark"]
