"""`everstep classify`: what an exception would mean for a job, without raising it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.options import json_option
from everstep.cli.views import print_json

if TYPE_CHECKING:
    from everstep.runtime.classify import Verdict

OUTAGES = {
    "service_unavailable": "the service as a whole is away",
    "rate_limited": "the service takes fewer requests for a while, whoever sends them",
    "usage_limit": "the account's usage limit is reached",
    "payment_failed": "the account could not be billed",
    "subscription_ended": "the account's subscription has ended",
}
KINDS = {
    "retry": "waits, then goes on from its last checkpoint; after max-attempts failures without progress it has failed",
    "review": "waits for a person, who lets it try again or ends it",
    "failed": "has failed for good; the evidence is kept, and everstep retry lets it go on after mending",
}


@click.command()
@click.argument("exception_type", metavar="PACKAGE.ERROR")
@click.option("--status", type=click.IntRange(100, 599), metavar="N", help="The HTTP status of the service's answer.")
@click.option(
    "--code",
    metavar="CODE",
    help="The code in the service's answer, such as insufficient_quota; of gRPC the status, such as UNAVAILABLE.",
)
@click.option("--retry-after", metavar="VALUE", help="The answer's Retry-After: seconds or an HTTP date.")
@click.option(
    "--attempt",
    type=click.IntRange(0, 1000),
    default=0,
    show_default=True,
    metavar="N",
    help="How many attempts failed before this one.",
)
@click.option(
    "--config",
    "config_path",
    metavar="FILE",
    type=click.Path(path_type=Path, readable=False),
    help="Load this configuration's graphs first, with what they register. Without it none is loaded.",
)
@json_option
def classify(
    exception_type: str,
    status: int | None,
    code: str | None,
    retry_after: str | None,
    attempt: int,
    config_path: Path | None,
    as_json: bool,
) -> None:
    """Tell what would become of a job whose graph raises PACKAGE.ERROR, such as openai.RateLimitError."""
    from everstep.runtime import classify as classifying
    from everstep.runtime.backoff import bounds_ms
    from everstep.runtime.earlier_tries import is_from_grpc, retries_by_itself
    from everstep.runtime.rules.grpc_status import GRPC, is_rpc_error
    from everstep.runtime.specimen import find_exception_type, specimen

    with redirect_stdout(sys.stderr):  # what is printed as code is imported is no answer
        if config_path is not None:
            _load_graphs(config_path)
        error = specimen(find_exception_type(exception_type), status, retry_after, code)
    if code is not None and is_rpc_error(error) and code.upper() not in GRPC:
        raise click.BadParameter(f"{code!r} is no status of gRPC: {', '.join(GRPC)}", param_hint="--code")
    verdict, rule = classifying.classify(error), classifying.deciding_rule(error).rule
    once = rule.surely_not_sent and not verdict.surely_not_sent and not is_from_grpc(error) and retries_by_itself(error)
    least, most = bounds_ms(attempt, verdict.retry_after_ms)
    answer: dict[str, Any] = {
        "type": exception_type,
        "status": status,
        "code": code,
        "kind": verdict.kind,
        "reason": verdict.reason,
        "rule": verdict.rule,
        "surely_not_sent": verdict.surely_not_sent or once,
        "if_first_try": once,
        "depends_on_cause": rule.wraps or verdict.rule == "default",
        "outage": verdict.outage,
        "retry_after_ms": verdict.retry_after_ms,
        "attempt": attempt,
        "wait_ms": {"least": least, "most": most} if verdict.kind == "retry" else None,
    }
    if as_json:
        print_json(answer)
    else:
        _tell(answer, verdict, retry_after)


def _load_graphs(path: Path) -> None:
    from everstep.graphs.loader import GraphCatalogue

    catalogue = GraphCatalogue.from_config(path)
    for name in catalogue.names():
        report = catalogue.check(name)
        if report.error is not None:
            raise report.error


def _tell(answer: dict[str, Any], verdict: Verdict, retry_after: str | None) -> None:
    colour = {"retry": "yellow", "review": "magenta", "failed": "red"}[verdict.kind]
    _line("job", f"{click.style(verdict.kind, fg=colour)}: {verdict.reason}")
    _line("", f"it {KINDS[verdict.kind]}")
    if answer["wait_ms"]:
        _line("wait", _wait(answer))
    _line("effect", _effect(answer))
    _line("outage", f"{verdict.outage}: {OUTAGES[verdict.outage]}" if verdict.outage else "none: it concerns this job")
    if verdict.outage and verdict.kind != "failed":
        _line("", "if the error tells which service it is, the job waits for it instead, and spends no attempt")
    _line("rule", verdict.rule)
    if retry_after is not None and verdict.kind == "retry" and verdict.retry_after_ms is None:
        _line("note", f"Retry-After {retry_after!r} is neither seconds nor an HTTP date: it asks for nothing")
    if verdict.rule == "default":
        _line("note", "an HTTP status (--status) or an error that it wraps (raise … from …) would decide")
    elif answer["depends_on_cause"]:
        _line("note", "if it wraps another error (raise … from …), that error decides where a rule knows it")


def _wait(answer: dict[str, Any]) -> str:
    from everstep.runtime.backoff import BASE_MS, CAP_MS

    least, most = answer["wait_ms"]["least"], answer["wait_ms"]["most"]
    own = f"{_seconds(BASE_MS)} × 2^{answer['attempt']}, at most {_seconds(CAP_MS)}"
    asked = answer["retry_after_ms"]
    base = f"{own}; the service asks for {_seconds(asked)}" if asked is not None else own
    return f"{_seconds(least)} to {_seconds(most)} ({base}; plus up to a quarter by chance)"


def _effect(answer: dict[str, Any]) -> str:
    if not answer["surely_not_sent"]:
        return "an effect that raised it is unknown: its probe looks, else a person does; it is not simply run again"
    again = "an effect that raised it may run again: nothing was done"
    return (
        f"{again}, provided the client did not retry by itself (docs/retries.md)" if answer["if_first_try"] else again
    )


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"


def _line(label: str, text: str) -> None:
    click.echo(f"{label:<8}{text}")
