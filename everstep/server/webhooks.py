"""`POST /webhooks/{provider}`: what providers tell of paid tasks, known to be genuine, stored before it is answered.

The signature is who asks: no API key. A sender is answered 2xx only once the event and all that follows from it are
committed; whatever else it is answered, it sends the event again, which changes nothing twice.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from functools import partial
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from everstep import crash
from everstep.checkpoints import provider_events
from everstep.checkpoints.provider_status import ProviderEvent
from everstep.counts import counted
from everstep.credentials import without_secrets
from everstep.errors import EventInvalid, EventRefused, EventTooLarge, ProviderNotFound, ProviderUnusable
from everstep.observability import metric_names
from everstep.server.context import Served, ServedBy
from everstep.server.native import seen
from everstep.server.native.seen import shows
from everstep.server.native.shown import ErrorShown

logger = logging.getLogger("everstep.providers")
router = APIRouter(prefix="/webhooks", tags=["webhooks"])

MOST_BYTES = 1024 * 1024
"""The largest message that is read; the server's own limit holds besides."""
TELL_EVERY_S = 60.0
"""How often the log tells of messages of one provider that are not genuine."""
_BODY: dict[str, Any] = {"requestBody": {"content": {"application/json": {"schema": {}}}, "required": True}}


class WebhookTaken(BaseModel):
    """What became of an event."""

    state: Literal["applied", "parked", "ignored"] = Field(
        description="`parked`: no task answers to it yet; `ignored`: its task has ended."
    )
    duplicate: bool = Field(description="It had come before.")


class Refusals:
    """Tells the log of messages that are not genuine, but not of each."""

    def __init__(self) -> None:
        self._untold: Counter[str] = Counter()
        self._told_at: dict[str, float] = {}

    def tell(self, provider: str, error: EventRefused) -> None:
        """Count one, and write a line unless there was one a moment ago."""
        self._untold[provider] += 1
        now = time.monotonic()
        if now - self._told_at.get(provider, float("-inf")) < TELL_EVERY_S:
            return
        self._told_at[provider] = now
        number = self._untold.pop(provider)
        logger.warning(
            "%s refused, the last one: %s",
            counted(number, f"webhook of {provider} was", f"webhooks of {provider} were"),
            error.message,
        )


refusals = Refusals()


@router.post(
    "/{provider}",
    openapi_extra=_BODY,
    responses={
        **shows(WebhookTaken, "It is stored, and what follows of it."),
        **shows(ErrorShown, "It is not known to be genuine, or too old.", 401),
    },
)
async def take_webhook(provider: str, request: Request, served: ServedBy) -> Response:
    """Take what a provider tells of a paid task. Its signature decides who may send; no API key is needed.

    An event that comes again is answered as a duplicate. One of a task that nobody here knows is kept, and applied when
    the task is known.
    """
    _require_webhook(served, provider)
    try:
        event = await _genuine(provider, request, served)
    except (EventRefused, EventTooLarge, EventInvalid):
        _count(served, provider, "refused")
        raise
    crash.point("provider.told", provider)
    take = partial(provider_events.take, provider=provider, event=event, now=served.store.clock.now_ms())
    taken = await served.store.awrite(take)
    _count(served, provider, "duplicate" if taken.duplicate else taken.state)
    if taken.state == "parked" and not taken.duplicate:
        logger.info("event %s of %s found no task; it is parked", taken.event.public_id, provider)
    return seen.answer({"state": taken.state, "duplicate": taken.duplicate})


def _require_webhook(served: Served, provider: str) -> None:
    """Refuse what is for a provider that is not there, or sends no messages.

    Raises:
        ProviderNotFound: So it is.
    """
    entry = served.providers.entries.get(provider)
    if entry is None or entry.check is None:
        raise ProviderNotFound(f"no provider is told of at /webhooks/{provider}", provider=provider)


async def _genuine(provider: str, request: Request, served: Served) -> ProviderEvent:
    """What a request says, once it is known to be the provider's.

    Raises:
        EventTooLarge: It has more bytes than are read.
        EventRefused: It is not known to be genuine, or too old or from the future.
        EventInvalid: It is genuine, and nothing that the provider sends.
        ProviderUnusable: The secret is not in the environment.
    """
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise EventTooLarge(f"the message has more than {MOST_BYTES} bytes")
    headers = {header.lower(): value for header, value in request.headers.items()}
    try:
        return served.providers.webhook(provider, headers, bytes(body), now_ms=served.store.clock.now_ms())
    except EventRefused as error:
        refusals.tell(provider, error)
        raise EventRefused("the message is not known to be genuine", provider=provider) from None
    except ProviderUnusable as error:  # its text is for whoever runs the server
        logger.error("%s", error)
        raise ProviderUnusable("the provider's messages cannot be taken now", provider=provider) from None
    except EventInvalid as error:
        logger.warning("a genuine message of %s cannot be used: %s", provider, error.message)
        told = without_secrets(error.message)  # a provider's own code words it
        raise EventInvalid(told, next_step=without_secrets(error.next_step), provider=provider) from None


def _count(served: Served, provider: str, outcome: str) -> None:
    served.streams.measure(metric_names.PROVIDER_WEBHOOKS, 1, provider, outcome)
