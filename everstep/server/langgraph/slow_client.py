"""`Everstep-Slow-Client`: what becomes of a run whose clients read more slowly than its agent works.

`buffer`, as without the header: the agent goes on, and the event log holds what they have not read. `pause;budget=30`:
it waits for the slowest client that reads, between what its graph emits, for so many seconds in all at most.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Header, Request

from everstep.errors import RequestInvalid

HEADER = "Everstep-Slow-Client"
BUDGET_S = 30.0
MOST_S = 3600.0
_PAUSE = re.compile(r"pause(?:\s*;\s*budget=(\d{1,4}(?:\.\d{1,3})?))?", re.ASCII)


def of_request(request: Request) -> float | None:
    """For how many seconds the agent waits for slow clients, as a request says; None: not at all.

    Raises:
        RequestInvalid: The header is neither `buffer` nor `pause` with a budget of 0 to `MOST_S` seconds.
    """
    given = request.headers.get(HEADER, "buffer").strip()
    if given == "buffer":
        return None
    found = _PAUSE.fullmatch(given)
    budget_s = float(found[1] or BUDGET_S) if found else MOST_S + 1
    if budget_s > MOST_S:
        raise RequestInvalid(
            f"{HEADER}: neither buffer nor pause with a budget of 0 to {MOST_S:.0f} seconds",
            next_step=f"send {HEADER}: pause;budget=30",
        )
    return budget_s


async def _described(
    given: Annotated[
        str | None,
        Header(alias=HEADER, description="`buffer`, or `pause;budget=30`: the agent waits for a client that is slow."),
    ] = None,
) -> None:
    """So that the description of a path has the header."""


TAKES = [Depends(_described)]
"""As `dependencies` of a path that starts a run."""
