"""The traces that Langfuse has of a time, in few figures each: for whoever looks at a day. Read through its SDK."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from everstep.observability.destinations import LangfuseDestination
from everstep.observability.langfuse import asking

if TYPE_CHECKING:
    from langfuse.api import LangfuseAPI

PAGE: Final = 1_000
MOST_PAGES: Final = 50
"""Of a busier day the first fifty thousand observations of a kind are looked at."""
TIMEOUT_S: Final = 30.0
_FAILED: Final = "ERROR"


@dataclass(frozen=True)
class Trace:
    """A trace, without what was said in it.

    Attributes:
        trace_id: Its id.
        session: The session it is part of; of ours that is the job.
        name: The name of its root.
        failed: Whether its root is an error.
        message: Of the error.
        seconds: How long it took.
        cost: What its model calls cost, US dollars.
        tokens: What they took.
        at_ms: When it began, UTC milliseconds.
    """

    trace_id: str
    session: str | None
    name: str
    failed: bool
    message: str
    seconds: float
    cost: float
    tokens: int
    at_ms: int


def read(settings: LangfuseDestination, *, since: int, until: int) -> list[Trace]:
    """The traces that began in a time.

    Args:
        settings: Which Langfuse, and the keys.
        since: From when on, UTC milliseconds.
        until: Until before when.

    Raises:
        LangfuseUnusable: The keys are refused, or the SDK is not installed.
        LangfuseUnavailable: It cannot be reached, or answers with an error.
    """
    cost, tokens = defaultdict[str, float](float), defaultdict[str, int](int)
    with asking(settings, TIMEOUT_S) as api:
        for call in _observations(api, since, until, type="GENERATION", fields="core,usage"):
            cost[call.trace_id] += call.total_cost or 0.0
            used: dict[str, int] = call.usage_details or {}
            tokens[call.trace_id] += used.get("total", 0)
        return [
            Trace(
                trace_id=root.trace_id,
                session=root.session_id or None,
                name=root.name or "",
                failed=root.level is not None and root.level.value == _FAILED,
                message=root.status_message or "",
                seconds=(root.end_time - root.start_time).total_seconds() if root.end_time else 0.0,
                cost=cost[root.trace_id],
                tokens=tokens[root.trace_id],
                at_ms=round(root.start_time.timestamp() * 1000),
            )
            for root in _observations(api, since, until, is_root_observation=True, fields="core,basic")
            if root.trace_id
        ]


def _observations(api: LangfuseAPI, since: int, until: int, **which: Any) -> Iterator[Any]:
    cursor: str | None = None
    for _ in range(MOST_PAGES):
        page = api.observations.get_many(
            from_start_time=datetime.fromtimestamp(since / 1000, UTC),
            to_start_time=datetime.fromtimestamp(until / 1000, UTC),
            limit=PAGE,
            cursor=cursor,
            request_options={"max_retries": 0},
            **which,
        )
        yield from page.data
        cursor = page.meta.cursor
        if cursor is None:
            return
