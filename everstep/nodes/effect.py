"""`effect`: the one way a node touches the outside world.

LangGraph replays node bodies. So the intent is committed before the call and the result after it; a replay finds the result and
does not call. What was interrupted in between is unknown: a probe looks, or the provider honours the same key, or a person says.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from sqlalchemy import Connection

from everstep import crash
from everstep.checkpoints import effects as ledger
from everstep.checkpoints.effects import Effect
from everstep.checkpoints.jobs import LostClaim, loose_digest
from everstep.errors import EffectInvalid, EffectRejected, EverstepError
from everstep.nodes import arguments
from everstep.nodes.attempt import Attempt, current

logger = logging.getLogger("everstep.effect")

P = ParamSpec("P")
R = TypeVar("R")
ToolT = TypeVar("ToolT", bound=BaseTool)

_key: ContextVar[str | None] = ContextVar("everstep_effect_key", default=None)


class EffectUnknown(EverstepError, GraphBubbleUp):
    """Nobody can say whether an effect happened; a person has to. LangGraph lets it pass through nodes, tools and retries."""

    code = "effect_unknown"


@dataclass(frozen=True)
class _Write:
    operation: Callable[[Connection], Any]


@dataclass(frozen=True)
class _Call:
    function: Callable[[], Any]


Steps = Generator[_Write | _Call, Any, Any]


@dataclass(frozen=True)
class Declaration:
    """How an effect is kept safe; the arguments of `effect`."""

    name: str
    probe: Callable[..., Any] | None
    idempotent: bool
    key: Callable[..., Any] | str | None


def effect_key() -> str:
    """The key of the effect that is being called; pass it to a provider that honours idempotency keys.

    Raises:
        RuntimeError: No effect of a job is being called.
    """
    key = _key.get()
    if key is None:
        raise RuntimeError("effect_key() has a value only inside an effect of a job")
    return key


@overload
def effect(target: ToolT, /, *, probe: Callable[..., Any] | None = None, idempotent: bool = False) -> ToolT: ...
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
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def effect(
    target: Any = None,
    /,
    *,
    probe: Callable[..., Any] | None = None,
    idempotent: bool = False,
    key: Callable[..., Any] | str | None = None,
) -> Any:
    """Make a function or a LangChain tool an effect: recorded before and after, never done twice.

    Use it as `@effect("git.push", probe=remote_has)` over a function (sync or async), as plain `@effect`, or as `effect(tool)`.
    Outside a job it is a plain call. The result must be storable, and is returned as a replay would return it.

    A call that raises is settled by its exception: one that surely left the world untouched (`EffectRejected`, a refused
    connection, an HTTP 4xx or 429 or 503) may run again; after any other the effect is unknown: the probe looks, or the next
    attempt calls again with the same key (`idempotent`), or the job goes to review.

    Args:
        target: The effect's name (dotted, such as `git.push`), or a tool.
        probe: Reads the world, given the same arguments: the result if the effect happened, None if it did not. Sync or async.
        idempotent: The provider honours idempotency keys. The key is passed as `idempotency_key` if the function takes it; tools
            ask `effect_key()`.
        key: A business key in place of the arguments: a function of them, or a fixed string. One call a job for each key.

    Raises:
        EffectInvalid: At the call: an argument is not the same in every replay.
    """
    if isinstance(target, BaseTool):
        return _of_tool(target, Declaration(target.name, probe, idempotent, key))
    if callable(target):
        return _of_function(target, Declaration(_name_of(target), probe, idempotent, key))
    return lambda function: _of_function(function, Declaration(target or _name_of(function), probe, idempotent, key))


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def _of_function(function: Callable[..., Any], declaration: Declaration) -> Callable[..., Any]:
    takes_key = "idempotency_key" in inspect.signature(function).parameters

    def steps(attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
        given = arguments.bound(function, args, kwargs)

        def call(key: str) -> Any:
            return function(*args, **({**kwargs, "idempotency_key": key} if takes_key else kwargs))

        def probe() -> Any:
            return declaration.probe(*args, **kwargs) if declaration.probe else None

        return _steps(attempt, declaration, given, None, call, probe)

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def effectful_async(*args: Any, **kwargs: Any) -> Any:
            attempt = _attempt(declaration.name)
            if attempt is None:
                return await function(*args, **kwargs)
            return await _drive_async(attempt, steps(attempt, args, kwargs))

        return effectful_async

    @functools.wraps(function)
    def effectful(*args: Any, **kwargs: Any) -> Any:
        attempt = _attempt(declaration.name)
        if attempt is None:
            return function(*args, **kwargs)
        return _drive(attempt, steps(attempt, args, kwargs))

    return effectful


def _of_tool(tool: ToolT, declaration: Declaration) -> ToolT:
    """A copy of the tool whose calls are effects; the tool call's id stands for the place of the call."""
    kind = type(tool)
    tool_call_id: ContextVar[str | None] = ContextVar("everstep_tool_call_id", default=None)
    accepted = set(tool.tool_call_schema.model_fields) if inspect.isclass(tool.tool_call_schema) else None

    def steps(attempt: Attempt, run: Callable[[], Any], kwargs: dict[str, Any], args: tuple[Any, ...]) -> Steps:
        given = {name: value for name, value in kwargs.items() if accepted is None or name in accepted}
        if args:
            given["input"] = list(args)

        def probe() -> Any:
            return declaration.probe(*args, **given) if declaration.probe else None

        return _steps(attempt, declaration, given, tool_call_id.get(), lambda _key: run(), probe)

    class EffectTool(kind):  # type: ignore[misc, valid-type]
        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            token = tool_call_id.set(input.get("id") if isinstance(input, dict) else None)
            try:
                return super().invoke(input, config, **kwargs)
            finally:
                tool_call_id.reset(token)

        async def ainvoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            token = tool_call_id.set(input.get("id") if isinstance(input, dict) else None)
            try:
                return await super().ainvoke(input, config, **kwargs)
            finally:
                tool_call_id.reset(token)

        @functools.wraps(kind._run)
        def _run(self, *args: Any, **kwargs: Any) -> Any:
            attempt = _attempt(declaration.name)
            run = functools.partial(super()._run, *args, **kwargs)
            return run() if attempt is None else _drive(attempt, steps(attempt, run, kwargs, args))

        @functools.wraps(kind._arun)
        async def _arun(self, *args: Any, **kwargs: Any) -> Any:
            attempt = _attempt(declaration.name)
            if attempt is None or not _is_natively_async(self):
                return await super()._arun(*args, **kwargs)
            return await _drive_async(
                attempt, steps(attempt, functools.partial(super()._arun, *args, **kwargs), kwargs, args)
            )

    EffectTool.__name__, EffectTool.__qualname__ = kind.__name__, kind.__qualname__
    copy = tool.model_copy()
    copy.__class__ = EffectTool
    return copy


def _is_natively_async(tool: BaseTool) -> bool:
    """Whether the tool's async form is its own; otherwise it runs `_run` in a thread, and that call is the effect."""
    if hasattr(tool, "coroutine"):
        return getattr(tool, "coroutine") is not None  # noqa: B009
    own = next(vars(kind)["_arun"] for kind in type(tool).__mro__[1:] if "_arun" in vars(kind))
    return own is not vars(BaseTool)["_arun"]


def _attempt(name: str) -> Attempt | None:
    attempt = current.get()
    if attempt is not None and attempt.blocked is not None:
        raise attempt.blocked
    if attempt is None:
        logger.debug("effect %s outside a job: a plain call", name)
    return attempt


def _drive(attempt: Attempt, steps: Steps) -> Any:
    """Run the steps of an effect in this thread."""
    answer, failure = None, None
    while True:
        try:
            step = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            return end.value
        answer, failure = None, None
        try:
            answer = attempt.store.write(step.operation).result() if isinstance(step, _Write) else step.function()
        except Exception as error:
            failure = error


async def _drive_async(attempt: Attempt, steps: Steps) -> Any:
    """Run the steps of an effect in this task; a function that returns an awaitable is awaited."""
    answer, failure = None, None
    while True:
        try:
            step = steps.send(answer) if failure is None else steps.throw(failure)
        except StopIteration as end:
            return end.value
        answer, failure = None, None
        try:
            if isinstance(step, _Write):
                answer = await asyncio.wrap_future(attempt.store.write(step.operation))
            else:
                answer = step.function()
                if inspect.isawaitable(answer):
                    answer = await answer
        except Exception as error:
            failure = error


def _steps(
    attempt: Attempt,
    declaration: Declaration,
    given: dict[str, Any],
    tool_call_id: str | None,
    call: Callable[[str], Any],
    probe: Callable[[], Any],
) -> Steps:
    """The life of one effect, as steps for either driver."""
    plain, key = _identify(attempt, declaration, given, tool_call_id)
    with attempt.effect_span(declaration.name, loose_digest(key)) as span:
        try:
            entry, call_now = yield _Write(
                lambda connection: ledger.begin(
                    connection,
                    job_id=attempt.job_id,
                    claim_no=attempt.claim_no,
                    key=key,
                    name=declaration.name,
                    arguments_digest=loose_digest(plain),
                    arguments_json=arguments.preview(plain),
                    now=attempt.store.clock.now_ms(),
                )
            )
            if not call_now and entry.state == "unknown":
                entry, call_now = yield from _settle_unknown(attempt, declaration, entry, probe)
            if call_now:
                entry = yield from _call(attempt, declaration, entry, call, probe)
            span.state(entry.state)
            return entry.value()
        except LostClaim as lost:
            attempt.block(lost)
            raise
        except EffectUnknown as unknown:
            span.state("unknown")
            attempt.block(unknown)
            raise


def _identify(
    attempt: Attempt, declaration: Declaration, given: dict[str, Any], tool_call_id: str | None
) -> tuple[dict[str, Any], str]:
    """The arguments in canonical form, and the effect's key."""
    name = declaration.name
    if declaration.key is not None:
        business = declaration.key(**given) if callable(declaration.key) else declaration.key
        return {"key": str(business)}, arguments.effect_key(attempt.job_key, name, "business", str(business))
    plain = arguments.canonical(name, given)
    digest = loose_digest(plain)
    place, node_attempt = arguments.position()
    if tool_call_id is not None:
        place = f"{place}|{tool_call_id}"
    number = attempt.occurrence(place, node_attempt, name, digest)
    return plain, arguments.effect_key(attempt.job_key, name, digest, place, number)


def _settle_unknown(
    attempt: Attempt, declaration: Declaration, entry: Effect, probe: Callable[[], Any]
) -> Generator[_Write | _Call, Any, tuple[Effect, bool]]:
    """Find out about an effect that was interrupted: returns it, and whether to call now."""
    if declaration.probe is not None:
        result = yield _Call(probe)
        if result is not None:
            return (yield _confirm(attempt, entry, result, "probe")), False
    elif not declaration.idempotent:
        raise _unknown(entry)
    again = yield _Write(
        lambda connection: ledger.call_again(
            connection, entry, claim_no=attempt.claim_no, now=attempt.store.clock.now_ms()
        )
    )
    return again, True


def _call(
    attempt: Attempt, declaration: Declaration, entry: Effect, call: Callable[[str], Any], probe: Callable[[], Any]
) -> Generator[_Write | _Call, Any, Effect]:
    crash.point("effect.intended", declaration.name)
    token = _key.set(entry.key)
    try:
        result = yield _Call(lambda: call(entry.key))
    except (EffectRejected, GraphBubbleUp) as error:
        yield _reject(attempt, entry, "call", error)
        raise
    except Exception as error:
        if attempt.surely_not_sent(error):
            yield _reject(attempt, entry, "call", error)
            raise
        entry = yield _fail_to_know(attempt, entry, error)
        if declaration.probe is not None:
            found = yield _Call(probe)
            if found is not None:
                return (yield _confirm(attempt, entry, found, "probe"))
            yield _reject(attempt, entry, "probe", error)
            raise
        if declaration.idempotent:
            raise
        raise _unknown(entry) from error
    finally:
        _key.reset(token)
    crash.point("effect.called", declaration.name)
    try:
        ledger.encode_result(result)
    except Exception as error:
        entry = yield _fail_to_know(attempt, entry, error)
        raise _unknown(entry) from EffectInvalid(
            f"effect {declaration.name} returned a {type(result).__qualname__}, which cannot be stored",
            next_step="return plain data from the effect",
            effect=declaration.name,
        )
    confirmed = yield _confirm(attempt, entry, result, "call")
    crash.point("effect.confirmed", declaration.name)
    return confirmed


def _confirm(attempt: Attempt, entry: Effect, result: Any, settled_by: str) -> _Write:
    encoded, now = ledger.encode_result(result), attempt.store.clock.now_ms()
    return _Write(
        lambda connection: ledger.confirm(
            connection, entry, claim_no=attempt.claim_no, result=encoded, settled_by=settled_by, now=now
        )
    )


def _reject(attempt: Attempt, entry: Effect, settled_by: str, error: BaseException) -> _Write:
    text, now = _described(error), attempt.store.clock.now_ms()
    return _Write(
        lambda connection: ledger.reject(
            connection, entry, claim_no=attempt.claim_no, settled_by=settled_by, error=text, now=now
        )
    )


def _fail_to_know(attempt: Attempt, entry: Effect, error: BaseException) -> _Write:
    text, now = _described(error), attempt.store.clock.now_ms()
    return _Write(
        lambda connection: ledger.fail_to_know(connection, entry, claim_no=attempt.claim_no, error=text, now=now)
    )


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:2000]


def _unknown(entry: Effect) -> EffectUnknown:
    return EffectUnknown(
        f"nobody can say whether {entry.name} happened"
        + (f" ({entry.error})" if entry.error else " (it was interrupted)"),
        next_step="look at the world, then: everstep review approve ID --value RESULT (it happened) or reject ID (it did not)",
        effect=entry.name,
        key=entry.key,
    )
