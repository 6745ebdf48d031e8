"""`everstep crash-test`: kill workers at every crash point of a graph, and tell what differs afterwards."""

from __future__ import annotations

import random
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from everstep.cli.options import config_option, json_option, parse_json, read_input
from everstep.cli.views import print_json
from everstep.cli.worker import finite
from everstep.errors import PayloadInvalid

if TYPE_CHECKING:
    from everstep.runtime.crash_test.report import Report

MAX_SEED = 2**31 - 1


@click.command("crash-test")
@click.argument("graph")
@click.option(
    "--input",
    "given",
    metavar="FILE|JSON",
    required=True,
    help="The graph's input: JSON, a file of it, or -. {run} in a text becomes a fresh folder of each run.",
)
@click.option("--answers", metavar="FILE|JSON", help="What a person answers: a list, or an object by question or node.")
@click.option(
    "--world",
    multiple=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="A file or folder the graph acts on: put back before each run, compared after it; repeatable.",
)
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Test N of the points, drawn at random.")
@click.option("--seed", type=click.IntRange(0, MAX_SEED), metavar="S", help="Repeat the draw that printed this seed.")
@click.option("--only", multiple=True, metavar="POINT", help="Test points whose names begin so; repeatable.")
@click.option("--allow", multiple=True, metavar="TEXT", help="A touch of the world that is fine; repeatable.")
@click.option("--jobs", type=click.IntRange(1, 64), default=2, show_default=True, help="Runs at once; 1 with --world.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    callback=finite,
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a run may take at most.",
)
@click.option(
    "--keep", metavar="DIR", type=click.Path(path_type=Path), help="Keep the records and logs of all runs there."
)
@click.option("--postgres", metavar="URL", help="Keep the records in this database, each in a schema of its own.")
@click.option(
    "--credit",
    multiple=True,
    metavar="CURRENCY",
    help="Give each run plenty of this to pay paid tasks with, and compare what was paid; repeatable.",
)
@config_option
@json_option
def crash_test(
    graph: str,
    given: str,
    answers: str | None,
    world: tuple[Path, ...],
    sample: int | None,
    seed: int | None,
    only: tuple[str, ...],
    allow: tuple[str, ...],
    jobs: int,
    timeout: float,
    keep: Path | None,
    postgres: str | None,
    credit: tuple[str, ...],
    config_path: Path,
    as_json: bool,
) -> int:
    """Kill a worker at every crash point of GRAPH, let another go on, and tell what differs from a run without a crash.

    Each run has a record of its own; yours is not touched. The graph really runs, once for each point: give it an input
    that may be carried out often. Exits 0 if all held, 1 if something differed or a node touches the world outside an
    effect.
    """
    from everstep.checkpoints import payload
    from everstep.graphs.configuration import read_configuration, require_name

    value = read_input(given)
    payload.check_input(value)
    script = None if answers is None else _read_answers(answers)
    configuration = read_configuration(config_path)
    require_name(graph, list(configuration.graphs), configuration.path)

    from everstep.cli.crash_test_screen import Screen
    from everstep.runtime.crash_test.campaign import Plan, crash_test

    plan = Plan(
        config=configuration.path,
        graph=graph,
        input=value,
        seed=random.randrange(1_000_000) if seed is None else seed,
        sample=sample,
        only=only,
        answers=script,
        world=world,
        allow=allow,
        jobs=jobs,
        seconds=timeout,
        keep=keep,
        postgres=postgres,
        credit=credit,
    )
    screen = Screen(quiet=as_json)
    with _cleaned_up(), screen.progress() as listener:
        report: Report = crash_test(plan, listener)
    if as_json:
        print_json(report.as_dict())
    else:
        screen.show(report, keep)
    return 0 if report.held else 1


def _read_answers(given: str) -> Any:
    if given.lstrip()[:1] in ("[", "{"):
        return parse_json(given, "--answers")
    try:
        return parse_json(Path(given).read_text(encoding="utf-8-sig"), f"the file {given}")
    except (OSError, ValueError) as error:
        raise PayloadInvalid(
            f"--answers is neither JSON nor a file that can be read: {given[:80]!r}",
            next_step="give a JSON list or object in single quotes, or the name of a file",
        ) from error


@contextmanager
def _cleaned_up() -> Generator[None]:
    """Ctrl-C and SIGTERM end the test with everything it started; a second one does not stop the cleaning up."""
    signals = (signal.SIGINT, signal.SIGTERM)

    def leave(number: int, _frame: FrameType | None) -> None:
        for one in signals:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
