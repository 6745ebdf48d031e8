"""`everstep quote`: what a generation would cost, worked out as it is when it is charged."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.options import config_option, json_option
from everstep.cli.views import harmless, print_json

if TYPE_CHECKING:
    from everstep.nodes.price_list import PriceList


class Seconds(click.ParamType[int | float]):
    """A number of seconds."""

    name = "seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:
        try:
            number = Decimal(value)
            return int(number) if number == number.to_integral_value() else float(number)
        except (InvalidOperation, ValueError, OverflowError):
            self.fail(f"{value!r} is no number of seconds", param, ctx)


@click.command()
@click.argument("model")
@click.option("--duration", type=Seconds(), metavar="SECONDS", help="How long what is made shall be.")
@click.option("--resolution", metavar="NAME", help="One that the price list has; its first when omitted.")
@click.option("--outputs", type=int, default=1, show_default=True, help="How many.")
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the model; the value is JSON, or else text; repeatable.",
)
@click.option("--prices", "file", metavar="FILE", type=click.Path(path_type=Path), help="The price list.")
@click.option("--provider", metavar="NAME", help="The provider of everstep.toml whose price list holds.")
@config_option
@json_option
def quote(
    model: str,
    duration: int | float | None,
    resolution: str | None,
    outputs: int,
    options: tuple[str, ...],
    file: Path | None,
    provider: str | None,
    config_path: Path,
    as_json: bool,
) -> None:
    """Tell what a generation by MODEL would cost, and what the price is made of.

    A price list is a TOML file: the one of a provider in everstep.toml, or any file. What it does not allow is refused.

    For example: everstep quote clip-1 --duration 5 --resolution 1080p --option audio=true --provider studio
    """
    from everstep.nodes import pricing

    prices = _price_list(file, provider, config_path)
    asked = pricing.Asked(model, duration, resolution, outputs, dict(_option(one) for one in options))
    view = pricing.preview(prices, asked)
    if as_json:
        print_json(view)
        return
    click.echo(f"{view['price']}  {harmless(model)}, price list {harmless(prices.version)}")
    for line in view["lines"]:
        click.echo(f"  {harmless(line['what']):<32} × {line['factor']:<10} {line['subtotal']:>14}")


def _option(given: str) -> tuple[str, Any]:
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{given!r} is not NAME=VALUE", param_hint="--option")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def _price_list(file: Path | None, provider: str | None, config_path: Path) -> PriceList:
    from everstep.graphs.policies import read_policies
    from everstep.graphs.provider_sections import providers_of
    from everstep.nodes.pricing import of_provider, read_price_list

    if (file is None) == (provider is None):
        raise click.UsageError("give one of --prices FILE and --provider NAME", click.get_current_context())
    if file is not None:
        return read_price_list(file)
    assert provider is not None
    providers = providers_of(read_policies(config_path).providers, config_path.absolute().parent)
    return of_provider(providers, provider)
