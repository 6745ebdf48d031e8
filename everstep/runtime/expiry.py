"""Deletes threads and items whose time to live is over, now and then, in a thread of the worker.

Several workers may do it at once: each deletion looks again in its own transaction.
"""

from __future__ import annotations

import logging
import threading

from everstep.checkpoints import item_expiry, thread_removal
from everstep.checkpoints.store import Store
from everstep.counts import counted
from everstep.errors import EverstepError

logger = logging.getLogger("everstep.worker")

GRACE_S = 5.0


class Expiry:
    """Looks every so often.

    Args:
        store: The record.
        minutes: How often.
        most: How many threads at most each time.
    """

    def __init__(self, store: Store, minutes: float, most: int) -> None:
        self._store = store
        self._seconds = minutes * 60
        self._most = most
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="everstep-expiry", daemon=True)

    def start(self) -> None:
        """Begin, with a wait."""
        self._thread.start()

    def stop(self) -> None:
        """End; what is left is done by the next worker."""
        self._stopping.set()
        self._thread.join(GRACE_S)

    def look(self) -> None:
        """Delete what is over."""
        threads = thread_removal.remove_expired(self._store, most=self._most)
        items = item_expiry.forget(self._store)
        if threads or items:
            logger.info(
                "deleted because their time to live is over: %s and %s of the store",
                counted(threads, "thread"),
                counted(items, "item"),
            )

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            try:
                self.look()
            except EverstepError as error:
                logger.warning("what is over could not be deleted now: %s", error)
            except Exception:
                logger.exception("what is over could not be deleted")
