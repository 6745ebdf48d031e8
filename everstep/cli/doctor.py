"""`everstep doctor`: what is wrong, and what to do about it."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from everstep.cli.advice import Finding, on_health
from everstep.cli.options import config_option, json_option, store_option
from everstep.cli.views import harmless, print_json
from everstep.errors import EverstepError, LangfuseUnusable

if TYPE_CHECKING:
    from everstep.checkpoints.admission import Limits
    from everstep.checkpoints.store import Store

PACKAGES = ("everstep", "langgraph", "langgraph-checkpoint-sqlite", "langchain-core", "sqlalchemy", "opentelemetry-sdk")
QUICK_S = 5.0
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
    seconds = None if deep else QUICK_S
    with redirect_stdout(sys.stderr):  # what a graph prints as it is imported is no finding
        findings = [*_environment(), *look_inside(store_url, config_path, seconds), *_graphs(config_path)]
        findings += [*_traces(), *_langfuse()]
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


def _environment() -> Iterator[Finding]:
    from importlib.metadata import version

    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    yield Finding("environment", "ok", f"Python {platform.python_version()} on {sys.platform}; {packages}")
    if sqlite3.sqlite_version_info < (3, 35):
        yield Finding("sqlite", "wrong", f"SQLite {sqlite3.sqlite_version}", "use a Python with SQLite 3.35 or newer")
    else:
        yield Finding("sqlite", "ok", f"SQLite {sqlite3.sqlite_version}")


def look_inside(store_url: str, config_path: Path, seconds: float | None) -> Iterator[Finding]:
    """What is found in a record; its soundness is looked at for so many seconds, or without limit."""
    from everstep.checkpoints import database
    from everstep.checkpoints.sqlite import Sqlite
    from everstep.checkpoints.store import Store

    try:
        place = database.of_url(store_url)
        makeable = not isinstance(place, Sqlite) or os.access(place.path.parent, os.W_OK | os.X_OK)
        if isinstance(place, Sqlite) and makeable and not place.path.exists():
            detail = f"{place.label} does not exist yet; everstep submit and everstep worker make it"
            yield Finding("record", "ok", detail)
            return
        with Store.open(store_url, create=not makeable) as store:  # where none can be made, the error tells why
            store.write(database.require_writable).result()
            yield from _inside(store, config_path, seconds)
    except EverstepError as error:
        yield Finding("record", "wrong", error.message, error.next_step)


def _limits(config_path: Path) -> Limits | None:
    from everstep.graphs.policies import read_policies

    try:
        return read_policies(config_path).limits()
    except EverstepError:  # a worker that is started with it says so
        return None


def _inside(store: Store, config_path: Path, seconds: float | None) -> Iterator[Finding]:
    from sqlalchemy import select

    from everstep.checkpoints import health, migrate
    from everstep.checkpoints.schema import agent_jobs
    from everstep.graphs.loader import GraphCatalogue

    place, sound = store.database, "sound"
    missing, problem = store.missing_tables(), None
    try:
        problem = store.read(lambda connection: place.problem(connection, seconds))
    except TimeoutError:
        sound = f"sound as far as {seconds:.0f} s of looking went (all of it: everstep doctor --deep)"
    if missing or problem:
        detail = f"missing tables: {', '.join(missing)}" if missing else f"damaged: {problem}"
        next_step = "keep the file; restore a backup or run sqlite3 FILE .recover"
        yield Finding("record", "wrong", f"{place.label}: {detail}", next_step)
        return
    found = health.examine(store, _limits(config_path))
    yield Finding("record", "ok", f"{place.label}: {found.size / 1e6:.1f} MB, schema {migrate.HEAD}, {sound}")
    yield from on_health(found)
    try:
        known = set(GraphCatalogue.from_config(config_path).names())
    except EverstepError:
        return
    names = store.read(
        lambda connection: set(
            connection.execute(
                select(agent_jobs.c.graph).where(agent_jobs.c.status.in_(health.UNFINISHED)).distinct()
            ).scalars()
        )
    )
    if names - known:
        yield Finding(
            "graphs",
            "warning",
            f"jobs wait for graphs that {config_path} does not name: {', '.join(sorted(names - known))}",
            "add them to the configuration, or run a worker that has them",
        )


def _graphs(config_path: Path) -> Iterator[Finding]:
    from everstep.graphs.loader import GraphCatalogue

    try:
        catalogue = GraphCatalogue.from_config(config_path)
    except EverstepError as error:
        yield Finding("graphs", "wrong", error.message, error.next_step)
        return
    for name in catalogue.names():
        report = catalogue.check(name)
        if report.error is not None:
            yield Finding("graph", "wrong", f"{name}: {report.error.message}", report.error.next_step)
            continue
        nodes = [node for node in report.nodes if not node.startswith("__")]
        yield Finding("graph", "ok", f"{name}: {report.kind} {report.source}, nodes {', '.join(nodes)}")
        yield from (Finding("graph", "warning", f"{name}: {warning}") for warning in report.warnings)


def _traces() -> Iterator[Finding]:
    from importlib.metadata import version

    from everstep.observability import destinations, metric_exports, tracing

    found = destinations.read()
    faults = [one for one in found.faults if not one.is_langfuse]
    yield from (Finding("traces", "wrong", fault.message, fault.next_step) for fault in faults)
    # what is at fault is told above; asked again, the log would tell it too
    enabled = bool(found.named_by)
    if enabled and not found.faults:
        enabled = tracing.from_environment(service_version=version("everstep")).is_enabled()
    if enabled:
        yield Finding("traces", "ok", f"on ({', '.join(found.named_by)})")
    elif not found.faults:
        yield Finding("traces", "ok", "off; set OTEL_EXPORTER_OTLP_ENDPOINT or the LANGFUSE_* keys to export")
    if fault := metric_exports.fault():
        yield Finding("metrics", "wrong", fault.message, fault.next_step)


def _langfuse() -> Iterator[Finding]:
    """Whether Langfuse takes the keys, asked through its SDK; and whether links to traces can be made."""
    from everstep.observability import langfuse, links

    given = os.environ.get(links.TEMPLATE_VARIABLE)
    if given and links.template() is None:
        advice = f"write {links.PLACE} where the trace's id belongs"
        yield Finding("traces", "wrong", f"{links.TEMPLATE_VARIABLE} has no place for the trace's id", advice)
    missing, settings = langfuse.missing(), langfuse.configured()
    if "LANGFUSE_PUBLIC_KEY" in missing and "LANGFUSE_SECRET_KEY" in missing:
        return
    if missing:
        yield Finding("langfuse", "wrong", "traces are not sent there", f"set {' and '.join(missing)} as well")
        return
    if settings is None and (fault := langfuse.fault()):
        yield Finding("langfuse", "wrong", fault.message, fault.next_step)
        return
    if settings is None:
        yield Finding("langfuse", "ok", "switched off by the environment")
        return
    try:
        project = langfuse.project(settings)
    except LangfuseUnusable as error:
        level = "warning" if "package" in error.ids else "wrong"  # spans are sent without the SDK
        yield Finding("langfuse", level, error.message, error.next_step)
    except EverstepError as error:
        yield Finding("langfuse", "warning", f"{error.message}; spans wait for it", error.next_step)
    else:
        yield Finding("langfuse", "ok", f"{langfuse.host(settings)} takes the keys: project {project.name}")
