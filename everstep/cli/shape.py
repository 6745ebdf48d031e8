"""`everstep shape`: which of the six shapes a task should have."""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.options import json_option
from everstep.cli.views import print_json
from everstep.errors import EX_FAILED

if TYPE_CHECKING:
    from everstep.runtime.shapes import Advice

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)?")
SHAPES = ("request-response", "streaming", "durable", "queue", "event-driven", "scheduled")


class Span(click.ParamType[float]):
    """A length of time such as `45s`, `5m`, `2h`; plain numbers are seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        if isinstance(value, float):
            return value
        found = _SPAN.fullmatch(str(value).strip())
        seconds = float(found[1]) * _UNITS[found[2] or "s"] if found else 0.0
        if not 0 < seconds < math.inf:
            self.fail(f"{value!r} is no length of time; give one such as 45s, 5m or 2h", param, ctx)
        return seconds


_ASKED: dict[str, tuple[str, click.ParamType[Any]]] = {
    "duration": ("How long does a run take, the slow ones included (45s, 5m, 2h)", Span()),
    "steps": ("How many steps of its graph is that", click.IntRange(1)),
    "trigger": ("What starts it", click.Choice(["request", "event", "cron"])),
    "waiter": ("Who waits for the result", click.Choice(["person", "client", "nobody"])),
    "restart_cost": ("What does it cost to begin again from nothing", click.Choice(["low", "high"])),
}
_OVERLAP = click.Choice(["skip", "queue", "resume"])


@click.command()
@click.option("--duration", type=Span(), metavar="TIME", help="How long a run takes, the slow ones included: 45s, 5m.")
@click.option("--steps", type=click.IntRange(1), help="How many steps of its graph that is.")
@click.option("--trigger", type=_ASKED["trigger"][1], help="What starts it.")
@click.option("--waiter", type=_ASKED["waiter"][1], help="Who waits for the result.")
@click.option("--restart-cost", type=_ASKED["restart_cost"][1], help="Of beginning again from nothing.")
@click.option("--shape", "intended", type=click.Choice(SHAPES), help="The shape you have in mind, to be judged.")
@click.option("--dead-letters/--no-dead-letters", default=True, help="Whether somebody looks at what failed for good.")
@click.option("--overlap", type=_OVERLAP, help="Of a cron: what a slot does while a run is unfinished.")
@click.option("--every", type=Span(), metavar="TIME", help="Of a cron: the time from one slot to the next.")
@json_option
@click.pass_context
def shape(
    context: click.Context,
    duration: float | None,
    steps: int | None,
    trigger: Any,
    waiter: Any,
    restart_cost: Any,
    intended: Any,
    dead_letters: bool,
    overlap: Any,
    every: float | None,
    as_json: bool,
) -> int:
    """Tell which shape a task should have: who waits, and for how long, decides.

    Asks for what is not given, if a person is there. Exits 1 if it refuses something of what was described.

    \b
      everstep shape --duration 5m --steps 40 --trigger request --waiter nobody --restart-cost high
      everstep shape --duration 5m --steps 1 --trigger request --waiter client --restart-cost low \\
          --shape request-response          refused
    """  # noqa: D301
    from everstep.runtime.shapes import Task, advise

    given: dict[str, Any] = {
        "duration": duration,
        "steps": steps,
        "trigger": trigger,
        "waiter": waiter,
        "restart_cost": restart_cost,
    }
    missing = [name for name, value in given.items() if value is None]
    if missing and (as_json or not sys.stdin.isatty()):
        options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise click.UsageError(f"Nobody is there to ask; give {options}.", context)
    for name in missing:
        question, kind = _ASKED[name]
        given[name] = click.prompt(question, type=kind, err=True)
    if missing and given["trigger"] == "cron" and overlap is None:
        answer = click.prompt(
            "What does a slot do while an earlier run is unfinished",
            type=click.Choice(["skip", "queue", "resume", "unknown"]),
            default="unknown",
            err=True,
        )
        overlap = None if answer == "unknown" else answer
    advice = advise(
        Task(
            duration_s=given["duration"],
            steps=given["steps"],
            waiter=given["waiter"],
            trigger=given["trigger"],
            restart_cost=given["restart_cost"],
            shape=intended,
            dead_letters=dead_letters,
            overlap=overlap,
            every_s=every,
        )
    )
    if as_json:
        print_json(_view(advice))
    else:
        _print(advice)
    return EX_FAILED if advice.refused else 0


def _view(advice: Advice) -> dict[str, Any]:
    return {
        "shape": advice.shape,
        "why": advice.why,
        "use": list(advice.use),
        "observe": [
            {"metric": metric.prometheus, "otlp": metric.name, "tells": tells} for metric, tells in advice.observe
        ],
        "refused": list(advice.refused),
        "cautions": list(advice.cautions),
    }


def _print(advice: Advice) -> None:
    click.echo(f"{click.style(advice.shape, bold=True)}: {advice.why}")
    for reason in advice.refused:
        click.echo(f"{click.style('refused', fg='red')}  {reason}")
    for caution in advice.cautions:
        click.echo(f"{click.style('mind', fg='yellow')}     {caution}")
    click.echo("use")
    for line in advice.use:
        click.echo(f"  {line}")
    click.echo("watch")
    for metric, tells in advice.observe:
        click.echo(f"  {metric.prometheus}: {tells}")
