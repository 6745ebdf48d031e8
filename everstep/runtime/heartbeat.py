"""The heartbeat: an OS thread with its own connection that extends the leases of all a worker runs in one statement.

It does not run on the event loop, so a node that blocks the loop cannot starve it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection

from sqlalchemy.exc import DBAPIError

from everstep.checkpoints import claims
from everstep.checkpoints.store import Store
from everstep.errors import StoreUnavailable
from everstep.runtime.outage import RecordOutage

logger = logging.getLogger("everstep.heartbeat")

Held = dict[int, tuple[int, bool]]


class Heartbeat:
    """Beats every third of the lease until stopped.

    Args:
        store: The record.
        worker: The worker's id.
        lease_ms: Length of the lease, milliseconds.
        running: Row ids of the jobs the worker runs; called on the heartbeat's thread.
        on_beat: Called on the heartbeat's thread with the jobs still held: row id → (claim number, cancellation
        requested).
        outage: Told when the record cannot be written.
    """

    def __init__(
        self,
        store: Store,
        worker: str,
        lease_ms: int,
        running: Callable[[], Collection[int]],
        on_beat: Callable[[Held], None],
        outage: RecordOutage | None = None,
    ) -> None:
        self._store = store
        self._worker = worker
        self._lease_ms = lease_ms
        self._running = running
        self._on_beat = on_beat
        self._outage = outage or RecordOutage()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="everstep-heartbeat", daemon=True)

    def start(self) -> None:
        """Start beating."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, after the beat under way."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        engine = self._store.database.writing_engine()
        try:
            # At most a second apart, so that a request to cancel is seen soon.
            while not self._stop.wait(min(self._lease_ms / 3000, 1.0)):
                running = self._running()
                if not running:  # nothing is held, so nothing is written
                    self._outage.passed("leases")
                    self._on_beat({})
                    continue
                try:
                    with engine.begin() as connection:
                        held = claims.heartbeat(
                            connection,
                            now=self._store.clock.now_ms(),
                            worker=self._worker,
                            lease_ms=self._lease_ms,
                            running=running,
                        )
                except DBAPIError as error:
                    reason = self._store.database.translate(error)
                    if isinstance(reason, StoreUnavailable):
                        self._outage.met("leases", reason)
                    else:
                        logger.warning("heartbeat failed, trying again: %s", reason)
                    continue
                self._outage.passed("leases")
                self._on_beat(held)
        finally:
            engine.dispose()
