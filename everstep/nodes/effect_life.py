"""The life of one effect, written once for sync and async callers; `effect_drivers` runs it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from langgraph.errors import GraphBubbleUp, GraphInterrupt
from sqlalchemy import Connection

from everstep import crash
from everstep.checkpoints import approvals, payload
from everstep.checkpoints import effects as ledger
from everstep.checkpoints.effects import Effect
from everstep.checkpoints.jobs import loose_digest
from everstep.errors import EffectInterrupted, EffectInvalid, EffectRejected, EverstepError
from everstep.nodes import approval, arguments, replays
from everstep.nodes.approval import NotPermitted, Permit, Refusal
from everstep.nodes.attempt import Attempt
from everstep.nodes.edited_arguments import UNCHANGED, Changes
from everstep.nodes.effect_drivers import Call, NotBegun, Pause, Read, Step, Steps, Wait, Write
from everstep.nodes.effect_identity import Declaration, Identity, identify
from everstep.observability import metric_names, tracing

STRAY_LOOKS, STRAY_PAUSE_S = 10, 0.1

R = TypeVar("R")


@dataclass
class _Calling:
    """The call under way: its key, whether effects were called inside it, and the work it gave to threads."""

    key: str
    composite: bool = False
    threads: list[Future[Any]] = field(default_factory=list[Future[Any]])


_calling: ContextVar[_Calling | None] = ContextVar("everstep_effect_call", default=None)


class EffectUnknown(EverstepError, GraphBubbleUp):
    """Nobody can say whether an effect happened; a person has to. LangGraph lets it pass nodes, tools and retries."""

    code = "effect_unknown"


Settling = Generator[Step, Any, tuple[Effect, Exception | None]]


def _no_types() -> Changes:
    return UNCHANGED


@dataclass(frozen=True)
class Target:
    """What an effect does.

    Attributes:
        call: Calls the function, given the arguments a person edited and the effect's key.
        probe: Calls the probe, given the same arguments.
        types: Tells the types of the function's parameters.
    """

    call: Callable[[Changes, str], Any]
    probe: Callable[[Changes], Any]
    types: Callable[[], Changes] = _no_types


def effect_key() -> str:
    """The key of the effect that is being called; pass it to a provider that honours idempotency keys.

    Raises:
        RuntimeError: No effect of a job is being called.
    """
    calling = _calling.get()
    if calling is None:
        raise RuntimeError("effect_key() has a value only inside an effect of a job")
    return calling.key


def in_thread(work: Future[Any]) -> None:
    """Note that the effect called in this context, if any, has given work to a thread, which nothing can stop."""
    if (calling := _calling.get()) is not None:
        calling.threads.append(work)


def steps(
    attempt: Attempt,
    declaration: Declaration,
    given: dict[str, Any],
    tool_call_id: str | None,
    target: Target,
) -> Steps:
    """The life of one effect, as steps for either driver."""
    inside = _calling.get() is not None
    try:
        asking = approval.Call.of(declaration, given, target.types)
        identity = identify(attempt, declaration, given, tool_call_id, inside=inside)
        if asking is not None and inside:
            raise EffectInvalid(
                f"effect {declaration.name} needs an approval and is called inside another effect",
                next_step="call it in the node, before or after the other one",
                effect=declaration.name,
            )
    except EffectInvalid as error:
        attempt.block(error)
        raise
    try:
        yield from _first_of_its_kind(attempt, declaration, identity)
        return (yield from _lived(attempt, declaration, identity, asking, target))
    finally:
        attempt.begun(identity.key)


def _first_of_its_kind(attempt: Attempt, declaration: Declaration, identity: Identity) -> Steps:
    """End the attempt if an equal call of the same node is under way, which its caller may have given up."""
    overlaps = identity.turn.overlaps
    for beginning in identity.turn.beginning:
        yield Wait(beginning)
        overlaps = overlaps or beginning.result()
    if not overlaps:
        return
    reason = EffectInterrupted(
        f"effect {declaration.name} is called again while an equal call of the same node is under way;"
        " nothing tells whether that one was given up or this is meant to be another",
        next_step="nothing: the next attempt finds out; tell calls that run at once apart by an argument or a key",
        effect=declaration.name,
    )
    attempt.block(reason)
    raise reason


def _lived(
    attempt: Attempt,
    declaration: Declaration,
    identity: Identity,
    asking: approval.Call | None,
    target: Target,
) -> Steps:
    key = identity.key
    outer = _calling.get()
    if outer is not None:
        outer.composite = True
        if outer.key == key:
            raise EffectInvalid(f"effect {declaration.name} calls itself with the same key", effect=declaration.name)
    while (under_way := attempt.enter(key, identity.place, inside=outer is not None)) is not None:
        yield Wait(under_way)
    calling, threads = _Calling(key), list[Future[Any]]()
    try:
        with tracing.effect(declaration.name, loose_digest(key)) as span:
            try:
                entry, refused = yield from _settled(attempt, declaration, identity, calling, asking, target)
            except GeneratorExit:
                attempt.block(_interrupted(declaration, key))
                threads = calling.threads
                raise
            except NotPermitted as refusal:
                span.state = refusal.state
                raise refusal.reason from None
            except Exception as error:
                if isinstance(error, EffectUnknown):
                    span.state = "unknown"
                    attempt.measures.add(metric_names.EFFECT_OUTCOMES, 1, "unknown")
                attempt.refused(error)
                attempt.block(error)  # nobody knows of the effect: this run goes no further, whoever swallows the error
                raise
            span.state = entry.state
            attempt.measures.add(metric_names.EFFECT_OUTCOMES, 1, entry.state)
            if refused is not None:
                identity.give_back(attempt)
                raise refused
            return entry.value()
    finally:
        attempt.leave(key, after=threads)


def _settled(
    attempt: Attempt,
    declaration: Declaration,
    identity: Identity,
    calling: _Calling,
    asking: approval.Call | None,
    target: Target,
) -> Settling:
    """The effect: confirmed, or rejected with the exception that says so. Any other exception leaves it open."""
    digest, shown, allowed = loose_digest(identity.plain), arguments.preview(identity.plain), None
    if asking is None and attempt.claim_no > 1:
        known = yield Read(lambda connection: ledger.by_key(connection, identity.key))
        if known is not None and known.state == "confirmed":
            return known, None  # without the writer, for whom its caller may not have the time: it would call again
    if asking is not None:
        standing = yield from _unless_strays(attempt, identity, shown, approval.look(attempt, identity.key, asking))
        allowed = yield from approval.permission(attempt, identity.key, asking, standing)
        shown = arguments.preview(asking.exact | arguments.canonical(declaration.name, allowed.changed))
        if isinstance(allowed, Refusal) and standing.state in (None, "rejected"):
            raise NotPermitted(allowed)

    def begin(connection: Connection) -> tuple[Effect, bool]:
        entry, call_now = ledger.begin(
            connection,
            job_id=attempt.job_id,
            claim_no=attempt.claim_no,
            key=identity.key,
            name=declaration.name,
            arguments_digest=digest,
            arguments_json=shown,
            now=attempt.store.clock.now_ms(),
            place=identity.place if identity.asked is not None else None,
        )
        if call_now and asking is not None:
            approval.reserve(connection, attempt, identity.key, asking, allowed)
        return entry, call_now

    entry, call_now = yield from _unless_strays(attempt, identity, shown, begin)
    changed = UNCHANGED if allowed is None else allowed.changed
    probe = functools.partial(target.probe, changed)
    if not call_now and entry.state == "unknown":
        entry, call_now = yield from _settle_unknown(attempt, declaration, entry, probe, asking, allowed)
    if not call_now:
        return entry, None
    return (yield from _call(attempt, declaration, entry, calling, functools.partial(target.call, changed), probe))


def _unless_strays(
    attempt: Attempt, identity: Identity, shown: str, operation: Callable[[Connection], R]
) -> Generator[Step, Any, R]:
    """Do something in the record, unless an earlier run may have made the call in another way.

    Raises:
        EffectNotRepeated: It may have.
    """
    asked = identity.asked

    def unless(connection: Connection) -> R | replays.Strays:
        if asked is not None and (earlier := replays.strays(connection, attempt, asked)):
            return earlier
        return operation(connection)

    looks = 0
    while isinstance(found := (yield Write(unless)), replays.Strays):
        if (looks := looks + 1) == STRAY_LOOKS:
            raise replays.refusal("" if asked is None else asked.name, shown, found)
        yield Pause(STRAY_PAUSE_S)  # calls that run at once may ask in another order than before
    return found


def _settle_unknown(
    attempt: Attempt,
    declaration: Declaration,
    entry: Effect,
    probe: Callable[[], Any],
    asking: approval.Call | None,
    allowed: Permit | Refusal | None,
) -> Generator[Step, Any, tuple[Effect, bool]]:
    """Find out about an effect that was interrupted: returns it, and whether to call now."""
    if declaration.probe is not None:
        result = yield Call(probe, is_probe=True)
        if result is not None:
            return (yield _confirm(attempt, declaration, entry, result, "probe")), False
    elif not declaration.idempotent:
        raise _unknown(entry)
    if isinstance(allowed, Refusal):
        raise NotPermitted(allowed)

    def again(connection: Connection) -> Effect:
        now = attempt.store.clock.now_ms()
        called = ledger.call_again(connection, entry, claim_no=attempt.claim_no, now=now)
        if called.state == "intended" and asking is not None:
            approval.reserve(connection, attempt, entry.key, asking, allowed)
        return called

    called = yield Write(again)
    return called, called.state == "intended"


def _call(
    attempt: Attempt,
    declaration: Declaration,
    entry: Effect,
    calling: _Calling,
    call: Callable[[str], Any],
    probe: Callable[[], Any],
) -> Settling:
    crash.point("effect.intended", declaration.name, (entry.key, declaration))
    attempt.call(entry.key)
    token = _calling.set(calling)
    try:
        result = yield Call(lambda: call(entry.key))
    except Exception as error:
        crash.point("effect.raised", declaration.name, (entry.key, declaration))
        untouched = attempt.surely_not_sent(error) and not calling.composite
        if isinstance(error, (EffectRejected, GraphInterrupt, NotBegun)) or untouched:
            return (yield _reject(attempt, declaration, entry, "call", error)), error
        entry = yield _fail_to_know(attempt, entry, error)
        if isinstance(error, GraphBubbleUp):
            raise  # an effect inside this one is unknown, or lost its claim; that is settled first
        if declaration.probe is not None:
            found = yield Call(probe, is_probe=True)
            if found is not None:
                return (yield _confirm(attempt, declaration, entry, found, "probe")), None
            rejected = yield _reject(attempt, declaration, entry, "probe", error)
            return rejected, None if rejected.state == "confirmed" else error
        if declaration.idempotent:
            raise  # the next attempt calls again, with the same key
        raise _unknown(entry) from error
    finally:
        _calling.reset(token)
    crash.point("effect.called", declaration.name, (entry.key, declaration))
    try:
        ledger.encode_result(result)
    except Exception as error:
        entry = yield _fail_to_know(attempt, entry, error)
        raise _unknown(entry) from EffectInvalid(
            f"effect {declaration.name} returned a {type(result).__qualname__}, which cannot be stored",
            next_step="return plain data from the effect",
            effect=declaration.name,
        )
    confirmed = yield _confirm(attempt, declaration, entry, result, "call")
    crash.point("effect.confirmed", declaration.name, (entry.key, declaration))
    return confirmed, None


def _confirm(attempt: Attempt, declaration: Declaration, entry: Effect, result: Any, settled_by: str) -> Write:
    encoded, now = ledger.encode_result(result), attempt.store.clock.now_ms()

    def confirm(connection: Connection) -> Effect:
        told = ledger.confirm(
            connection, entry, claim_no=attempt.claim_no, result=encoded, settled_by=settled_by, now=now
        )
        return _with_its_approval(connection, declaration, told, now)

    return Write(confirm)


def _reject(attempt: Attempt, declaration: Declaration, entry: Effect, settled_by: str, error: BaseException) -> Write:
    text, now = _described(error), attempt.store.clock.now_ms()

    def reject(connection: Connection) -> Effect:
        told = ledger.reject(connection, entry, claim_no=attempt.claim_no, settled_by=settled_by, error=text, now=now)
        return _with_its_approval(connection, declaration, told, now)

    return Write(reject)


def _with_its_approval(connection: Connection, declaration: Declaration, entry: Effect, now: int) -> Effect:
    if declaration.approval:
        approvals.settled(connection, entry.key, happened=entry.state == "confirmed", now=now)
    return entry


def _fail_to_know(attempt: Attempt, entry: Effect, error: BaseException) -> Write:
    text, now = _described(error), attempt.store.clock.now_ms()
    return Write(
        lambda connection: ledger.fail_to_know(connection, entry, claim_no=attempt.claim_no, error=text, now=now)
    )


def _described(error: BaseException) -> str:
    text = payload.without_secrets(f"{type(error).__name__}: {error}"[: payload.LONGEST_TEXT])[:2000]
    return text.replace("\x00", "\\x00").encode(errors="backslashreplace").decode()


def _interrupted(declaration: Declaration, key: str) -> EverstepError:
    """Why a run whose effect was given up in flight must end: the next one can find out, or a person has to."""
    what = f"effect {declaration.name} was given up before its outcome was known"
    if declaration.probe is not None or declaration.idempotent:
        return EffectInterrupted(
            what, next_step="nothing: the next attempt finds out", effect=declaration.name, key=key
        )
    return EffectUnknown(what, next_step="look at the world, then answer the review", effect=declaration.name, key=key)


def _unknown(entry: Effect) -> EffectUnknown:
    return EffectUnknown(
        f"nobody can say whether {entry.name} happened"
        + (f" ({entry.error})" if entry.error else " (it was interrupted)"),
        next_step="look at the world, then: everstep review approve ID --value RESULT, or reject ID if it did not",
        effect=entry.name,
        key=entry.key,
    )
