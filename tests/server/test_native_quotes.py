"""Quotes over HTTP: what a generation would cost, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from everstep.nodes.pricing import Asked, quote, read_price_list
from everstep.nodes.providers.interface import Provider
from everstep.nodes.providers.registry import Entry, Providers
from everstep.server.app import create_app
from tests.support.native import agent, asking, key_for
from tests.support.prices import PRICES, price_list


def nothing() -> Provider:
    """No quote needs the provider itself."""
    raise AssertionError


def serving(store: Store, **prices: Path | None) -> Any:
    """An application with providers that have these price lists."""
    entries = {name: Entry(nothing, prices=path) for name, path in prices.items()}
    graphs = GraphCatalogue.from_graphs({"agent": agent()})
    return create_app(store, graphs, providers=Providers(entries))


async def test_a_quote_is_the_price_that_is_charged(store: Store, tmp_path: Path) -> None:
    """It is worked out by the same function, and tells what is meant by what was left out; who may look may ask."""
    app = serving(store, studio=price_list(tmp_path))
    asked = {"provider": "studio", "model": "clip-1", "duration": 4, "options": {"seed": [1]}}
    async with asking(app, key_for(store, "ann", "read")) as client:
        answered = await client.post("/everstep/quotes", json=asked)
    assert answered.status_code == 200
    shown = answered.json()
    price = quote(read_price_list(price_list(tmp_path)), Asked("clip-1", 4))
    whole = {"duration": 4, "resolution": "720p", "outputs": 1, "options": {"audio": False, "seed": [1]}}
    assert shown == {"provider": "studio", "model": "clip-1", **whole, "price": price.text, **price.as_dict()}


async def test_what_has_no_price_is_refused(store: Store, tmp_path: Path) -> None:
    """Unknown providers, what the list does not allow, and lists that cannot be used, whose place is not told."""
    broken = tmp_path / "broken.toml"
    broken.write_text(PRICES + "\nunknown = 1\n")
    app = serving(store, studio=price_list(tmp_path), broken=broken, none=None)
    asked = {"provider": "studio", "model": "clip-1", "duration": 4}
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"provider": "studios"}, 404, "provider_not_found"),
        ({"duration": 3}, 422, "options_invalid"),
        ({"outputs": 9}, 422, "options_invalid"),
        ({"outputs": "1"}, 422, "request_invalid"),
        ({"file": "prices.toml"}, 422, "request_invalid"),
        ({"provider": "broken"}, 503, "provider_unusable"),
        ({"provider": "none"}, 503, "provider_unusable"),
    ]
    async with asking(app) as client:
        for change, status, code in wrong:
            answered = await client.post("/everstep/quotes", json={**asked, **change})
            assert (answered.status_code, answered.json()["code"]) == (status, code), change
            assert str(tmp_path) not in answered.text
