"""What a running job notes as evidence, once, however often its node runs."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, insert, select

from everstep.checkpoints import claims
from everstep.checkpoints.schema import evidence


def note(connection: Connection, *, job_id: int, claim_no: int, kind: str, detail: Any, now: int) -> None:
    """Note something about a job under its claim; the same again is nothing.

    Args:
        connection: The write transaction.
        job_id: Row id of the job.
        claim_no: The claim under which its graph runs.
        kind: What kind of thing it is.
        detail: JSON.
        now: UTC milliseconds.

    Raises:
        LostClaim: The claim is no longer the job's.
    """
    claims.fence(connection, job_id, claim_no)
    row = {"job_id": job_id, "kind": kind, "detail_json": json.dumps(detail, sort_keys=True)}
    same = [evidence.c[name] == value for name, value in row.items()]
    if connection.execute(select(evidence.c.id).where(*same)).first() is None:
        connection.execute(insert(evidence).values(**row, claim_no=claim_no, at=now))
