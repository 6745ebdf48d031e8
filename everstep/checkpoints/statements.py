"""SQL that runs for every job or step, built once: compiled when it first runs on a database, then given to its driver.

Building such a statement anew takes SQLAlchemy twenty times as long as SQLite takes to run it, and finding it in
SQLAlchemy's cache five times. What runs seldom is written as SQLAlchemy Core where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from sqlalchemy import BindParameter, Connection, literal_column
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql import ClauseElement, visitors

NOTHING: Mapping[str, Any] = {}


class Statement:
    """A statement that is built once. Its parameters are `bindparam`s; what it finds comes as plain tuples.

    Args:
        query: The statement, in SQLAlchemy Core. None of its columns may need a conversion by SQLAlchemy, and no
            parameter may be a list. Texts and numbers it is built with, such as a status, stand in its SQL as they are.
    """

    def __init__(self, query: ClauseElement) -> None:
        self._query = query
        self._forms: dict[str, _Form] = {}

    def run(self, connection: Connection, values: Mapping[str, Any] = NOTHING) -> Any:
        """Run it.

        Args:
            connection: The transaction; a snapshot begins if none is under way.
            values: Its parameters, by name.

        Returns:
            The driver's cursor: `fetchone`, `fetchall`, `rowcount`.

        Raises:
            DBAPIError: As SQLAlchemy would.
        """
        form = self._forms.get(connection.dialect.name) or self._compile(connection.dialect)
        driver = _driver(connection)
        try:
            return driver.execute(form.sql, form.parameters(values))
        except form.errors as error:
            raise _explained(connection, form.sql, values, error, form.errors) from error

    def rows(self, connection: Connection, values: Mapping[str, Any] = NOTHING) -> list[dict[str, Any]]:
        """Run it; what it finds, by the names of the columns."""
        cursor = self.run(connection, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def run_all(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Run it for each of some rows of parameters.

        Returns:
            How many rows of the table were changed altogether.
        """
        if len(rows) == 1:
            return int(self.run(connection, rows[0]).rowcount)
        form = self._forms.get(connection.dialect.name) or self._compile(connection.dialect)
        cursor = _driver(connection).cursor()
        try:
            cursor.executemany(form.sql, [form.parameters(row) for row in rows])
        except form.errors as error:
            raise _explained(connection, form.sql, rows, error, form.errors) from error
        return int(cursor.rowcount)

    def _compile(self, dialect: Dialect) -> _Form:
        form = self._forms[dialect.name] = _Form(self._query, dialect)
        return form


def execute(connection: Connection, sql: str, parameters: Sequence[Any] = ()) -> Any:
    """Run SQL of the driver's own, in a transaction that is under way; SQLAlchemy takes eight times as long to.

    Args:
        connection: The transaction.
        sql: A statement in the database's words.
        parameters: Its parameters, in order; a list of tuples to run it once for each.

    Returns:
        The driver's cursor.

    Raises:
        DBAPIError: As SQLAlchemy would.
    """
    driver: Any = connection.connection.dbapi_connection
    cursor = driver.cursor()
    errors: Any = connection.dialect.dbapi.Error  # pyright: ignore[reportOptionalMemberAccess]
    try:
        (cursor.executemany if isinstance(parameters, list) else cursor.execute)(sql, parameters)
    except errors as error:
        raise _explained(connection, sql, parameters, error, errors) from error
    return cursor


class _Form:
    """A statement in the words of one database.

    Attributes:
        sql: The statement.
        parameters: Makes of values by name what the driver takes: in order, or by name.
        errors: What the driver raises.
    """

    def __init__(self, query: ClauseElement, dialect: Dialect) -> None:
        compiled: Any = _with_constants(query, dialect).compile(dialect=dialect)
        driver: Any = dialect.dbapi
        self.sql = str(compiled)
        self.errors: type[Exception] = driver.Error
        constants = {name: value for name, value in compiled.params.items() if not compiled.binds[name].required}
        self.parameters = _taking(compiled.positiontup, constants)


def _taking(names: Sequence[str] | None, constants: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Any]:
    """What takes the values of some names, in order; without names all of them, for a driver that takes them so."""
    if constants:
        take = _taking(names, {})
        return lambda values: take({**constants, **values})
    if names is None:
        return lambda values: values
    return itemgetter(*names) if len(names) > 1 else lambda values: tuple([values[name] for name in names])


def _with_constants(query: ClauseElement, dialect: Dialect) -> ClauseElement:
    """The statement with the texts and numbers it is built with in place of parameters.

    SQLite plans a statement anew, each time it runs, that compares a parameter with a column which an index has a
    condition for, as `status` is: the index may serve for one value and not for another.
    """

    def constant_for(element: Any, **_: Any) -> Any:
        found: Any = element
        # A percent sign would be doubled twice for a driver that takes parameters by it.
        if isinstance(element, BindParameter) and isinstance(found.value, str | int) and "%" not in str(found.value):
            written = found.type.literal_processor(dialect)
            return written and literal_column(written(found.value), found.type)
        return None

    replaced: Any = visitors.replacement_traverse(query, {}, constant_for)
    return replaced


def _driver(connection: Connection) -> Any:
    """The driver's connection, in a transaction."""
    if not connection.in_transaction():
        connection.begin()
    return connection.connection.dbapi_connection


def _explained(connection: Connection, sql: str, values: Any, error: Exception, errors: type[Exception]) -> Exception:
    """The error as SQLAlchemy would raise it; a connection that is broken is not used again."""
    dialect, driver = connection.dialect, connection.connection.dbapi_connection
    if dialect.is_disconnect(error, driver, None):  # pyright: ignore[reportArgumentType]
        connection.invalidate(error)
    return DBAPIError.instance(sql, values, error, errors, dialect=dialect)  # pyright: ignore
