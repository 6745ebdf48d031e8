"""What is wrong, and what to do about it: environment, record, graphs, traces; `everstep doctor` and the server ask."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.errors import EverstepError, LangfuseUnusable
from everstep.runtime.advice import Finding, on_health

if TYPE_CHECKING:
    from everstep.checkpoints.admission import Limits
    from everstep.checkpoints.store import Store
    from everstep.graphs.loader import GraphCatalogue
    from everstep.graphs.policies import Policies

PACKAGES = ("everstep", "langgraph", "langgraph-checkpoint-sqlite", "langchain-core", "sqlalchemy", "opentelemetry-sdk")
QUICK_S = 5.0
NAMED = 5


def environment() -> Iterator[Finding]:
    """What Everstep runs on."""
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
            yield from inside(store, _limits(config_path), _names(config_path), seconds)
            yield from _policies(store, config_path)
    except EverstepError as error:
        yield Finding("record", "wrong", error.message, error.next_step)


def services(store: Store, policies: Policies) -> Iterator[Finding]:
    """Services of `everstep.toml` whose names are near to one that is needed, and not it."""
    from everstep.checkpoints import services as record

    known = [service.name for service in store.read(record.every)]
    for name, nearest in policies.mistaken_services(known).items():
        detail = f'everstep.toml: [services."{name}"] concerns nothing: no graph or job needs a service of this name'
        yield Finding("services", "warning", detail, f"did you mean {nearest}?")


def _policies(store: Store, config_path: Path) -> Iterator[Finding]:
    from everstep.graphs.policies import read_policies

    try:
        policies = read_policies(config_path, _names(config_path))
    except EverstepError as error:
        yield Finding("everstep.toml", "wrong", error.message, error.next_step)
        return
    yield from services(store, policies)


def providers(config_path: Path, only: str | None = None) -> Iterator[Finding]:
    """Whether all is there that providers of `everstep.toml` name; an `everstep.toml` that is none is told elsewhere.

    Args:
        config_path: The `langgraph.json` it stands beside.
        only: The name of the one to look at; all when None.
    """
    from everstep.graphs.loader import GraphCatalogue
    from everstep.graphs.policies import read_policies
    from everstep.graphs.provider_faults import faults, in_environment

    try:
        sections = read_policies(config_path).providers
        if sections:
            GraphCatalogue.from_config(config_path).prepare()
    except EverstepError:
        return
    for name, section in sections.items():
        if only not in (None, name):
            continue
        found = [
            Finding("provider", "wrong", f.message, f.next_step)
            for f in faults(name, section, config_path.absolute().parent)
        ]
        for told, wrong in in_environment(section):
            advice = "set it as the provider shows it" if wrong else "set it where workers and servers run"
            found.append(Finding("provider", "wrong" if wrong else "warning", f"{name}: {told}", advice))
        yield from found or [Finding("provider", "ok", f"{name}: {section.use}")]


def _limits(config_path: Path) -> Limits | None:
    from everstep.graphs.policies import read_policies

    try:
        return read_policies(config_path).limits()
    except EverstepError:  # a worker that is started with it says so
        return None


def inside(
    store: Store, limits: Limits | None, known: Collection[str] | None, seconds: float | None
) -> Iterator[Finding]:
    """What is found in a record that is open.

    Args:
        store: The record.
        limits: How many jobs may run at once, as far as that is known.
        known: The names of the graphs there are, as far as they are known.
        seconds: How long its soundness is looked at; None: without limit.
    """
    from sqlalchemy import select

    from everstep.checkpoints import health, migrate
    from everstep.checkpoints.job_statements import UNFINISHED
    from everstep.checkpoints.schema import agent_jobs

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
    found = health.examine(store, limits)
    yield Finding("record", "ok", f"{place.label}: {found.size / 1e6:.1f} MB, schema {migrate.HEAD}, {sound}")
    yield from on_health(found)
    yield from _credit(store)
    if known is None:
        return
    names = store.read(
        lambda connection: set(
            connection.execute(
                select(agent_jobs.c.graph).where(agent_jobs.c.status.in_(UNFINISHED)).distinct()
            ).scalars()
        )
    )
    if unknown := sorted(names.difference(known)):
        yield Finding(
            "graphs",
            "warning",
            f"jobs wait for graphs that the configuration does not name: {', '.join(unknown)}",
            "add them to the configuration, or run a worker that has them",
        )


def _credit(store: Store) -> Iterator[Finding]:
    """Whether every balance is the sum of its entries."""
    from everstep.checkpoints import ledger

    for wrong in store.read(ledger.mismatches)[:NAMED]:
        has, entries = f"{wrong.balance} {wrong.currency}", f"{wrong.entries}"
        detail = f"the balance of {wrong.owner} is {has} (smallest unit), and its entries come to {entries}"
        advice = f"somebody changed one of them by hand: everstep credits entries {wrong.owner}; or restore a backup"
        yield Finding("credit", "wrong", detail, advice)


def _names(config_path: Path) -> list[str] | None:
    from everstep.graphs.loader import GraphCatalogue

    try:
        return GraphCatalogue.from_config(config_path).names()
    except EverstepError:  # told by `graphs_of`
        return None


def graphs_of(config_path: Path) -> Iterator[Finding]:
    """Whether the graphs of a configuration can be loaded."""
    from everstep.graphs.loader import GraphCatalogue

    try:
        catalogue = GraphCatalogue.from_config(config_path)
    except EverstepError as error:
        yield Finding("graphs", "wrong", error.message, error.next_step)
        return
    yield from graphs(catalogue)


def graphs(catalogue: GraphCatalogue) -> Iterator[Finding]:
    """Whether graphs can be loaded."""
    for name in catalogue.names():
        report = catalogue.check(name)
        if report.error is not None:
            yield Finding("graph", "wrong", f"{name}: {report.error.message}", report.error.next_step)
            continue
        nodes = [node for node in report.nodes if not node.startswith("__")]
        yield Finding("graph", "ok", f"{name}: {report.kind} {report.source}, nodes {', '.join(nodes)}")
        yield from (Finding("graph", "warning", f"{name}: {warning}") for warning in report.warnings)


def traces() -> Iterator[Finding]:
    """Whether traces and metrics are sent, and where to."""
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


def langfuse() -> Iterator[Finding]:
    """Whether Langfuse takes the keys, asked through its SDK; and whether links to traces can be made."""
    from everstep.observability import langfuse as sdk
    from everstep.observability import links

    given = os.environ.get(links.TEMPLATE_VARIABLE)
    if given and links.template() is None:
        advice = f"write {links.PLACE} where the trace's id belongs"
        yield Finding("traces", "wrong", f"{links.TEMPLATE_VARIABLE} has no place for the trace's id", advice)
    missing, settings = sdk.missing(), sdk.configured()
    if "LANGFUSE_PUBLIC_KEY" in missing and "LANGFUSE_SECRET_KEY" in missing:
        return
    if missing:
        yield Finding("langfuse", "wrong", "traces are not sent there", f"set {' and '.join(missing)} as well")
        return
    if settings is None and (fault := sdk.fault()):
        yield Finding("langfuse", "wrong", fault.message, fault.next_step)
        return
    if settings is None:
        yield Finding("langfuse", "ok", "switched off by the environment")
        return
    try:
        project = sdk.project(settings)
    except LangfuseUnusable as error:
        level = "warning" if "package" in error.ids else "wrong"  # spans are sent without the SDK
        yield Finding("langfuse", level, error.message, error.next_step)
    except EverstepError as error:
        yield Finding("langfuse", "warning", f"{error.message}; spans wait for it", error.next_step)
    else:
        yield Finding("langfuse", "ok", f"{sdk.host(settings)} takes the keys: project {project.name}")
