"""`effect`: the one way a node touches the outside world.

LangGraph replays node bodies. So the intent is committed before the call and the result after it; a replay finds the
result and does not call. What was interrupted in between is unknown: a probe looks, or the provider honours the same
key, or a person says.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast, overload

from langchain_core.tools import BaseTool

from everstep.errors import EffectInvalid
from everstep.nodes import approval as approvals
from everstep.nodes import arguments
from everstep.nodes.attempt import Attempt, any_running, current
from everstep.nodes.edited_arguments import UNCHANGED, Changes, applied, types_of
from everstep.nodes.effect_drivers import Steps, drive, drive_async
from everstep.nodes.effect_identity import Declaration, Wording
from everstep.nodes.effect_life import EffectUnknown, Target, effect_key, steps

__all__ = ["EffectUnknown", "effect", "effect_key"]

logger = logging.getLogger("everstep.effect")

P = ParamSpec("P")
R = TypeVar("R")
ToolT = TypeVar("ToolT", bound=BaseTool)


@overload
def effect(
    target: ToolT,
    /,
    *,
    probe: Callable[..., Any] | None = None,
    idempotent: bool = False,
    approval: Wording = None,
) -> ToolT: ...
@overload
def effect(target: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def effect(
    name: str | None = None,
    /,
    *,
    probe: Callable[..., Any] | None = None,
    idempotent: bool = False,
    key: Callable[..., Any] | str | None = None,
    approval: Wording = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def effect(
    target: Any = None,
    /,
    *,
    probe: Callable[..., Any] | None = None,
    idempotent: bool = False,
    key: Callable[..., Any] | str | None = None,
    approval: Wording = None,
) -> Any:
    """Make a function or a LangChain tool an effect: recorded before and after, never done twice.

    Use it as `@effect("git.push", probe=remote_has)` over a function (sync or async), as plain `@effect`, or as
    `effect(tool)`. Outside a job it is a plain call. The result must be storable, and is returned as a replay would
    return it.

    A call that raises is settled by its exception: one that surely left the world untouched (`EffectRejected`, a
    refused connection, an HTTP 4xx or 429 or 503) may run again; after any other the effect is unknown: the probe
    looks, or the next attempt calls again with the same key (`idempotent`), or the job goes to review.

    Args:
        target: The effect's name (dotted, such as `git.push`), or a tool.
        probe: Reads the world, given the same arguments: the result if the effect happened, None if it did not. Sync or
        async.
        idempotent: The provider honours idempotency keys. The key is passed as `idempotency_key` if the function takes
        it; tools
            ask `effect_key()`.
        key: A business key in place of the arguments: a function of them, or a fixed string. One call a job for each
        key.
        approval: A person must approve each call before it is made, with its exact arguments: the question, a function
            of the arguments that words it, or True. See docs/reviews.md.

    Raises:
        EffectInvalid: It is a generator function; or, at the call, an argument is not the same in every replay.
        ApprovalRejected: At the call: the person said no, or answered in its place. Nothing was called.
    """
    if isinstance(target, BaseTool):
        return _of_tool(target, Declaration(target.name, probe, idempotent, key, approval))
    if callable(target):
        return _of_function(target, Declaration(_name_of(target), probe, idempotent, key, approval))

    def declared(function: Callable[..., Any]) -> Callable[..., Any]:
        return _of_function(function, Declaration(target or _name_of(function), probe, idempotent, key, approval))

    return declared


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _of_function(function: Callable[..., Any], declaration: Declaration) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise EffectInvalid(
            f"effect {declaration.name} is a generator function, which does nothing when it is called",
            next_step="make it an ordinary function that does the work and returns",
            effect=declaration.name,
        )
    takes_key = "idempotency_key" in inspect.signature(function).parameters
    types = functools.cache(lambda: types_of(function))

    def life(attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
        given = arguments.bound(function, args, kwargs)

        def call(changes: Changes, key: str) -> Any:
            positional, named = applied(function, args, kwargs, changes)
            return function(*positional, **({**named, "idempotency_key": key} if takes_key else named))

        def probe(changes: Changes) -> Any:
            if declaration.probe is None:
                return None
            positional, named = applied(function, args, kwargs, changes)
            return declaration.probe(*positional, **named)

        return steps(attempt, declaration, given, None, Target(call, probe, types))

    def alone(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if not declaration.approval:
            return args, kwargs
        given = arguments.bound(function, args, kwargs)
        return applied(function, args, kwargs, _approved_alone(declaration, given, types))

    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004

        @functools.wraps(function)
        async def effectful_async(*args: Any, **kwargs: Any) -> Any:
            attempt = _attempt(declaration)
            if attempt is None:
                args, kwargs = alone(args, kwargs)
                return await function(*args, **kwargs)
            return await drive_async(attempt, life(attempt, args, kwargs))

        return effectful_async

    @functools.wraps(function)
    def effectful(*args: Any, **kwargs: Any) -> Any:
        attempt = _attempt(declaration)
        if attempt is None:
            args, kwargs = alone(args, kwargs)
            return function(*args, **kwargs)
        return drive(attempt, life(attempt, args, kwargs))

    return effectful


def _of_tool(tool: ToolT, declaration: Declaration) -> ToolT:
    """A copy of the tool whose calls are effects; the tool call's id stands for the place of the call."""
    kind: Any = type(tool)
    tool_call_id: ContextVar[str | None] = ContextVar("everstep_tool_call_id", default=None)
    schema: Any = tool.tool_call_schema
    accepted: set[str] | None = set(schema.model_fields) if hasattr(schema, "model_fields") else None

    def types() -> Changes:
        return {name: field.annotation for name, field in getattr(schema, "model_fields", {}).items()}

    def given_in(kwargs: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in kwargs.items() if accepted is None or name in accepted}

    def life(attempt: Attempt, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
        given = given_in(kwargs)

        def call(changes: Changes, key: str) -> Any:
            del key
            positional, named = _changed(args, kwargs, changes)
            return run(*positional, **named)

        def probe(changes: Changes) -> Any:
            if declaration.probe is None:
                return None
            positional, named = _changed(args, given, changes)
            return declaration.probe(*positional, **named)

        return steps(attempt, declaration, _described(args, given), tool_call_id.get(), Target(call, probe, types))

    def alone(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if declaration.approval:
            changes = _approved_alone(declaration, _described(args, given_in(kwargs)), types)
            args, kwargs = _changed(args, kwargs, changes)
        return run(*args, **kwargs)

    def invoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        token = tool_call_id.set(_call_id(input))
        try:
            return kind.invoke(self, input, config, **kwargs)
        finally:
            tool_call_id.reset(token)

    async def ainvoke(self: Any, input: Any, config: Any = None, **kwargs: Any) -> Any:
        token = tool_call_id.set(_call_id(input))
        try:
            return await kind.ainvoke(self, input, config, **kwargs)
        finally:
            tool_call_id.reset(token)

    @functools.wraps(kind._run)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        attempt = _attempt(declaration)
        call = functools.partial(kind._run, self)
        if attempt is None:
            return alone(call, args, kwargs)
        return _as_tool_result(tool, drive(attempt, life(attempt, call, args, kwargs)))

    @functools.wraps(kind._arun)
    async def arun(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_natively_async(tool):
            return await kind._arun(self, *args, **kwargs)
        attempt = _attempt(declaration)
        call = functools.partial(kind._arun, self)
        if attempt is None:
            return await alone(call, args, kwargs)
        return _as_tool_result(tool, await drive_async(attempt, life(attempt, call, args, kwargs)))

    overrides = {"invoke": invoke, "ainvoke": ainvoke, "_run": run, "_arun": arun, "__module__": kind.__module__}
    copy: Any = tool.model_copy()
    copy.__class__ = type(kind.__name__, (kind,), overrides)
    return cast("ToolT", copy)


def _as_tool_result(tool: BaseTool, result: Any) -> Any:
    """Content and artifact are a tuple, which the record keeps as a list; a person may give content alone."""
    if tool.response_format != "content_and_artifact":
        return result
    if isinstance(result, (list, tuple)) and len(cast("list[Any]", result)) == 2:
        return tuple(cast("list[Any]", result))
    return result, None


def _call_id(given: Any) -> str | None:
    return cast("dict[str, Any]", given).get("id") if isinstance(given, dict) else None


def _is_natively_async(tool: BaseTool) -> bool:
    """Whether the tool's async form is its own; otherwise it runs `_run` in a thread, and that call is the effect."""
    if hasattr(tool, "coroutine"):
        return getattr(tool, "coroutine", None) is not None
    return type(tool)._arun is not BaseTool._arun  # pyright: ignore[reportPrivateUsage]


def _described(args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a tool by name; what has no name is its input."""
    return {**given, "input": list(args)} if args else given


def _changed(args: tuple[Any, ...], kwargs: dict[str, Any], changes: Changes) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a tool with the changes made."""
    if args and "input" in changes:
        return tuple(changes["input"]), {**kwargs, **{name: changes[name] for name in changes if name != "input"}}
    return args, {**kwargs, **changes}


def _approved_alone(declaration: Declaration, given: dict[str, Any], types: Callable[[], Changes]) -> Changes:
    """Outside a job: a graph that runs by itself asks as LangGraph does; a call by hand is a person's own."""
    call = approvals.Call.of(declaration, given, types)
    return UNCHANGED if call is None or arguments.position().body is None else approvals.without_job(call)


def _attempt(declaration: Declaration) -> Attempt | None:
    attempt, name = current.get(), declaration.name
    if attempt is None and any_running():
        if declaration.approval and arguments.position().body is None:
            raise EffectInvalid(
                f"effect {name} needs an approval and is called outside a job, while jobs run in this process",
                next_step="if a node's own thread calls it, start that with contextvars.copy_context().run",
                effect=name,
            )
        logger.warning(
            "effect %s is called outside a job, as a plain call, while jobs run in this process; if a node's own thread"
            " calls it, start that with contextvars.copy_context().run",
            name,
        )
    return attempt
