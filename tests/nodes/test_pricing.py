"""Prices: a price list read strictly, and what a generation costs by it."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.checkpoints.quote import Quote, money
from everstep.errors import OptionsInvalid, PriceListInvalid
from everstep.nodes.price_list import PriceList
from everstep.nodes.pricing import Asked, complete, quote, read_price_list

LIST = """
version = "2026-11"
currency = "EUR"

[models."clip-1"]
per_second = 0.105
duration = { least = 2, most = 10, step = 2 }
outputs = 4
further_output = "0.9"
resolutions = { 720p = 1, 1080p = 1.5 }
options.audio = { false = 1, true = 1.25 }
options.frames = { 24 = 1, 48 = 1.3 }
free = ["seed"]

[models.still]
per_call = 0.005
"""


@pytest.fixture
def prices(tmp_path: Path) -> PriceList:
    """The list, as it is read."""
    file = tmp_path / "prices.toml"
    file.write_text(LIST)
    return read_price_list(file)


def test_a_price_tells_what_it_is_made_of(prices: PriceList) -> None:
    """Each factor has a line, and the last subtotal, rounded half up, is the amount."""
    price = quote(prices, Asked("clip-1", 4, "1080p", 3, {"audio": True, "seed": 7}))
    assert [(line.what, line.factor, line.subtotal) for line in price.lines] == [
        ("4 seconds at 0.105", "0.42", "0.42"),
        ("resolution 1080p", "1.5", "0.63"),
        ("3 outputs", "2.8", "1.764"),
        ("audio true", "1.25", "2.205"),
    ]
    assert (price.amount, price.currency, price.version, price.text) == (221, "EUR", "2026-11", "2.21 EUR")
    assert Quote.of(json.loads(json.dumps(price.as_dict()))) == price


def test_half_a_cent_is_rounded_up(prices: PriceList) -> None:
    """Half of the smallest unit counts as a whole one, and an amount is written with all its decimals."""
    assert quote(prices, Asked("still")).amount == 1
    assert (money(5, 2), money(0, 2), money(1234, 0), money(120, 3)) == ("0.05", "0.00", "1234", "0.120")


def test_what_is_left_out_is_the_first_of_the_list(prices: PriceList) -> None:
    """Resolution and options that are not given are the first ones, and the provider is told them."""
    whole = complete(prices, Asked("clip-1", 2))
    assert (whole.resolution, whole.outputs, whole.options) == ("720p", 1, {"audio": False, "frames": 24})
    assert quote(prices, whole) == quote(prices, Asked("clip-1", 2.0, options={"frames": "24"}))


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"model": "clip-2"}, "model", "did you mean clip-1?"),
    ({"model": None}, "model", "clip-1, still"),
    ({"duration": None}, "duration", "2 to 10 seconds in steps of 2"),
    ({"duration": 3}, "duration", "2 to 10 seconds in steps of 2"),
    ({"duration": 12}, "duration", "2 to 10"),
    ({"duration": -2}, "duration", "2 to 10"),
    ({"duration": float("nan")}, "duration", "2 to 10"),
    ({"duration": "4"}, "duration", "2 to 10"),
    ({"duration": True}, "duration", "2 to 10"),
    ({"duration": 10**5000}, "duration", "2 to 10"),
    ({"resolution": "4k"}, "resolution", "720p, 1080p"),
    ({"resolution": ["720p"]}, "resolution", "720p, 1080p"),
    ({"outputs": 0}, "outputs", "1 to 4"),
    ({"outputs": 5}, "outputs", "1 to 4"),
    ({"outputs": 1.0}, "outputs", "1 to 4"),
    ({"outputs": True}, "outputs", "1 to 4"),
    ({"options": {"sound": True}}, "sound", "audio, frames, seed"),
    ({"options": {"audio": 1}}, "audio", "false, true"),
    ({"options": {"audio": ["true"]}}, "audio", "false, true"),
    ({"options": ["audio"]}, "options", "an object"),
    ({"model": "still", "duration": 4}, "duration", "leave it out"),
    ({"model": "still", "duration": None, "resolution": "720p"}, "resolution", "leave it out"),
    ({"model": "still", "duration": None, "options": {"audio": True}}, "audio", "none"),
]


@pytest.mark.parametrize(("change", "option", "allowed"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_in_the_list_is_refused(
    prices: PriceList, change: dict[str, Any], option: str, allowed: str
) -> None:
    """The error names what is wrong and what is allowed; nothing that has no price is asked of a provider."""
    with pytest.raises(OptionsInvalid) as refused:
        quote(prices, Asked(**{"model": "clip-1", "duration": 4, **change}))
    assert refused.value.ids["option"] == option
    assert allowed in refused.value.next_step


def test_all_that_is_wrong_is_told_at_once(prices: PriceList) -> None:
    """A duration that is left out is missing, and has no default; what was given stands there as JSON has it."""
    with pytest.raises(OptionsInvalid) as refused:
        complete(prices, Asked("clip-1"))
    assert refused.value.message.endswith(": duration is missing: give 2 to 10 seconds in steps of 2")
    with pytest.raises(OptionsInvalid) as refused:
        complete(prices, Asked("clip-1", None, "4k", 9, {"audio": [None, True], "sound": 1}))
    wrong = ("duration is missing", "resolution is '4k'", "outputs is 9", "the option audio is [null, true]", "'sound'")
    assert all(one in refused.value.message for one in wrong)
    named = [one["option"] for one in refused.value.ids["mistakes"]]
    assert sorted(named) == ["audio", "duration", "outputs", "resolution", "sound"]
    assert all(f"{one}: " in refused.value.next_step for one in named)
    assert "None" not in f"{refused.value.message}{refused.value.next_step}"


MISTAKES: list[tuple[str, str, str]] = [
    ("per_second = 0.105", "per_secnd = 0.105", "models.clip-1.per_secnd: there is no such field"),
    ("per_call = 0.005", "per_call = -1", "models.still.per_call: it is no number of 0 or more"),
    ("per_call = 0.005", "per_call = nan", "models.still.per_call: "),
    ("per_call = 0.005", 'per_call = "free"', "models.still.per_call: it is no number, such as 0.10"),
    ("per_call = 0.005", "per_call = true", "models.still.per_call: "),
    ("per_call = 0.005", "per_call = 0.0000000000000001", "models.still.per_call: it has more than 15 digits"),
    ("per_call = 0.005", "per_call = 1e30", "models.still.per_call: it has more than 15 digits"),
    ("per_call = 0.005", "outputs = 2", "models.still: give one of per_second and per_call"),
    ("per_call = 0.005", "per_second = 1", "models.still: per_second needs duration"),
    ('currency = "EUR"', 'currency = "euro"', "currency: "),
    ('version = "2026-11"', "", "version: it is missing"),
    ("least = 2, most = 10", "least = 12, most = 10", "models.clip-1.duration: most is less than least"),
    ("step = 2", "step = 0", "models.clip-1.duration.step: it is no number above 0"),
    ("outputs = 4", "outputs = 4.5", "models.clip-1.outputs: "),
    ("{ 720p = 1, 1080p = 1.5 }", "{ 720p = [] }", "models.clip-1.resolutions.720p: "),
    ("{ 720p = 1, 1080p = 1.5 }", "{}", "models.clip-1.resolutions: "),
    ('free = ["seed"]', 'free = ["audio"]', "models.clip-1: audio is both in options and in free"),
    ("[models.still]", "[models.still", "line"),
]


@pytest.mark.parametrize(("right", "wrong", "told"), MISTAKES)
def test_every_mistake_is_named_by_its_place(tmp_path: Path, right: str, wrong: str, told: str) -> None:
    """A price list that is not exactly as it should be is refused as a whole."""
    assert right in LIST
    file = tmp_path / "prices.toml"
    file.write_text(LIST.replace(right, wrong))
    with pytest.raises(PriceListInvalid) as refused:
        read_price_list(file)
    assert told in refused.value.message
    assert str(file) in refused.value.message


def test_several_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """So is a list that is not there."""
    file = tmp_path / "prices.toml"
    file.write_text(LIST.replace("per_call = 0.005", "per_call = -1").replace("EUR", "?"))
    with pytest.raises(PriceListInvalid) as refused:
        read_price_list(file)
    assert len(refused.value.ids["mistakes"]) == 2
    with pytest.raises(PriceListInvalid, match="nowhere"):
        read_price_list(tmp_path / "nowhere.toml")


numbers = st.decimals(min_value=0, max_value=50, places=4)
durations = st.builds(
    lambda least, steps, step: {"least": least, "most": least + steps * step, "step": step},
    st.decimals(min_value="0.001", max_value=100, places=3),
    st.integers(0, 20),
    st.decimals(min_value="0.001", max_value=10, places=3),
)
small = st.one_of(st.integers(0, 3), st.decimals(min_value="0.001", max_value=3, places=3))  # or no price could be kept
factors = st.dictionaries(st.sampled_from(["true", "false", "24", "48", "wide"]), small, min_size=1)


@st.composite
def asked(draw: st.DrawFn) -> tuple[PriceList, Asked]:
    """A price list, and something that it allows."""
    duration, options = draw(durations), draw(st.dictionaries(st.sampled_from("abcdef"), factors, max_size=6))
    model = {
        "per_second": draw(numbers),
        "duration": duration,
        "outputs": draw(st.integers(1, 50)),
        "further_output": draw(small),
        "resolutions": draw(factors),
        "options": options,
    }
    currency = {"version": "1", "currency": "EUR", "decimals": draw(st.integers(0, 6))}
    prices = PriceList.model_validate({**currency, "models": {"m": model}})
    steps = int((duration["most"] - duration["least"]) / duration["step"])
    return prices, Asked(
        "m",
        duration["least"] + draw(st.integers(0, steps)) * duration["step"],
        draw(st.sampled_from(list(model["resolutions"]))),
        draw(st.integers(1, model["outputs"])),
        {name: draw(st.sampled_from(list(values))) for name, values in options.items()},
    )


@given(asked())
def test_prices_are_exact_whole_and_monotone(drawn: tuple[PriceList, Asked]) -> None:
    """Of any list: a whole number, rounded once, the same for preview and charge; more is never cheaper."""
    prices, one = drawn
    price = quote(prices, one)
    model = prices.models["m"]
    assert type(price.amount) is int
    assert price.amount >= 0
    assert price == quote(prices, one) == quote(prices, complete(prices, one))
    exact = Decimal(price.lines[-1].subtotal).scaleb(prices.decimals)
    assert abs(exact - price.amount) <= Decimal("0.5")
    assert price.amount == int(exact.to_integral_value(ROUND_HALF_UP))
    if one.outputs < model.outputs:
        more = Asked(one.model, one.duration, one.resolution, one.outputs + 1, one.options)
        assert quote(prices, more).amount >= price.amount
    assert model.duration is not None
    assert one.duration is not None
    longer = Decimal(one.duration) + model.duration.step
    if longer <= model.duration.most:
        assert quote(prices, Asked(one.model, longer, one.resolution, one.outputs, one.options)).amount >= price.amount
