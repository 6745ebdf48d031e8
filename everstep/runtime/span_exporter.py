"""Exporting spans from the record: at least once, oldest first, by one process at a time for each destination.

Every worker has a thread for each destination its environment names. What a process leaves behind, also one that was
killed, is in the record (`checkpoints.span_outbox`), and any worker that lives goes on with it.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Sequence
from functools import partial

from everstep.checkpoints import span_outbox
from everstep.checkpoints.span_outbox import Waiting
from everstep.checkpoints.store import Store
from everstep.counts import counted
from everstep.observability.destinations import Destination
from everstep.observability.otlp import Answer, Sender, is_essential, request_of
from everstep.observability.tracing import Tracing
from everstep.runtime.retry_after import parse_retry_after

logger = logging.getLogger("everstep.spans")

BATCH = 512
BATCH_BYTES = 4 * 1024 * 1024
"""Before compression; Langfuse warns beyond 16 MB a request."""
LOOK_EVERY_S = 5.0
"""How often it is looked for what other processes wrote."""
DELAY_MS = 1_000
"""How long spans of this process wait for others to travel with, unless `OTEL_BSP_SCHEDULE_DELAY` says otherwise."""
LEASE_MS = 60_000
LEAST_WAIT_MS, MOST_WAIT_MS = 1_000, 60_000
MOST_RETRY_AFTER_MS = 3_600_000
MOST_WAITING = 100_000
"""Spans that wait for one destination at most."""
MOST_AGE_MS = 7 * 86_400_000
"""How long a span waits at most."""
CLEAN_EVERY_S = 60.0
PART = 1_000
GRACE_S = 1.5
FLUSH_LOOK_S = 0.1


class Drain:
    """Works off what waits for one destination.

    Args:
        store: The record.
        destination: Where to.
        holder: Who sends, for the lease.
        randomness: For the jitter of waits.
        most_waiting: Spans that wait at most.
        most_age_ms: How long one waits at most, milliseconds.

    Attributes:
        name: The destination's name.
        reason: Why nothing could be sent at the last try; None if it could.
    """

    def __init__(
        self,
        store: Store,
        destination: Destination,
        *,
        holder: str,
        randomness: random.Random,
        most_waiting: int = MOST_WAITING,
        most_age_ms: int = MOST_AGE_MS,
    ) -> None:
        self.name = destination.name
        self.reason: str | None = None
        self._store = store
        self._sender = Sender(destination)
        self._holder = holder
        self._randomness = randomness
        self._most_waiting = most_waiting
        self._most_age_ms = most_age_ms
        self._lease_ms = max(LEASE_MS, int(self._sender.timeout_s * 2_000) + 10_000)
        self._leased_until = 0
        self._failures = 0
        self._only_essential_before = 0
        self._cleaned_at = float("-inf")
        self.next_try_at = 0

    def drain(self, *, until: float = float("inf"), at_once: bool = False) -> bool:
        """Send what waits now, until that is sent or nothing goes; what comes meanwhile travels the next time.

        Args:
            until: When to stop, on the monotonic clock, seconds.
            at_once: Try also while the destination is left alone after a failure.

        Returns:
            Whether nothing of it waits any more.
        """
        newest = self._store.read(partial(span_outbox.newest, name=self.name))
        if newest is None:
            return True
        batch = partial(span_outbox.batch, name=self.name, up_to=newest, most=BATCH, most_bytes=BATCH_BYTES)
        while time.monotonic() < until and self._may_send(at_once):
            waiting = self._store.read(batch)
            if not waiting:
                return True
            if not self._send(waiting, until):
                return False
        return False

    def clean(self) -> None:
        """Give up what has waited too long, and of too much the oldest; now and then."""
        if time.monotonic() - self._cleaned_at < CLEAN_EVERY_S:
            return
        self._cleaned_at = time.monotonic()
        now = self._store.clock.now_ms()
        while old := self._store.read(partial(span_outbox.older, before=now - self._most_age_ms, limit=PART)):
            for name, ids in old.items():
                self._drop(name, ids, f"waited {self._most_age_ms / 86_400_000:g} days")
        excess = self._store.read(partial(span_outbox.count, name=self.name)) - self._most_waiting
        if excess > 0:
            self._trim(excess)

    def release(self) -> None:
        """Let others send."""
        if self._leased_until:
            now, self._leased_until = self._store.clock.now_ms(), 0
            self._store.write(partial(span_outbox.release, name=self.name, holder=self._holder, now=now)).result()

    def close(self) -> None:
        """Close its connections."""
        self._sender.close()

    def _may_send(self, at_once: bool) -> bool:
        """Take the lease, or keep it."""
        now = self._store.clock.now_ms()
        if not self._store.read(
            partial(span_outbox.may_send, name=self.name, holder=self._holder, now=now, at_once=at_once)
        ):
            return False
        if self._leased_until - now >= self._lease_ms // 2:
            return True
        take = partial(span_outbox.take, name=self.name, holder=self._holder, now=now, lease_ms=self._lease_ms)
        taken = self._store.write(take).result()
        self._leased_until = now + self._lease_ms if taken else 0
        return taken

    def _send(self, waiting: Sequence[Waiting], until: float) -> bool:
        """Send a batch; one that is refused for what is in it is halved until the span is found."""
        parts = [waiting]
        while parts:
            part = parts.pop()
            left = until - time.monotonic()
            if left <= 0:
                return False
            answer = self._sender.send(request_of(one.body for one in part), timeout_s=max(left, 0.01))
            ids = [one.id for one in part]
            if answer.is_taken:
                kept = len(ids) - min(answer.rejected, len(ids))
                self._arrived(ids[:kept], ids[kept:], answer.reason)
            elif not answer.is_unfit:
                self._failed(answer)
                return False
            elif len(part) == 1:
                self._arrived([], ids, answer.reason)
            else:
                parts += [part[len(part) // 2 :], part[: len(part) // 2]]
        return True

    def _arrived(self, delivered: list[int], dropped: list[int], refusal: str) -> None:
        now = self._store.clock.now_ms()
        self._store.write(
            partial(
                span_outbox.done,
                name=self.name,
                delivered=delivered,
                dropped=dropped,
                now=now,
                holder=self._holder,
                lease_ms=self._lease_ms,
                refusal=refusal,
            ),
            patient=True,
        ).result()
        self._leased_until = now + self._lease_ms
        self.next_try_at = self._failures = 0
        if dropped:
            logger.warning(
                "%s refuses %s for good (%s), which stay in the record",
                self.name,
                counted(len(dropped), "span"),
                refusal,
            )
        if self.reason is not None:
            logger.info("Traces arrive at %s again.", self.name)
            self.reason = None

    def _failed(self, answer: Answer) -> None:
        now = self._store.clock.now_ms()
        wait = min(LEAST_WAIT_MS << min(self._failures, 16), MOST_WAIT_MS)
        wait += self._randomness.randint(0, wait // 4)
        wait = max(wait, min(parse_retry_after(answer.retry_after, now) or 0, MOST_RETRY_AFTER_MS))
        self._failures += 1
        self.next_try_at = now + wait
        self._store.write(
            partial(span_outbox.failed, name=self.name, reason=answer.reason, now=now, again_at=self.next_try_at)
        ).result()
        if self.reason is None:
            logger.warning(
                "Traces do not arrive at %s (%s). Jobs go on; the spans wait in the record.", self.name, answer.reason
            )
        self.reason = answer.reason

    def _trim(self, excess: int) -> None:
        """Give up the oldest ordinary spans; where there are none, the oldest of all."""
        essential: list[int] = []
        given_up, after = 0, self._only_essential_before
        while given_up < excess:
            part = self._store.read(partial(span_outbox.oldest, name=self.name, after=after, limit=PART))
            if not part:
                break
            ordinary = [one.id for one in part if not is_essential(one.body)][: excess - given_up]
            essential += [one.id for one in part if one.id not in set(ordinary)][: excess - len(essential)]
            given_up += self._drop(self.name, ordinary, "too many wait")
            after = part[-1].id if len(ordinary) < excess - given_up else (ordinary or [after])[-1]
        self._only_essential_before = after
        if given_up < excess:
            self._only_essential_before = 0
            first = self._store.read(partial(span_outbox.oldest, name=self.name, after=0, limit=excess - given_up))
            self._drop(self.name, [one.id for one in first], "too many wait")

    def _drop(self, name: str, ids: Sequence[int], why: str) -> int:
        now = self._store.clock.now_ms()
        dropped = 0
        for start in range(0, len(ids), PART):
            part = ids[start : start + PART]
            dropped += self._store.write(partial(span_outbox.drop, name=name, ids=part, now=now)).result()
        if dropped:
            logger.warning("given up for %s: %s, which stay in the record (%s)", name, counted(dropped, "span"), why)
        return dropped


class SpanExporter:
    """Exports what waits until stopped: a thread for each destination. With none, no thread starts.

    Args:
        store: The record.
        tracing: Tells where spans go, and when there are new ones.
        holder: Who sends, for the leases.
        randomness: For the jitter of waits.
    """

    def __init__(self, store: Store, tracing: Tracing, *, holder: str, randomness: random.Random | None = None) -> None:
        self._store = store
        self._tracing = tracing
        self._stopping = threading.Event()
        self._give_up_at = float("inf")
        self._delay_s = _delay_s()
        self._drains = drains(store, tracing, holder=holder, randomness=randomness)
        self._threads = [
            threading.Thread(target=self._run, args=(drain,), name="everstep-spans", daemon=True)
            for drain in self._drains
        ]

    def start(self) -> None:
        """Start exporting."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Send what is left, and stop; after a second and a half at most, whatever the destinations do."""
        self._give_up_at = time.monotonic() + GRACE_S
        self._stopping.set()
        self._tracing.news()
        for thread in self._threads:
            thread.join(max(self._give_up_at - time.monotonic(), 0))

    def _run(self, drain: Drain) -> None:
        seen, stopping, told = 0, False, False
        while not stopping:
            stopping = self._stopping.is_set()
            try:
                drain.drain(until=self._give_up_at)
                drain.clean()
                if stopping:
                    drain.release()
                told = False
            except Exception as error:  # the record may be out of reach, or closed; the spans are in it
                if not told and not stopping:
                    logger.warning("spans cannot be exported, trying again: %s", error)
                told = True
            if not stopping:
                seen = self._pause(drain, seen)
        drain.close()

    def _pause(self, drain: Drain, seen: int) -> int:
        """Until there may be something to do."""
        wait_s = LOOK_EVERY_S
        if drain.next_try_at:
            wait_s = min(max((drain.next_try_at - self._store.clock.now_ms()) / 1000, 0.05), LOOK_EVERY_S)
            self._stopping.wait(wait_s)
            return seen
        heard = self._tracing.wait_for_news(seen, wait_s)
        if heard != seen:
            self._stopping.wait(self._delay_s)
        return heard


def flush(store: Store, tracing: Tracing, *, holder: str, seconds: float) -> dict[str, str]:
    """Send what waits, now; where another process is at it, wait for that.

    Args:
        store: The record.
        tracing: Tells where spans go.
        holder: Who sends, for the leases.
        seconds: How long at most.

    Returns:
        For each destination why something still waits; empty text if nothing does.
    """
    until, reasons = time.monotonic() + seconds, dict[str, str]()
    for drain in drains(store, tracing, holder=holder):
        try:
            while (
                not (is_done := drain.drain(until=until, at_once=True))
                and drain.reason is None
                and time.monotonic() < until
            ):
                time.sleep(min(FLUSH_LOOK_S, max(until - time.monotonic(), 0)))
            reasons[drain.name] = "" if is_done else drain.reason or f"not done within {seconds:g} s"
            drain.release()
        finally:
            drain.close()
    unusable = {one.name: "it cannot be used; the log says why" for one in tracing.destinations}
    return unusable | reasons


def drains(store: Store, tracing: Tracing, *, holder: str, randomness: random.Random | None = None) -> list[Drain]:
    """One for each destination that the environment names; one that cannot be used is told of in the log."""
    found: list[Drain] = []
    for destination in tracing.destinations:
        try:
            found.append(Drain(store, destination, holder=holder, randomness=randomness or random.Random()))
        except Exception as error:
            logger.warning(
                "Traces are not sent to %s: %s: %s. Next: check the OTEL_* variables.",
                destination.name,
                type(error).__name__,
                error,
            )
    return found


def _delay_s() -> float:
    try:
        return max(float(os.environ.get("OTEL_BSP_SCHEDULE_DELAY") or DELAY_MS), 0.0) / 1000
    except ValueError:
        return DELAY_MS / 1000
