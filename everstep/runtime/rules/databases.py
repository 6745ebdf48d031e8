"""SQLAlchemy and psycopg. An `OperationalError` of SQLite is told apart further by SQLite's result code (`classify`).

What PostgreSQL itself says goes by its SQLSTATE (`sqlstate`).
"""

from __future__ import annotations

from everstep.runtime.rules.rule import CODE, DATABASE, UNSURE, Rule

DATABASES: dict[str, dict[str, Rule]] = {
    "sqlalchemy.exc": {
        "TimeoutError": Rule("retry", "no database connection became free in time", surely_not_sent=True),
        "OperationalError": DATABASE,
        "InterfaceError": DATABASE,
        "DisconnectionError": DATABASE,
        "IntegrityError": Rule("review", "the database refused a duplicate or a dangling reference: done before?"),
        "DataError": Rule("review", "a value does not fit the database; the input, or the code that made it"),
        "InternalError": UNSURE,
        "ProgrammingError": CODE,
        "NotSupportedError": CODE,
        "StatementError": CODE,
        "ArgumentError": CODE,
        "CompileError": CODE,
        "InvalidRequestError": CODE,
    },
    "psycopg": {"OperationalError": DATABASE},
}
