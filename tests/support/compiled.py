"""SQL compiled once for all records of a process: the engine of each would compile every statement anew.

What a statement compiles to depends on its dialect, of which each engine has an object of its own, equal to the others
of its kind. Most tests open a record of their own, and compiling was more than half of what many of them did.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, event


class _ByKind(dict[Any, Any]):
    """A cache of compiled statements, by the kind of their dialect instead of the object."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(self._of(key), default)

    def __setitem__(self, key: Any, compiled: Any) -> None:
        super().__setitem__(self._of(key), compiled)

    def _of(self, key: Any) -> Any:
        return (type(key[0]), *key[1:])


def share() -> None:
    """From now on all engines of this process, and of those it forks, use one cache."""
    compiled = _ByKind()

    @event.listens_for(Engine, "engine_connect")
    def use(connection: Connection) -> None:
        connection.execution_options(compiled_cache=compiled)
