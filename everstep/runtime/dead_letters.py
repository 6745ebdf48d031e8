"""Announcing dead letters: a line in the log for each job that failed, and a message to the webhook, at least once.

A thread of the worker does it, so that a webhook that is slow or gone delays no job. What is left undone is in the
record (`checkpoints.dead_letters`): any worker that lives goes on with it.
"""

from __future__ import annotations

import json
import logging
import random
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial

from everstep import crash
from everstep.checkpoints import dead_letters
from everstep.checkpoints.dead_letters import DeadLetter
from everstep.checkpoints.store import Store
from everstep.observability.exception_chain import raised_at
from everstep.runtime.run import about
from everstep.runtime.webhook import TIMEOUT_S, NotDelivered, Webhook, secrets_of

logger = logging.getLogger("everstep.dead_letters")

LOOK_EVERY_S = 1.0
LOOK_AT_ALL_MS = 60_000
HOLD_MS = 60_000
"""How long a letter is this worker's: longer than sending it takes."""
LEAST_WAIT_MS, MOST_WAIT_MS = 5_000, 3_600_000
MOST_PAUSE_MS = 300_000
AT_ONCE = 100
GRACE_S = 2.0
REMEMBERED = 10_000


def wait_ms(failed_at: int, now: int, randomness: random.Random) -> int:
    """How long to wait before another try, milliseconds: as long as the letter has waited so far, so waits double.

    At least 5 s, at most an hour; and up to a quarter more by chance.

    Args:
        failed_at: When the job failed, UTC milliseconds.
        now: UTC milliseconds.
        randomness: Source of the chance.
    """
    wait = min(max(now - failed_at, LEAST_WAIT_MS), MOST_WAIT_MS)
    return int(wait * (1 + randomness.random() / 4))


@dataclass(frozen=True)
class _Pause:
    """A span of the record's time; a clock that was put back ends it."""

    begins: int = 0
    ends: int = 0

    def lasts(self, now: int) -> bool:
        return self.begins <= now < self.ends


class DeadLetters:
    """Announces dead letters until stopped.

    Args:
        store: The record.
        url: The webhook; None: only the log tells.
        randomness: For the jitter of waits.

    Raises:
        ConfigInvalid: `EVERSTEP_WEBHOOK_SECRET` is set to what is no secret.
    """

    def __init__(self, store: Store, url: str | None, *, randomness: random.Random | None = None) -> None:
        self._store = store
        self._webhook = None if url is None else Webhook(url, secrets_of())
        self._randomness = randomness or random.Random()
        self._told: OrderedDict[str, None] = OrderedDict()
        self._stopping = threading.Event()
        self._give_up_at = float("inf")
        self._seen: int | None = None
        self._next_look = _Pause()
        self._next_message = _Pause()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="everstep-dead-letters", daemon=True)

    def start(self) -> None:
        """Start announcing."""
        self._thread.start()

    def stop(self) -> None:
        """Announce what is left, and stop; after two seconds at most, whatever the webhook does."""
        self._give_up_at = time.monotonic() + GRACE_S
        self._stopping.set()
        self._thread.join(GRACE_S)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stopping.wait(LOOK_EVERY_S)
            if time.monotonic() >= self._give_up_at:
                return
            try:
                self.look(everywhere=stopping)
            except Exception as error:  # the record may be out of reach, or closed; the letters are in it
                self._seen = None
                if not self._stopping.is_set():
                    logger.warning("dead letters cannot be looked for, trying again: %s", error)

    def look(self, *, everywhere: bool = False) -> None:
        """Announce what is due: what failed just now at once; what waits, or a dead worker left, in its time.

        Args:
            everywhere: Look at all that failed, whether or not something did just now.
        """
        arrived, newest = True, self._seen
        if newest is not None:
            newest, arrived = self._store.read(partial(dead_letters.look_on, seen=newest))
        if arrived or everywhere or not self._next_look.lasts(self._store.clock.now_ms()):
            if newest is None:
                newest, _ = self._store.read(partial(dead_letters.look_on, seen=0))
            due, now = self._announce_all(), self._store.clock.now_ms()
            self._next_look = _Pause(now, min(due or now + LOOK_AT_ALL_MS, now + LOOK_AT_ALL_MS))
        self._seen = newest

    def _announce_all(self) -> int | None:
        """Announce what is due; when the next will be."""
        while True:
            now, due = self._store.clock.now_ms(), self._store.read(dead_letters.next_try)
            if due is None or due > now or time.monotonic() >= self._give_up_at:
                return due
            # One that is sent is taken alone: the next can be another worker's meanwhile.
            limit = AT_ONCE if self._webhook is None or self._is_away() else 1
            letters = self._store.write(partial(dead_letters.take, now=now, until=now + HOLD_MS, limit=limit)).result()
            if not letters:  # another worker has them
                return now + HOLD_MS
            for letter in letters:
                when = self._announce(letter)
                self._store.write(partial(dead_letters.mark, letter=letter, announced_at=when)).result()

    def _announce(self, letter: DeadLetter) -> int:
        """Announce a letter; when that was, or when to try again, as the mark has it."""
        if letter.event not in self._told:
            self._told[letter.event] = None
            if len(self._told) > REMEMBERED:
                self._told.popitem(last=False)
            with about(letter.job, node=letter.job.node):
                _log(letter)
        if self._webhook is None:
            return self._store.clock.now_ms()
        if self._is_away():
            return self._later(letter)
        timeout = min(TIMEOUT_S, max(self._give_up_at - time.monotonic(), 0.01))
        try:
            self._webhook.send(letter.event, letter.summary(), now_ms=self._store.clock.now_ms(), timeout=timeout)
        except NotDelivered as failure:
            if not failure.reachable:
                self._failures += 1
                now = self._store.clock.now_ms()
                self._next_message = _Pause(now, now + min(LEAST_WAIT_MS * 2 ** (self._failures - 1), MOST_PAUSE_MS))
            when = self._later(letter)
            with about(letter.job):
                logger.warning(
                    "%s did not take the message that job %s failed (%s); again in %.0f s",
                    self._webhook.name,
                    letter.job.public_id,
                    failure,
                    (-when - self._store.clock.now_ms()) / 1000,
                )
            return when
        self._failures = 0
        crash.point("dead_letter.sent", letter.job.graph)
        return self._store.clock.now_ms()

    def _is_away(self) -> bool:
        """Whether the webhook did not answer a moment ago: then no other message is tried on it for a while."""
        return self._next_message.lasts(self._store.clock.now_ms())

    def _later(self, letter: DeadLetter) -> int:
        now = self._store.clock.now_ms()
        return -(now + wait_ms(letter.failed_at, now, self._randomness))


def _log(letter: DeadLetter) -> None:
    summary = letter.summary()
    error = summary["error"]
    place = raised_at(json.loads(letter.job.error_json or "{}"))
    logger.error(
        "job %s of graph %s failed at step %d: %s: %s%s [%s]; next: everstep dlq show %s",
        letter.job.public_id,
        letter.job.graph,
        letter.job.step,
        error["type"] or error["code"],
        " ".join(error["message"].split()),
        f", at {place}" if place else "",
        error["code"],
        letter.job.public_id,
    )
