"""The `auth` hook of `langgraph.json`: LangGraph's `Auth` object, with the user's own functions in it.

`authenticate` says who asks; the handlers `@auth.on…` say what they may do, change what is asked, or answer with a
filter that what is found must pass. LangGraph's rules hold: of several handlers the most specific one is asked, and
without any all is allowed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from langgraph_sdk import Auth
from langgraph_sdk.auth.exceptions import HTTPException as HookException
from starlette.exceptions import HTTPException
from starlette.requests import Request

from everstep.errors import ConfigInvalid, GraphLoadFailed
from everstep.graphs.configuration import Configuration, GraphEntry, parse_target
from everstep.graphs.importing import import_graph

logger = logging.getLogger("everstep.server")

Filters = Mapping[str, Any]
"""What the metadata of a thing must hold: a value, `{"$eq": value}` or `{"$contains": value or values}` by key."""

GIVEN = ("request", "body", "path", "method", "path_params", "query_params", "headers", "authorization")
"""What `authenticate` may ask for, by the names of its parameters."""


class User:
    """Who asks, as handlers see it: the identity, and whatever else `authenticate` returned."""

    def __init__(self, told: Any) -> None:
        if isinstance(told, str):
            told = {"identity": told}
        self._told = told
        self.identity = str(self._get("identity") or "")
        if not self.identity:
            raise ValueError("authenticate returned no identity")
        self.display_name = str(self._get("display_name") or self.identity)
        given: Any = self._get("is_authenticated")
        self.is_authenticated = True if given is None else bool(given)
        self.permissions: Sequence[str] = tuple(self._get("permissions") or ())

    def _get(self, name: str) -> Any:
        if isinstance(self._told, Mapping):
            return cast(Mapping[str, Any], self._told).get(name)
        return getattr(self._told, name, None)

    def as_dict(self) -> dict[str, Any]:
        """All that is known of the user."""
        known: dict[str, Any] = dict(cast(Mapping[str, Any], self._told)) if isinstance(self._told, Mapping) else {}
        return {
            **known,
            "identity": self.identity,
            "display_name": self.display_name,
            "is_authenticated": self.is_authenticated,
            "permissions": list(self.permissions),
        }

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or (value := self._get(name)) is None:
            raise AttributeError(name)
        return value

    def __getitem__(self, name: str) -> Any:
        return self.as_dict()[name]

    def __contains__(self, name: object) -> bool:
        return name in self.as_dict()

    def __iter__(self) -> Iterator[str]:
        return iter(self.as_dict())


class AuthHook:
    """An `Auth` object, asked as LangGraph's server asks it."""

    def __init__(self, auth: Auth) -> None:
        self._authenticate: Any = auth._authenticate_handler  # pyright: ignore[reportPrivateUsage]
        self._handlers: Any = auth._handlers  # pyright: ignore[reportPrivateUsage]
        self._for_all: Any = auth._global_handlers  # pyright: ignore[reportPrivateUsage]
        self.asks = _asked_for(self._authenticate)

    async def user(self, request: Request, *, body: Any, path_params: Mapping[str, Any]) -> User:
        """Who asks.

        Raises:
            HTTPException: The hook refuses; with its status, its words and its headers. 500: it failed.
        """
        given: dict[str, Any] = {
            "request": request,
            "body": body,
            "path": request.url.path,
            "method": request.method,
            "path_params": dict(path_params),
            "query_params": dict(request.query_params),
            "headers": dict(request.headers.raw),
            "authorization": request.headers.get("authorization"),
        }
        arguments = {name: given[name] for name in self.asks}
        try:
            if inspect.iscoroutinefunction(self._authenticate):
                return User(await self._authenticate(**arguments))
            told: Any = await asyncio.to_thread(self._authenticate, **arguments)
            return User(await told if inspect.isawaitable(told) else told)
        except Exception as error:
            raise _as_answer(error) from error

    async def allow(self, user: User, resource: str, action: str, value: dict[str, Any]) -> Filters:
        """What the user may see of a resource when they do this.

        Args:
            user: Who asks.
            resource: `threads`, `assistants`, `crons` or `store`.
            action: `create`, `read`, `update`, `delete`, `search`, `create_run`, `put`, `get`, `list_namespaces`.
            value: What is asked; the handler may change it.

        Raises:
            HTTPException: 403: they may not; or what the handler raised.
        """
        handler = self._handler(resource, action)
        if handler is None:
            return {}
        context: Any = Auth.types.AuthContext(
            permissions=user.permissions,
            user=cast(Any, user),
            resource=cast(Any, resource),
            action=cast(Any, action),
        )
        try:
            result = await handler(ctx=context, value=value)
        except Exception as error:
            raise _as_answer(error) from error
        if result is False:
            raise HTTPException(403, "Forbidden")
        if result is None or result is True:
            return {}
        if not isinstance(result, Mapping):
            logger.error("the auth handler of %s.%s returned %s", resource, action, type(result).__name__)
            raise HTTPException(500, "the auth hook failed; the server's log tells why")
        return _checked(cast(Filters, result), resource, action)

    def _handler(self, resource: str, action: str) -> Any:
        for place in ((resource, action), (resource, "*"), ("*", action), ("*", "*")):
            if found := self._handlers.get(place):
                return found[-1]
        return self._for_all[-1] if self._for_all else None


def load(configuration: Configuration, path: str) -> AuthHook:
    """The hook that `auth.path` names.

    Raises:
        ConfigInvalid: It cannot be imported, is no `Auth` object, or its function cannot be asked.
    """
    entry = GraphEntry("auth", parse_target(path, configuration.folder))
    try:
        found = import_graph(entry, configuration.folder)
    except GraphLoadFailed as error:
        raise ConfigInvalid(f"auth.path: {error.message}", next_step=error.next_step, path=path) from error
    if not isinstance(found, Auth):
        raise ConfigInvalid(
            f"auth.path: {path} is no langgraph_sdk.Auth, but {type(found).__name__}",
            next_step="name the variable that holds the Auth object",
            path=path,
        )
    if found._authenticate_handler is None:  # pyright: ignore[reportPrivateUsage]
        raise ConfigInvalid(f"auth.path: {path} has no @auth.authenticate", next_step="add one", path=path)
    return AuthHook(found)


def matches(filters: Filters, metadata: Mapping[str, Any]) -> bool:
    """Whether metadata pass a filter that a handler answered with; an empty one passes everything."""
    return all(_fits(wanted, metadata.get(key)) for key, wanted in filters.items())


def _fits(wanted: Any, found: Any) -> bool:
    if not isinstance(wanted, Mapping):
        return found == wanted
    operator, operand = next(iter(cast(Mapping[str, Any], wanted).items()))
    if operator == "$eq":
        return found == operand
    held = _items(found) if isinstance(found, list | tuple) else []
    return all(each in held for each in (_items(operand) if isinstance(operand, list | tuple) else [operand]))


def _items(value: Any) -> list[Any]:
    return list(value)


def _checked(filters: Filters, resource: str, action: str) -> Filters:
    for key, wanted in filters.items():
        operators = list(cast(Mapping[str, Any], wanted)) if isinstance(wanted, Mapping) else ["$eq"]
        if len(operators) != 1 or operators[0] not in ("$eq", "$contains"):
            logger.error("the filter of %s.%s for %r is not understood: %s", resource, action, key, operators)
            raise HTTPException(500, "the auth hook failed; the server's log tells why")
    return filters


def _asked_for(authenticate: Any) -> tuple[str, ...]:
    asked: list[str] = []
    for parameter in inspect.signature(authenticate).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name in GIVEN:
            asked.append(parameter.name)
        elif parameter.default is parameter.empty:
            raise ConfigInvalid(
                f"auth: authenticate asks for {parameter.name!r}, which the server does not have",
                next_step=f"it may ask for: {', '.join(GIVEN)}",
            )
    return tuple(asked)


def _as_answer(error: Exception) -> HTTPException:
    if isinstance(error, HookException | HTTPException):
        return HTTPException(error.status_code, error.detail, dict(error.headers or {}))
    if isinstance(error, AssertionError):
        return HTTPException(403, str(error) or "Forbidden")
    logger.error("the auth hook failed", exc_info=error)
    return HTTPException(500, "the auth hook failed; the server's log tells why")
