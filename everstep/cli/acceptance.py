"""Acceptance on the command line: the options of `submit`, and what `show` tells of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.views import text
from everstep.counts import counted
from everstep.errors import PayloadInvalid

if TYPE_CHECKING:
    from everstep.checkpoints.jobs import Job
    from everstep.checkpoints.policy import Acceptance

_OPTIONS = (
    click.option(
        "--verify",
        multiple=True,
        metavar="COMMAND",
        help='Must pass before the job is done, such as "pytest -q"; repeatable, in order, no shell.',
    ),
    click.option("--verify-in", "workdir", metavar="DIR", help="Where they run; {NAME} is a value of the final state."),
    click.option("--verify-timeout", "timeout", type=float, metavar="SECONDS", help="What each may take (600)."),
    click.option("--returns", type=int, metavar="N", help="How often a failure goes back to the graph first (2)."),
    click.option("--feedback", metavar="CHANNEL", help="The channel of its state that gets the output (messages)."),
    click.option(
        "--high-risk",
        "patterns",
        multiple=True,
        metavar="GLOB",
        help="Changed paths a person must approve, in place of those for login, billing, deployment; repeatable.",
    ),
    click.option("--no-high-risk", is_flag=True, help="No changed path needs a person."),
    click.option("--base", metavar="COMMIT", help="What changed paths are told from; without it none are looked at."),
)


def acceptance_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of an acceptance; it gets what was given as `acceptance`."""

    @functools.wraps(command)
    def with_acceptance(*arguments: Any, **options: Any) -> Any:
        names = ("verify", "workdir", "timeout", "returns", "feedback", "patterns", "no_high_risk", "base")
        taken = {name: options.pop(name) for name in names}
        return command(*arguments, acceptance=taken, **options)

    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(_OPTIONS), with_acceptance)


def merged(configured: Acceptance | None, options: dict[str, Any]) -> Acceptance | None:
    """What `everstep.toml` says, with what the options say in its place.

    Raises:
        PayloadInvalid: They contradict each other, or nothing would be checked.
    """
    from everstep.checkpoints.policy import merged_acceptance

    given = dict(options)
    patterns, none = given.pop("patterns"), given.pop("no_high_risk")
    if patterns and none:
        raise PayloadInvalid("--high-risk and --no-high-risk contradict each other", next_step="give one of them")
    given = {name: value for name, value in given.items() if value not in (None, ())}
    if patterns or none:
        given["high_risk"] = tuple(patterns)
    return merged_acceptance(configured, given)


def acceptance_view(job: Job, evidence: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What a job must pass, how often it was given back, and what came out last, as `show --json` gives it."""
    if job.acceptance is None:
        return None
    kept = [row for row in evidence if row["kind"] == "acceptance"]
    return {"policy": job.acceptance, "returns": job.returns, "last": kept[-1] if kept else None}


def acceptance_lines(view: dict[str, Any] | None) -> list[str]:
    """The same for people."""
    if view is None:
        return []
    policy, last = view["policy"], view["last"]
    commands = "; ".join(policy["verify"]) or "no commands"
    lines = [
        f"acceptance {text(commands, 120)} (in {policy['workdir']}); given back {counted(view['returns'], 'time')}"
    ]
    if policy["base"] is not None:
        patterns = policy["high_risk"]
        which = "the default ones" if patterns is None else ", ".join(patterns) or "none"
        lines.append(f"           high-risk paths since {policy['base']}: {text(which, 100)}")
    if last is not None:
        results = [f"{row['command']} → {row['exit_code']}" for row in last["detail"].get("results", [])]
        lines.append(f"           {last['at']} {last['detail']['outcome']}  {text('; '.join(results), 100)}".rstrip())
    return lines
