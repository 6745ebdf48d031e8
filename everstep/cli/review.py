"""`everstep review`: the questions only a person can answer, and their answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import click

from everstep.cli.options import json_option, opened, parse_json, store_option
from everstep.cli.views import harmless, print_json, review_views, short_error, text

value_option = click.option("--value", metavar="JSON", help="The value that goes with the answer.")
reason_option = click.option("--reason", metavar="TEXT", help="Why, in your words; it is kept with the answer.")
by_option = click.option("--by", metavar="NAME", help="Who answers; this machine's user when omitted.")


@click.group(invoke_without_command=True)
@store_option
@json_option
@click.pass_context
def review(context: click.Context, store_url: str, as_json: bool) -> None:
    """List the open reviews; show or answer one with a subcommand."""
    context.obj = {"store_url": store_url, "as_json": as_json}
    if context.invoked_subcommand is None:
        _list(store_url, as_json)


def _list(store_url: str, as_json: bool) -> None:
    with opened(store_url) as store:
        found = [(review, store.job_by_row(review.job_id).public_id) for review in store.reviews()]
        views = review_views(store, found)
    if as_json:
        print_json(views)
        return
    if not views:
        click.echo("nothing waits for a person", err=True)
    for view in views:
        click.echo(f"{view['id']}  {view['kind']:<11} job {view['job']}  {text(_question(view['value']), 120)}")


def _question(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    asked = cast("dict[str, Any]", value)
    if "code" in asked and "message" in asked:
        return f"{asked.get('question')} {short_error(asked)}"
    requests = asked.get("action_requests")
    first = cast("list[Any]", requests)[0] if isinstance(requests, list) and requests else None
    if isinstance(first, dict):
        action = cast("dict[str, Any]", first)
        return action.get("description") or action
    return asked.get("question") or asked


def _options(context: click.Context, store_url: str, as_json: bool) -> tuple[str, bool]:
    """Options given after the subcommand win over those before it."""
    explicit = context.get_parameter_source("store_url") is click.core.ParameterSource.COMMANDLINE
    return (store_url if explicit else context.obj["store_url"]), as_json or context.obj["as_json"]


@review.command(name="list")
@store_option
@json_option
@click.pass_context
def list_(context: click.Context, store_url: str, as_json: bool) -> None:
    """List the open reviews."""
    _list(*_options(context, store_url, as_json))


@review.command()
@click.argument("review_id", metavar="ID")
@store_option
@json_option
@click.pass_context
def show(context: click.Context, review_id: str, store_url: str, as_json: bool) -> None:
    """Show what a review asks, and the answers it takes."""
    store_url, as_json = _options(context, store_url, as_json)
    with opened(store_url) as store:
        found = store.review(review_id)
        view = review_views(store, [(found, store.job_by_row(found.job_id).public_id)])[0]
    if as_json:
        print_json(view)
        return
    click.echo(f"review  {view['id']}  {view['kind']}, {view['status']}")
    click.echo(f"job     {view['job']}")
    click.echo(f"asked   {view['created_at']}")
    click.echo(harmless(json.dumps(view["value"], indent=2, ensure_ascii=False), keep_lines=True))
    if view["answer"]:
        click.echo(f"answer  {harmless(json.dumps(view['answer'], ensure_ascii=False))}")
        if use := view["used_for"]:
            when = use["consumed_at"] or f"since {use['reserved_at']}"
            click.echo(f"used    {use['state']} by {text(use['effect'])} {when}, effect {use['key']}")
        return
    click.echo("\nanswers")
    for decision, meaning in view["choices"].items():
        click.echo(f"  everstep review {decision} {view['id']}   # {harmless(meaning)}")


def _answering(decision: str, help_text: str) -> Callable[..., None]:
    @review.command(name=decision, help=help_text)
    @click.argument("review_id", metavar="ID")
    @value_option
    @reason_option
    @by_option
    @store_option
    @json_option
    @click.pass_context
    def answer(
        context: click.Context,
        review_id: str,
        value: str | None,
        reason: str | None,
        by: str | None,
        store_url: str,
        as_json: bool,
    ) -> None:
        store_url, as_json = _options(context, store_url, as_json)
        given = {} if value is None else {"value": parse_json(value, "--value")}
        with opened(store_url) as store:
            answered, job = store.answer(review_id, decision, reason=reason, by=by, **given)
            view = review_views(store, [(answered, job.public_id)])[0]
        if as_json:
            print_json({**view, "job_status": job.status})
        else:
            click.echo(
                f"{answered.public_id} {answered.decision} by {text(answered.answered_by)};"
                f" job {job.public_id} is {job.status}"
            )

    return answer


_answering("approve", "Say yes. For an unknown effect: it happened, and --value is its result.")
_answering("edit", "Say yes with changes: --value holds the changed arguments.")
_answering("respond", "Answer the question itself with --value.")
_answering("reject", "Say no. For an unknown effect: it did not happen, and will be called again.")
