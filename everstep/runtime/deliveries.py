"""Sending what waits in the outbox of webhooks: at least once, by whichever process is there, until it is given up.

A message that was not taken is tried again after 15 s, 30 s, 60 s, … and at last every hour, each plus up to a quarter
by chance, and never before the receiver asked (`Retry-After`). After `MOST_TRIES`, about three days, it is given up and
stays in the record to be replayed; at once if the receiver is gone (410), or nothing may be sent there.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from urllib.parse import urlsplit

from everstep import crash
from everstep.checkpoints import deliveries
from everstep.checkpoints.deliveries import TOPIC, Delivery
from everstep.checkpoints.store import Store
from everstep.clock import rfc3339
from everstep.graphs.policies import WebhooksSection
from everstep.runtime import backoff
from everstep.runtime.addresses import Guard
from everstep.runtime.identity import worker_id
from everstep.runtime.webhook import TIMEOUT_S, NotDelivered, Webhook, secrets_of

logger = logging.getLogger("everstep.webhooks")

MOST_TRIES = 80
AT_ONCE = 8
AT_ONCE_TO_ONE = 2
"""Messages on their way to one receiver: one that hangs leaves the others their turn."""
LEASE_MS = 60_000
"""How long a message is this process': longer than sending it takes."""
LOOK_EVERY_S = 60.0
"""When it looks though nobody told it to, should a wake-up have been lost."""
GRACE_S = 2.0


class Deliveries:
    """Sends messages until stopped. Start it in as many processes as you like.

    Args:
        store: The record.
        webhooks: What `everstep.toml` says of webhooks.
        randomness: For the jitter of waits.
        name: Who sends, for the leases; a fresh id when omitted.

    Raises:
        ConfigInvalid: The variable that should hold the secret holds what is none.
    """

    def __init__(
        self,
        store: Store,
        webhooks: WebhooksSection | None = None,
        *,
        randomness: random.Random | None = None,
        name: str | None = None,
    ) -> None:
        webhooks = webhooks or WebhooksSection()
        self._store = store
        self._secrets = secrets_of(variable=webhooks.secret_env)
        self._guard = Guard.of(webhooks.allow)
        self._randomness = randomness or random.Random()
        self._name = name or worker_id()
        self._under_way: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._give_up_at = float("inf")
        self._thread = threading.Thread(target=self._run, name="everstep-webhooks", daemon=True)
        self._listening = ExitStack()
        self._look_s = LOOK_EVERY_S

    def start(self) -> None:
        """Start sending."""
        poll_s = self._listening.enter_context(self._store.database.listen(self._wake.set, TOPIC))
        self._look_s = LOOK_EVERY_S if poll_s >= 1.0 else 1.0  # where nobody can be woken
        self._thread.start()

    def stop(self) -> None:
        """Send what is due, and stop; after two seconds at most, whatever the receivers do."""
        self._give_up_at = time.monotonic() + GRACE_S
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(GRACE_S)
        self._listening.close()

    def send_due(self, *, tell: Callable[[Delivery, str | None], None] | None = None) -> int:
        """Send what is due now, and wait until it is sent or not taken.

        Args:
            tell: Called with each message and why it was not taken, None if it was; on threads of their own.

        Returns:
            How many tries there were.
        """
        number = 0
        while True:
            busy = self._busy()  # before it is looked: a receiver that is full now may be free behind the look
            due = self._next_due() if self._free() > 0 else None
            if due is not None and due <= self._store.clock.now_ms():
                number += self._begin(tell)
            elif busy:
                self._wake.wait(0.05)
                self._wake.clear()
            else:
                return number

    def _run(self) -> None:
        wait = 0.0
        while not (self._stopping.is_set() and (time.monotonic() >= self._give_up_at or wait > 0)):
            if wait > 0:
                self._wake.wait(wait)
            self._wake.clear()
            try:
                wait = self._look()
            except Exception as error:  # the record may be out of reach, or closed; the messages are in it
                wait = 1.0
                if not self._stopping.is_set():
                    logger.warning("webhooks cannot be looked for, trying again: %s", error)
        while self._busy() and time.monotonic() < self._give_up_at:
            self._wake.wait(0.05)
            self._wake.clear()

    def _look(self) -> float:
        """Begin what is due; for how many seconds there is nothing to do."""
        if self._free() <= 0:
            return self._look_s  # one that ends wakes it
        due = self._next_due()
        left = self._look_s if due is None else (due - self._store.clock.now_ms()) / 1000
        if left > 0:
            return min(left, self._look_s)
        return 0.0 if self._begin(None) else 0.05  # another process took it a moment ago

    def _next_due(self) -> int | None:
        return self._store.read(partial(deliveries.next_try, but=self._full()))

    def _full(self) -> tuple[str, ...]:
        """Receivers that have as many messages on their way as they may."""
        with self._lock:
            return tuple(name for name, number in self._under_way.items() if number >= AT_ONCE_TO_ONE)

    def _busy(self) -> bool:
        with self._lock:
            return self._under_way.total() > 0

    def _free(self) -> int:
        with self._lock:
            return AT_ONCE - self._under_way.total()

    def _begin(self, tell: Callable[[Delivery, str | None], None] | None) -> bool:
        """Take a message that is due, and send it on a thread of its own; whether there was one."""
        now = self._store.clock.now_ms()
        take = partial(deliveries.take, holder=self._name, now=now, lease_ms=LEASE_MS, limit=1, but=self._full())
        taken = self._store.write(take).result()
        for delivery in taken:
            with self._lock:
                self._under_way[_receiver(delivery.url)] += 1
            threading.Thread(target=self._deliver, args=(delivery, tell), name="everstep-webhook", daemon=True).start()
        return bool(taken)

    def _over(self, receiver: str) -> None:
        with self._lock:
            self._under_way[receiver] -= 1
            if not self._under_way[receiver]:
                del self._under_way[receiver]
        self._wake.set()

    def _deliver(self, delivery: Delivery, tell: Callable[[Delivery, str | None], None] | None) -> None:
        """Send a message, and note what came of it."""
        try:
            reason = self._send(delivery)
            if tell is not None:
                tell(delivery, reason)
        except Exception as error:  # the record may be out of reach, or closed; the lease ends, and it is sent again
            if not self._stopping.is_set():
                logger.warning("what became of message %s could not be noted: %s", delivery.public_id, error)
        finally:
            self._over(_receiver(delivery.url))

    def _send(self, delivery: Delivery) -> str | None:
        """Send a message; why it was not taken, None if it was."""
        webhook = Webhook(delivery.url, self._secrets, self._guard)
        now, body = self._store.clock.now_ms(), delivery.body
        timeout = min(TIMEOUT_S, max(self._give_up_at - time.monotonic(), 0.01))
        try:
            if "webhook_sent_at" in body:
                body["webhook_sent_at"] = rfc3339(now)
            webhook.send(delivery.public_id, body, now_ms=now, timeout=timeout)
            crash.point("webhook.sent", delivery.job)
            self._store.write(
                lambda connection: deliveries.delivered(connection, delivery, now=self._store.clock.now_ms())
            ).result()
        except NotDelivered as failure:
            self._not_taken(delivery, webhook, failure)
            return str(failure)
        return None

    def _not_taken(self, delivery: Delivery, webhook: Webhook, failure: NotDelivered) -> None:
        now = self._store.clock.now_ms()
        again_at = None
        if not failure.final and delivery.tries < MOST_TRIES:
            again_at = now + backoff.delay_ms(delivery.tries - 1, failure.retry_after_ms, self._randomness)
        note = partial(deliveries.failed, delivery=delivery, reason=str(failure), again_at=again_at)
        if not self._store.write(note).result():
            return
        what = f"message {delivery.public_id} of job {delivery.job} was not taken by {webhook.name} ({failure})"
        if again_at is None:
            logger.error("%s and is given up; next: everstep deliveries replay %s", what, delivery.public_id)
        else:
            logger.warning("%s; again in %.0f s", what, (again_at - now) / 1000)


def _receiver(url: str) -> str:
    """Scheme, host and port of a URL, as it is written."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
