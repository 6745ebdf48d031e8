"""The life of one effect, written once for sync and async callers; `effect_drivers` runs it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from langgraph.errors import GraphBubbleUp, GraphInterrupt
from sqlalchemy import Connection

from everstep import crash
from everstep.checkpoints import effects as ledger
from everstep.checkpoints import payload
from everstep.checkpoints.effects import Effect
from everstep.checkpoints.jobs import loose_digest
from everstep.errors import EffectInterrupted, EffectInvalid, EffectRejected, EverstepError
from everstep.nodes import arguments, replays
from everstep.nodes.attempt import Attempt, Turn
from everstep.nodes.effect_drivers import Call, NotBegun, Pause, Step, Steps, Wait, Write
from everstep.observability import metric_names, tracing

STRAY_LOOKS, STRAY_PAUSE_S = 10, 0.1


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
    call: Callable[[str], Any],
    probe: Callable[[], Any],
) -> Steps:
    """The life of one effect, as steps for either driver."""
    try:
        identity = _identify(attempt, declaration, given, tool_call_id)
    except EffectInvalid as error:
        attempt.block(error)
        raise
    try:
        yield from _first_of_its_kind(attempt, declaration, identity)
        return (yield from _lived(attempt, declaration, identity, call, probe))
    finally:
        attempt.begun(identity.key)


def _first_of_its_kind(attempt: Attempt, declaration: Declaration, identity: _Identity) -> Steps:
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
    identity: _Identity,
    call: Callable[[str], Any],
    probe: Callable[[], Any],
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
                entry, refused = yield from _settled(attempt, declaration, identity, calling, call, probe)
            except GeneratorExit:
                attempt.block(_interrupted(declaration, key))
                threads = calling.threads
                raise
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
    identity: _Identity,
    calling: _Calling,
    call: Callable[[str], Any],
    probe: Callable[[], Any],
) -> Settling:
    """The effect: confirmed, or rejected with the exception that says so. Any other exception leaves it open."""
    digest, shown = loose_digest(identity.plain), arguments.preview(identity.plain)

    def begin(connection: Connection) -> tuple[Effect, bool] | replays.Strays:
        if identity.asked is not None and (earlier := replays.strays(connection, attempt, identity.asked)):
            return earlier
        return ledger.begin(
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

    looks = 0
    while isinstance(begun := (yield Write(begin)), replays.Strays):
        if (looks := looks + 1) == STRAY_LOOKS:
            raise replays.refusal(declaration.name, shown, begun)
        yield Pause(STRAY_PAUSE_S)  # calls that run at once may ask in another order than before
    entry, call_now = begun
    if not call_now and entry.state == "unknown":
        entry, call_now = yield from _settle_unknown(attempt, declaration, entry, probe)
    if not call_now:
        return entry, None
    return (yield from _call(attempt, declaration, entry, calling, call, probe))


@dataclass(frozen=True)
class _Identity:
    """What makes a call the same call in every replay.

    Attributes:
        plain: The arguments in canonical form.
        key: The effect's key.
        body: The run of the node's body it is made in.
        call: What it shares with equal calls there.
        turn: Which of them it is, and which of those before it were not over when it was asked for.
        place: The namespace of the task.
        asked: What an earlier run is looked through for; None where a business key tells what is the same.
    """

    plain: dict[str, Any]
    key: str
    body: Any = None
    call: tuple[str, ...] = ()
    turn: Turn = field(default_factory=Turn)
    place: str = ""
    asked: replays.Asked | None = None

    def give_back(self, attempt: Attempt) -> None:
        """The call surely did not happen."""
        if self.call:
            attempt.give_back(self.body, self.call, self.turn.number)


def _identify(attempt: Attempt, declaration: Declaration, given: dict[str, Any], tool_call_id: str | None) -> _Identity:
    name = declaration.name
    if declaration.key is not None:
        business = str(declaration.key(**given) if callable(declaration.key) else declaration.key)
        key = arguments.effect_key(attempt.job_key, name, "business", business)
        return _Identity({"key": business}, key, place=arguments.position().place)
    plain = arguments.canonical(name, given)
    at = arguments.position()
    if not at.stable:
        raise EffectInvalid(
            f"effect {name} is called in a graph with a checkpointer of its own, where a replay cannot find it again",
            next_step="compile that subgraph without a checkpointer, or give the effect a key: @effect(name, key=…)",
            effect=name,
        )
    digest = loose_digest(plain)
    around, run = arguments.subgraph_run(at.place)
    if attempt.first_run((around, tool_call_id, name, digest), run) != run:
        raise EffectInvalid(
            f"effect {name} was called before in an earlier run of the same subgraph in the same task,"
            " and nothing tells whether this is meant to be another call",
            next_step="leave retries of a subgraph's node to Everstep (no retry_policy), or give the effect a key",
            effect=name,
        )
    place = at.place if tool_call_id is None else f"{at.place}|{tool_call_id}"
    call = (at.node_attempt, place, name, digest)

    def key_of(number: int) -> str:
        return arguments.effect_key(attempt.job_key, name, digest, place, number)

    turn = attempt.take(at.body, call, key_of)
    key = key_of(turn.number)
    body = (id(at.body), at.node_attempt)
    attempt.ask(key, body)
    # A replay that finds the effect around this one does not ask for it again.
    asked = None if _calling.get() is not None else replays.Asked(key, name, digest, at.place, body)
    return _Identity(plain, key, at.body, call, turn, at.place, asked)


def _settle_unknown(
    attempt: Attempt, declaration: Declaration, entry: Effect, probe: Callable[[], Any]
) -> Generator[Step, Any, tuple[Effect, bool]]:
    """Find out about an effect that was interrupted: returns it, and whether to call now."""
    if declaration.probe is not None:
        result = yield Call(probe, is_probe=True)
        if result is not None:
            return (yield _confirm(attempt, entry, result, "probe")), False
    elif not declaration.idempotent:
        raise _unknown(entry)
    again = yield Write(
        lambda connection: ledger.call_again(
            connection, entry, claim_no=attempt.claim_no, now=attempt.store.clock.now_ms()
        )
    )
    return again, again.state == "intended"


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
        untouched = attempt.surely_not_sent(error) and not calling.composite
        if isinstance(error, (EffectRejected, GraphInterrupt, NotBegun)) or untouched:
            return (yield _reject(attempt, entry, "call", error)), error
        entry = yield _fail_to_know(attempt, entry, error)
        if isinstance(error, GraphBubbleUp):
            raise  # an effect inside this one is unknown, or lost its claim; that is settled first
        if declaration.probe is not None:
            found = yield Call(probe, is_probe=True)
            if found is not None:
                return (yield _confirm(attempt, entry, found, "probe")), None
            rejected = yield _reject(attempt, entry, "probe", error)
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
    confirmed = yield _confirm(attempt, entry, result, "call")
    crash.point("effect.confirmed", declaration.name, (entry.key, declaration))
    return confirmed, None


def _confirm(attempt: Attempt, entry: Effect, result: Any, settled_by: str) -> Write:
    encoded, now = ledger.encode_result(result), attempt.store.clock.now_ms()
    return Write(
        lambda connection: ledger.confirm(
            connection, entry, claim_no=attempt.claim_no, result=encoded, settled_by=settled_by, now=now
        )
    )


def _reject(attempt: Attempt, entry: Effect, settled_by: str, error: BaseException) -> Write:
    text, now = _described(error), attempt.store.clock.now_ms()
    return Write(
        lambda connection: ledger.reject(
            connection, entry, claim_no=attempt.claim_no, settled_by=settled_by, error=text, now=now
        )
    )


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
