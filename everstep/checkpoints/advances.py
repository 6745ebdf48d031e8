"""How far a job is: of the writes of a leg that share a transaction, the first notes it, as it is after all of them.

Before its first node a job writes three times, and twice with what the node wrote; each of these changed the job's row
and looked up its budget. One change holds the row from the first write on, as each did, and says where the last one is.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection

from everstep.checkpoints import claims, together
from everstep.checkpoints.fence import Fence
from everstep.checkpoints.jobs import LostClaim
from everstep.checkpoints.together import Together


@dataclass(eq=False)
class Advance:
    """What a write of the leg means for its job.

    Attributes:
        columns: What to keep current, and whether it brings the job further (`claims.advance`); None: nothing but that
            it does.
        is_step: Whether it is a checkpoint, after which the job may have to stop.
        future: Resolves with the write.
    """

    columns: Mapping[str, Any] | None
    is_step: bool
    future: Future[Any] | None = None


class Advances:
    """Of one leg.

    Args:
        fence: The claim it runs under.
    """

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._submitted: list[Advance] = []
        self._noted: tuple[Together | None, list[Advance]] = None, []

    def submitted(self, advance: Advance, future: Future[Any]) -> None:
        """Its write is queued, and may have run."""
        advance.future = future
        self._submitted.append(advance)
        future.add_done_callback(lambda _: self._submitted.remove(advance))

    def note(self, connection: Connection, advance: Advance, *, now: int) -> None:
        """In the transaction of its write, before anything else.

        Raises:
            LostClaim: The claim is no longer the job's.
        """
        try:
            self._note(connection, advance, now)
        except LostClaim as lost:
            self._fence.refused(lost)
            self._fence.block(lost)
            raise

    def _note(self, connection: Connection, advance: Advance, now: int) -> None:
        fence, transaction = self._fence, together.of(connection)
        noted_in, noted = self._noted
        if noted_in is transaction and advance in noted:
            if transaction.moved:  # since the claim was looked at
                claims.fence(connection, fence.job_id, fence.claim_no)
            return
        later = self._after(advance, transaction) if advance.columns is not None else []
        use = {} if advance.columns is None else fence.progress()  # here, so that none is overwritten by an older one
        columns: dict[str, Any] = {}
        for each in (advance, *later):
            columns |= each.columns or {}
        columns["progressed"] = sum((each.columns or {}).get("progressed", True) for each in (advance, *later))
        claims.advance(connection, fence.job_id, fence.claim_no, now=now, **use, **columns)
        if advance.is_step or any(each.is_step for each in later):
            fence.stepped(connection)
        if later:
            self._noted = transaction, later

    def _after(self, advance: Advance, transaction: Together) -> list[Advance]:
        """The writes of the leg that follow in the transaction, in their order."""
        place = {id(future): at for at, future in enumerate(transaction.futures)}
        own = place.get(id(advance.future))
        if own is None:  # it is not known yet, or stands alone
            return []
        noted = [(place.get(id(each.future), -1), each) for each in list(self._submitted) if each.columns is not None]
        behind = sorted((pair for pair in noted if pair[0] > own), key=itemgetter(0))
        return [each for _, each in behind]
