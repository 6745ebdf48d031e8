"""`everstep prices`: what models cost, and who says so."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.options import config_option, json_option
from everstep.cli.views import print_json
from everstep.errors import PriceNotFound

if TYPE_CHECKING:
    from everstep.graphs.policies import PriceSection
    from everstep.observability.price_table import Listed

CONFIGURED = "everstep.toml"


@click.command()
@click.argument("model", required=False)
@click.option(
    "--provider", metavar="NAME", help="Who is asked for the model, as LangChain names them: openai, azure, …"
)
@config_option
@json_option
def prices(model: str | None, provider: str | None, config_path: Path, as_json: bool) -> None:
    """Tell what a MODEL costs, US dollars for a million tokens, or list all that are known.

    A price in everstep.toml goes before the table that comes with Everstep; what a provider says itself, with its
    answer, goes before both.

    For example: everstep prices gpt-4o, or everstep prices gpt-4o --provider azure, or everstep prices | grep sonnet.
    """
    from everstep.graphs.policies import read_policies

    configured = read_policies(config_path).prices
    if model is not None:
        view = _view_of(model, provider, configured)
        if as_json:
            print_json(view)
        else:
            _print(view)
        return
    views = list(_every(provider, configured))
    if as_json:
        print_json(views)
        return
    for view in views:
        kinds = "  ".join(f"{kind} {price:g}" for kind, price in view["per_million"].items())
        click.echo(f"{view['model']}  {view['provider'] or CONFIGURED}  {kinds}")


def _view_of(model: str, provider: str | None, configured: dict[str, PriceSection]) -> dict[str, Any]:
    from everstep.observability import price_table

    if model in configured:
        return _of_configuration(model, configured[model])
    listed = price_table.look_up(model, provider)
    if listed is not None:
        return {**_of_table(listed), "model": model}
    known = {*configured, *(one.model for one in price_table.every())}
    close = get_close_matches(model, known, 3)
    guess = f"did you mean {' or '.join(close)}? Or " if close else ""
    raise PriceNotFound(
        f"nobody says what {model!r} costs{f' at {provider}' if provider else ''}",
        next_step=f'{guess}give its price in everstep.toml: [prices."{model}"] with input and output',
        model=model,
        close=close,
    )


def _every(provider: str | None, configured: dict[str, PriceSection]) -> Iterator[dict[str, Any]]:
    from everstep.observability import price_table

    for name, price in configured.items() if provider is None else ():
        yield _of_configuration(name, price)
    for listed in price_table.every():
        if provider in (None, listed.provider):
            yield _of_table(listed)


def _of_configuration(model: str, price: PriceSection) -> dict[str, Any]:
    given = {kind: value for kind, value in price.model_dump().items() if value is not None}
    return {
        "model": model,
        "source": CONFIGURED,
        "version": None,
        "provider": None,
        "listed_as": model,
        "per_million": given,
        "long_prompts": {},
    }


def _of_table(listed: Listed) -> dict[str, Any]:
    from everstep.observability import price_table

    return {
        "model": listed.model,
        "source": price_table.LIBRARY,
        "version": price_table.table_version(),
        "provider": listed.provider,
        "listed_as": listed.model,
        "per_million": {kind: float(price) for kind, price in listed.prices.items()},
        "long_prompts": {
            kind: [{"from_tokens": start, "per_million": float(price)} for start, price in tiers]
            for kind, tiers in listed.tiers.items()
        },
    }


def _print(view: dict[str, Any]) -> None:
    where = f"{view['provider']}/{view['listed_as']} of {view['source']} {view['version']}"
    click.echo(f"{view['model']}: {where if view['version'] else view['source']}")
    for kind, price in view["per_million"].items():
        tiers = "".join(
            f"; {tier['per_million']:g} when the prompt has more than {tier['from_tokens']:,} tokens"
            for tier in view["long_prompts"].get(kind, ())
        )
        click.echo(f"  {kind.replace('_', ' '):<15} {price:>8g} USD for a million tokens{tiers}")
