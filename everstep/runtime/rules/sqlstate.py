"""SQLSTATE: what PostgreSQL says of an error, by psycopg, asyncpg or psycopg2, and through SQLAlchemy.

More precise than the exception's type: a deadlock and a missing table are both an `OperationalError` or a
`ProgrammingError` of somebody's. A transaction that failed was rolled back; but one before it may have been committed
in the same call, so none of these proves that nothing was done.
"""

from __future__ import annotations

from dataclasses import replace

from everstep.runtime.attributes import libraries_of, read
from everstep.runtime.rules.rule import CODE, DATABASE, NO_WAY, Rule

_DUPLICATE = Rule("review", "the database refused a duplicate or a dangling reference: done before?")
_VALUE = Rule("review", "a value does not fit the database; the input, or the code that made it")
_BESIDE = Rule("retry", "another transaction was in the way; this one was rolled back")
_NO_WAY = replace(NO_WAY, surely_not_sent=False)
_STOPPED = Rule("retry", "the database gave the statement up; its transaction was rolled back")

SQLSTATES: dict[str, Rule] = {
    "40": _BESIDE,
    "55P03": _BESIDE,
    "55006": _BESIDE,
    "57014": _STOPPED,
    "25P03": _STOPPED,
    "08": DATABASE,
    "53": DATABASE,
    "57P": DATABASE,
    "58": DATABASE,
    "25006": Rule("retry", "the database takes no writes now, as a standby does"),
    "22": _VALUE,
    "23": _DUPLICATE,
    "40002": _DUPLICATE,
    "28": _NO_WAY,
    "42501": _NO_WAY,
    "42": CODE,
    "3D": CODE,
    "3F": CODE,
}
"""By how a code begins; the longest decides."""

_DRIVERS = frozenset({"psycopg", "psycopg2", "asyncpg"})


def rule_by_sqlstate(error: BaseException) -> tuple[str, Rule] | None:
    """The rule of the SQLSTATE that a driver's exception carries, or the one SQLAlchemy wraps; with its name."""
    found = read(error, "orig") if "sqlalchemy" in libraries_of(error) else error
    if not isinstance(found, BaseException) or _DRIVERS.isdisjoint(libraries_of(found)):
        return None
    code = read(found, "sqlstate") or read(found, "pgcode")
    for length in (5, 3, 2) if isinstance(code, str) else ():
        if code[:length] in SQLSTATES:
            return f"sqlstate {code}", SQLSTATES[code[:length]]
    return None
