"""`everstep doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

import click

from everstep.cli.options import config_option, json_option, store_option
from everstep.cli.views import harmless, print_json

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "wrong": ("✗", "red")}


@click.command()
@config_option
@store_option
@click.option("--deep", is_flag=True, help="Look at every page of the file, however long it takes.")
@json_option
def doctor(config_path: Path, store_url: str, deep: bool, as_json: bool) -> int:
    """Check environment, record and graphs, and say what is wrong and what to do. Exits 1 if anything is wrong.

    It is quick on a big record: the soundness of a file is looked at for five seconds, unless --deep is given.
    """
    from everstep.runtime import examination

    seconds = None if deep else examination.QUICK_S
    with redirect_stdout(sys.stderr):  # what a graph prints as it is imported is no finding
        findings = [*examination.environment(), *examination.look_inside(store_url, config_path, seconds)]
        findings += [*examination.graphs_of(config_path), *examination.providers(config_path)]
        findings += [*examination.traces(), *examination.langfuse()]
    wrong = any(finding.level == "wrong" for finding in findings)
    if as_json:
        print_json({"ok": not wrong, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            mark, colour = MARKS[finding.level]
            click.echo(f"{click.style(mark, fg=colour)} {finding.check:<12} {harmless(finding.detail)}")
            if finding.advice:
                click.echo(f"  {'':<12} next: {harmless(finding.advice)}")
    return 1 if wrong else 0
