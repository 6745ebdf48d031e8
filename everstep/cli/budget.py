"""`everstep budget`: what a job may use and has used, and more of it; and the same as options of `submit`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.options import json_option, opened, store_option
from everstep.cli.views import next_action, print_json, text

if TYPE_CHECKING:
    from everstep.checkpoints.budgets import Account
    from everstep.checkpoints.policy import Budget

LIMITS = {
    "steps": ("N", "Steps of its graph."),
    "seconds": ("S", "Seconds it runs; waiting does not count."),
    "tokens": ("T", "Tokens of its model calls, input and output together."),
    "cost": ("USD", "What its model calls cost, US dollars."),
}
TAKEN_AWAY = "none"
SHOWN = 10
"""How many of the jobs that wait are named."""


class Limit(click.ParamType[Any]):
    """A number above 0, or `none`.

    Args:
        whole: Only whole numbers.
        can_be_none: Whether `none`, which takes a limit away, is one.
    """

    name = "limit"

    def __init__(self, *, whole: bool, can_be_none: bool) -> None:
        self._whole = whole
        self._can_be_none = can_be_none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == TAKEN_AWAY and self._can_be_none:
            return TAKEN_AWAY
        try:
            number = int(value) if self._whole else float(value)
        except ValueError:
            number = 0
        if not math.isfinite(number) or number <= 0:
            other = f", or {TAKEN_AWAY}" if self._can_be_none else ""
            self.fail(f"{value!r} is not a {'whole ' if self._whole else ''}number above 0{other}", param, ctx)
        return number


def _options(prefix: str, *, can_be_none: bool) -> list[Callable[..., Any]]:
    return [
        click.option(
            f"--{prefix}{name}",
            f"limit_{name}",
            metavar=metavar,
            type=Limit(whole=name in ("steps", "tokens"), can_be_none=can_be_none),
            help=("Most it may use, then a person is asked: " + help_text[0].lower() + help_text[1:])
            if prefix
            else help_text,
        )
        for name, (metavar, help_text) in LIMITS.items()
    ]


def _with_limits(options: list[Callable[..., Any]], command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with these options; it gets those that were given as `limits`."""

    @functools.wraps(command)
    def with_limits(*arguments: Any, **rest: Any) -> Any:
        given = {name: rest.pop(f"limit_{name}") for name in LIMITS}
        limits = {name: value for name, value in given.items() if value is not None}
        return command(*arguments, limits=limits, **rest)

    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(options), with_limits)


def budget_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--budget-steps` and so on; it gets what was given as `limits`."""
    return _with_limits(_options("budget-", can_be_none=False), command)


def merged(configured: Budget | None, limits: dict[str, Any]) -> Budget | None:
    """What `everstep.toml` says, with what the options say in its place."""
    from everstep.checkpoints.policy import merged_budget

    return merged_budget(configured, limits)


def budget_lines(view: dict[str, Any]) -> list[str]:
    """A budget as `Account.as_dict` gives it, for people: a line for each limit, and what is used without one."""
    lines: list[str] = []
    for name in LIMITS:
        used, limit = view["used"][name], view["limits"].get(name)
        if limit is not None:
            left = view["remaining"][name]
            lines.append(f"{name:<8} {_number(used)} of {_number(limit)} used, {_number(left)} left")
        elif used:
            lines.append(f"{name:<8} {_number(used)} used, no limit")
    return lines


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6f}".rstrip("0").rstrip(".")


def _apply(command: Callable[..., Any]) -> Callable[..., Any]:
    return _with_limits(_options("", can_be_none=True), command)


@click.command()
@click.argument("job_id", metavar="JOB")
@_apply
@click.option("--by", metavar="NAME", help="Who raises it; this machine's user when omitted.")
@store_option
@json_option
def budget(job_id: str, limits: dict[str, Any], by: str | None, store_url: str, as_json: bool) -> None:
    """Show what a job may use and has used, its children included, and which of them wait for it; or set limits.

    With an option the limit is set to that number ("none" takes it away), and the job and its children go on from
    their last step if they wait in review for a budget that suffices now.

    Such as: everstep budget 0197 --cost 12.50 --seconds none
    """
    from everstep.checkpoints import budgets

    with opened(store_url) as store:
        answered = []
        if limits:
            new = {name: None if value == TAKEN_AWAY else value for name, value in limits.items()}
            _, answered = store.set_budget(job_id, new, by=by)
        job = store.job(job_id)
        line = store.read(lambda connection: budgets.family(connection, job.id))
        view = {
            "id": job.public_id,
            "status": job.status,
            "parent": line[0].parent,
            **line[0].as_dict(),
            "ancestors": [{"id": above.public_id, **above.as_dict()} for above in line[1:]],
            "answered": [
                {"review": review.public_id, "job": store.job_by_row(review.job_id).public_id} for review in answered
            ],
        }
        waiting = store.read(lambda connection: budgets.waiting(connection, job.id))
        view["waiting"] = [
            {"review": one.public_id, "job": whose, "code": one.value["code"], "next_step": one.value["next_step"]}
            for one, whose in waiting
        ]
        then = next_action(job, store.reviews(job))
    if as_json:
        print_json(view)
    else:
        _print(view, line, then)


def _print(view: dict[str, Any], line: list[Account], then: str) -> None:
    click.echo(f"job      {view['id']}  {view['status']}")
    for account in line:
        if account is not line[0]:
            click.echo(f"\nchild of {account.public_id}")
        for line_of_limit in budget_lines(account.as_dict()) or ["nothing  used, and no limits"]:
            click.echo(line_of_limit)
    for one in view["answered"]:
        click.echo(f"goes on  {one['job']} (review {one['review']})")
    for next_step, jobs in _by_next_step(view["waiting"]).items():
        more = f" and {len(jobs) - SHOWN} more" if len(jobs) > SHOWN else ""
        click.echo(f"waits    {len(jobs)} in review: {', '.join(jobs[:SHOWN])}{more}\n         {text(next_step, 1000)}")
    click.echo(f"\nnext     {then}")


def _by_next_step(waiting: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The jobs that wait, by what lets them go on."""
    found: dict[str, list[str]] = {}
    for one in waiting:
        found.setdefault(one["next_step"], []).append(one["job"])
    return found
