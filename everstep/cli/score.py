"""`everstep score`: a judgement of a job's leg, written to its trace in Langfuse."""

from __future__ import annotations

import click

from everstep.cli.options import json_option, opened, store_option
from everstep.cli.views import print_json


@click.command(context_settings={"ignore_unknown_options": True})  # so that -1 is a value
@click.argument("job_id", metavar="JOB")
@click.argument("name")
@click.argument("value")
@click.option("--comment", metavar="TEXT", help="Why, in your words.")
@click.option("--leg", type=click.IntRange(1), metavar="N", help="Which leg of the job; the newest when omitted.")
@store_option
@json_option
def score(
    job_id: str, name: str, value: str, comment: str | None, leg: int | None, store_url: str, as_json: bool
) -> None:
    """Score a leg of a job in Langfuse. VALUE is a number, true, false, or a category.

    Scoring the same leg under the same NAME again replaces the score. It needs the LANGFUSE_* variables and Langfuse's
    SDK (pip install 'everstep[langfuse]').

    \b
    Examples:
      everstep score JOB correctness 0.9 --comment "one test was skipped"
      everstep score JOB accepted true --leg 2
    """  # noqa: D301 (click's own mark for lines that keep their breaks)
    from everstep.observability import langfuse
    from everstep.observability.links import Links
    from everstep.runtime.scores import score_leg

    settings = langfuse.required()
    with opened(store_url) as store:
        written = score_leg(store, store.job(job_id), name, value, comment=comment, leg=leg, settings=settings)
    url = Links().to(written.score.trace_id)
    if as_json:
        told = {"id": written.score.id, "job": written.job_id, "leg": written.leg, "trace_id": written.score.trace_id}
        print_json({**told, "name": name, "value": written.score.value, "type": written.score.type, "url": url})
    else:
        click.echo(f"scored leg {written.leg} of {written.job_id}: {name} = {value}")
        click.echo(f"see    {url}")
