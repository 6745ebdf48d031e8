"""Who asks, and what they may do: API keys, LangGraph's `auth` hook, or, on this machine alone, nobody in particular.

Everything but `/ok`, probes (`health`, `ready`) and what is signed (events of triggers, webhooks of providers) asks for
a key once one was made, or what the hook wants if there is one; a key goes past the hook: who made it has the record
anyway. What a method and a path tell of the scope that is needed is checked here, before the path function is reached:
looking needs `read`, answering a review `review`, what concerns everybody `admin`, all else `run`.

Path functions take `caller: CalledBy`, make for `caller.makes_for`, and answer 404 to what `caller.sees` not. Those of
LangGraph's resources ask the hook besides, before they do anything:

    value = body.model_dump()
    filters = await access.allow(request, "threads", "create", value)   # raises 403; may have changed `value`
    …
    if not access.matches(filters, thread.metadata): …                 # as if it were not there

The resources are `threads` (of runs, too: `create_run`, `read`, `update`, `delete`, `search`), `assistants`, `crons`
and `store` (`put`, `get`, `search`, `delete`, `list_namespaces`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any, cast

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everstep.checkpoints import api_keys, jobs
from everstep.checkpoints.api_keys import ApiKey
from everstep.checkpoints.store import Store
from everstep.errors import EverstepError, NotPermitted, Unauthenticated
from everstep.server import failures
from everstep.server.auth_hook import AuthHook, Filters, User, matches
from everstep.server.context import Caller, Settings, served
from everstep.server.loopback import is_from_graph, job_of
from everstep.server.wire import TOO_LARGE

__all__ = ["Access", "Filters", "allow", "matches", "require"]

OF_HOOK_USERS = frozenset({"read", "run", "review"})
ADMIN_PERMISSION = "everstep:admin"
"""A permission of a user of the hook: may do what concerns everybody, too."""

_OPEN = re.compile(r"GET /ok|GET /everstep/(health|ready)|POST /everstep/triggers/[^/]+|POST /webhooks/[^/]+")
_LOOKS = re.compile(
    r"""POST\ (
      /(threads|assistants|runs/crons|store/items)/(search|count)
    | /assistants/[^/]+/versions
    | /threads/[^/]+/(history|state/checkpoint|stream/events)
    | /store/namespaces
    | /everstep/quotes
    )""",
    re.VERBOSE,
)
_ANSWERS = re.compile(r"[A-Z]+ /everstep/(reviews(/.*)?|jobs/[^/]+/budget)")
_CONCERNS_EVERYBODY = re.compile(
    r"[A-Z]+ /everstep/((services|keys|dead-letters|trigger-events)(/.*)?|provider-tasks/[^/]+/(reconcile|link))"
)


async def allow(request: Request, resource: str, action: str, value: dict[str, Any]) -> Filters:
    """Ask the hook whether this may be done.

    Args:
        request: The request.
        resource: `threads`, `assistants`, `crons` or `store`.
        action: What is done; see the module.
        value: What is asked; a handler may change it, so use it afterwards.

    Returns:
        What the metadata of whatever is seen or changed must hold; empty if there is nothing to hold, or no hook.

    Raises:
        HTTPException: The hook refuses, by 403 or as it likes.
    """
    user: User | None = getattr(request.state, "user", None)
    hook: AuthHook | None = getattr(request.app.state, "auth_hook", None)
    return {} if user is None or hook is None else await hook.allow(user, resource, action, value)


def require(caller: Caller, scope: str) -> None:
    """Refuse whoever may not do this.

    Raises:
        Unauthenticated: Nobody said who asks.
        NotPermitted: It is somebody who may not.
    """
    if caller.may(scope):
        return
    if not caller.scopes:
        raise _unauthenticated("this needs an API key")
    raise NotPermitted(
        f"the key or user {caller.identity!r} may not do this: it needs the scope {scope}",
        next_step=f"ask for a key with --scope {scope}",
        scope=scope,
    )


def needed(method: str, path: str) -> str | None:
    """The scope that a request needs by its method and path; None: it is open to everybody."""
    asked = f"{method} {path}"
    if _OPEN.fullmatch(asked):
        return None
    if method in ("GET", "HEAD", "OPTIONS") or _LOOKS.fullmatch(asked):
        return "read"
    if _ANSWERS.fullmatch(asked):
        return "review"
    return "admin" if _CONCERNS_EVERYBODY.fullmatch(asked) else "run"


class Access:
    """Middleware: finds out who asks, refuses whoever may not, and tells the path function by `request.state`.

    Args:
        app: What is guarded.
        store: The record.
        settings: How the server answers.
        hook: LangGraph's `auth` hook, if there is one.
    """

    def __init__(self, app: ASGIApp, store: Store, settings: Settings, hook: AuthHook | None) -> None:
        self._app = app
        self._hook = hook
        self._keys = _Keys(store, settings.key_memory_s)
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request = Request({**scope, "type": "http", "method": scope.get("method", "GET")}, receive)
        path = str(scope["path"]).removeprefix(scope.get("root_path", "")) or "/"
        state = scope.setdefault("state", {})
        try:
            scope_needed = needed(request.method, path)
            state["caller"], state["user"], receive = await self._who(request, receive, optional=scope_needed is None)
            if scope_needed is not None:
                require(state["caller"], scope_needed)
        except (EverstepError, HTTPException) as error:
            await _refuse(error, scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _who(self, request: Request, receive: Receive, *, optional: bool) -> tuple[Caller, User | None, Receive]:
        if is_from_graph(request.scope):
            return await self._graph(job_of(request.scope)), None, receive
        given = _key_given(request)
        if given is not None and (key := await self._keys.valid(given)) is not None:
            owner = None if key.owner == api_keys.EVERYBODY else key.owner
            return Caller(owner, frozenset(key.scopes), key.name), None, receive
        if self._hook is not None and not (optional and not request.headers.get("authorization")):
            body: Any = None
            if "body" in self._hook.asks:
                raw, receive = await _whole_body(receive, request)
                body = _parsed(raw)
            user = await self._hook.user(request, body=body, path_params=_path_params(request))
            scopes = OF_HOOK_USERS | ({"admin"} if ADMIN_PERMISSION in user.permissions else set[str]())
            return Caller(user.identity, frozenset(scopes), user.identity), user, receive
        if optional:
            return Caller("anonymous", frozenset(), "anonymous"), None, receive
        if self._hook is None and not await self._keys.were_made():
            return Caller(), None, receive
        what = "this API key does not count" if given is not None else "this needs an API key"
        raise _unauthenticated(what)

    async def _graph(self, job_id: int | None) -> Caller:
        """A graph that calls its own server does so for the owner of its job."""
        if job_id is None:
            return Caller(None, frozenset({"*"}), "graph")
        job = await self._store.aread(lambda connection: jobs.get(connection, job_id))
        return Caller(job.owner, frozenset({"*"}), f"job {job.public_id}")


class _Keys:
    """Looks keys up, and remembers for a moment what was found; unknown ones are not remembered."""

    def __init__(self, store: Store, memory_s: float) -> None:
        self._store = store
        self._memory_s = memory_s
        self._found: dict[str, tuple[float, ApiKey]] = {}
        self._made = False
        self._looked_at = float("-inf")

    async def valid(self, given: str) -> ApiKey | None:
        key_hash, now = api_keys.hash_of(given), time.monotonic()
        found_at, key = self._found.get(key_hash, (float("-inf"), None))
        if key is None or now - found_at >= self._memory_s:
            key = await self._store.aread(lambda connection: api_keys.with_hash(connection, key_hash))
            self._found = {known: each for known, each in self._found.items() if now - each[0] < self._memory_s}
            if key is None:
                return None
            self._note_use(key)
            self._found[key_hash] = (now, key)
        return key if key.state(self._store.clock.now_ms()) == "valid" else None

    def _note_use(self, key: ApiKey) -> None:
        now = self._store.clock.now_ms()
        if key.state(now) == "valid" and now - (key.last_used_at or 0) >= api_keys.USED_EVERY_MS:
            self._store.write(lambda connection: api_keys.used(connection, key, now=now), patient=True)

    async def were_made(self) -> bool:
        """Whether any key was ever made; once one was, that stays so."""
        now = time.monotonic()
        if not self._made and now - self._looked_at >= self._memory_s:
            self._made = await self._store.aread(api_keys.any_made)
            self._looked_at = now
        return self._made


def _key_given(request: Request) -> str | None:
    """The key of the request; other systems' keys, which clients send along from their environment, are none."""
    scheme, _, credential = request.headers.get("authorization", "").partition(" ")
    given = (request.headers.get("x-api-key"), credential.strip() if scheme.lower() == "bearer" else None)
    return next((key for key in given if key and key.startswith(api_keys.PREFIX)), None)


def _unauthenticated(what: str) -> Unauthenticated:
    return Unauthenticated(what, next_step="send x-api-key: esk_…; make one with: everstep keys create NAME")


def _path_params(request: Request) -> Mapping[str, Any]:
    routes = cast(list[BaseRoute], request.app.router.routes)
    for route in routes:
        match, child = route.matches(request.scope)
        if match is Match.FULL:
            return cast(Mapping[str, Any], child.get("path_params", {}))
    return {}


async def _whole_body(receive: Receive, request: Request) -> tuple[bytes, Receive]:
    """The body, and what gives it once more to whoever is behind."""
    most = served(request).settings.most_body_bytes
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            break
        body, more = body + message.get("body", b""), message.get("more_body", False)
        if len(body) > most:
            raise HTTPException(413, TOO_LARGE)
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return body, again


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return None


async def _refuse(error: EverstepError | HTTPException, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        code = failures.status_of(error) if isinstance(error, EverstepError) else error.status_code
        await send({"type": "websocket.close", "code": 4000 + code})
        return
    response = failures.refusal(error)
    await response(scope, receive, send)
