"""Quotes: what a generation would cost, worked out by the very function that works out the charge."""

from __future__ import annotations

import logging
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from everstep.errors import PriceListInvalid, ProviderUnusable
from everstep.nodes import pricing
from everstep.nodes.pricing import Asked
from everstep.server.bodies import JsonRoute
from everstep.server.context import CalledBy, ServedBy
from everstep.server.native import seen
from everstep.server.native.seen import Body, shows
from everstep.server.texts import Text

logger = logging.getLogger("everstep.server")

router = APIRouter(prefix="/everstep/quotes", tags=["quotes"], route_class=JsonRoute)


class QuoteAsked(Body):
    """What would be asked of a provider. What its price list does not allow is refused."""

    provider: Text = Field(description="A provider of `everstep.toml`.")
    model: Text = Field(description="A model of its price list.")
    duration: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        None, strict=True, description="Seconds, where the model takes a duration."
    )
    resolution: Text | None = Field(None, description="One of the price list's; its first when omitted.")
    outputs: int = Field(1, strict=True, description="How many.")
    options: dict[Text, Any] = Field({}, description="Options of the model, by name.")


class QuoteLineShown(BaseModel):
    """One of the numbers a price is the product of."""

    what: str
    factor: str = Field(description="Decimal text.")
    subtotal: str = Field(description="The product up to here, in the currency's main unit: exact decimal text.")


class QuoteShown(BaseModel):
    """What it would cost, and what is meant by what was asked."""

    provider: str
    model: str
    duration: float | None
    resolution: str | None
    outputs: int
    options: dict[str, Any]
    price: str = Field(description="For people: `1.25 EUR`.")
    amount: int = Field(description="In the currency's smallest unit.")
    currency: str
    decimals: int = Field(description="Decimals of the main unit.")
    version: str = Field(description="Of the price list.")
    lines: list[QuoteLineShown]


@router.post("", responses=shows(QuoteShown, "The price, and what it is made of."))
async def make_quote(body: QuoteAsked, served: ServedBy, caller: CalledBy) -> Response:
    """Tell what a generation would cost. Nothing is kept or charged; a job works its price out itself."""
    del caller
    asked = Asked(body.model, body.duration, body.resolution, body.outputs, body.options)

    def work_out() -> dict[str, Any]:
        try:
            prices = pricing.of_provider(served.providers, body.provider)
        except PriceListInvalid as error:  # it names files of this machine
            logger.error("%s", error)
            raise ProviderUnusable(
                f"the price list of the provider {body.provider!r} cannot be used; the server's log tells why",
                next_step="ask who runs the server",
                provider=body.provider,
            ) from None
        return {"provider": body.provider, **pricing.preview(prices, asked)}

    return seen.answer(await served.store.in_thread(work_out))
