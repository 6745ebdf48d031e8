"""`everstep up` and `everstep server`: the HTTP interface, with or without what runs beside it."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from everstep.cli.address import LOOPBACK
from everstep.cli.json_lines import JsonLines
from everstep.cli.options import config_option, json_option, log_options, opened, store_option
from everstep.cli.worker import finite, prepared, running_options, warn_of_names
from everstep.cli.worker_lines import WorkerLines
from everstep.errors import WorkerEnded

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from everstep.graphs.loader import GraphCatalogue
    from everstep.server.context import Settings

logger = logging.getLogger("everstep.server")

DEFAULT_PORT = 2024
STUDIO = "https://smith.langchain.com"


def serve_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What both commands take."""
    options = (
        click.option("--host", default=LOOPBACK, show_default=True, help="Where to listen."),
        click.option(
            "--port", type=click.IntRange(0, 65535), default=DEFAULT_PORT, show_default=True, help="0: a free one."
        ),
        click.option(
            "--cors",
            "origins",
            multiple=True,
            metavar="ORIGIN",
            help="Let web pages of this origin call it, such as https://app.example.com; more than once for several.",
        ),
        click.option(
            "--wait",
            "wait_s",
            type=click.FloatRange(min=0.1, max=3600),
            callback=finite,
            default=30.0,
            show_default=True,
            help="Seconds a request waits for a job's end before it is told where to ask.",
        ),
        click.option(
            "--max-body",
            type=click.IntRange(1024),
            default=8 * 1024 * 1024,
            show_default=True,
            help="The largest body that is read, bytes.",
        ),
    )
    for option in reversed((*options, config_option, store_option, log_options, json_option)):
        command = option(command)
    return command


@click.command()
@running_options
@click.option("--no-worker", is_flag=True, help="Run no jobs here: workers do so elsewhere.")
@click.option("--no-schedules", is_flag=True, help="Fire no schedules here.")
@click.option("--no-triggers", is_flag=True, help="Watch no folders and send no webhooks here.")
@serve_options
def up(
    concurrency: int,
    lease: float,
    isolate: bool | None,
    metrics_at: tuple[str, int] | None,
    no_worker: bool,
    no_schedules: bool,
    no_triggers: bool,
    **shared: Any,
) -> None:
    """Serve LangGraph's API and Everstep's, and run the jobs, schedules and triggers, all in one process.

    On this machine alone nobody has to say who they are until a key is made; elsewhere it takes a key, or an auth hook
    in langgraph.json. SIGTERM and Ctrl-C stop it in good order, a second one at once: no job is lost either way.

    For other machines: everstep keys create NAME, then everstep up --host 0.0.0.0
    """
    worker = None if no_worker else {"concurrency": concurrency, "lease": lease, "isolate": isolate}
    without = {"schedules": no_schedules, "triggers": no_triggers}
    _serve(worker, frozenset(name for name, is_out in without.items() if is_out), metrics_at, **shared)


@click.command()
@serve_options
def server(**shared: Any) -> None:
    """Serve LangGraph's API and Everstep's; jobs run where everstep worker runs, on the same record.

    Such as: everstep server --store postgresql://everstep@db/everstep --host 0.0.0.0
    """
    _serve(None, None, None, **shared)


def _serve(
    worker_options: dict[str, Any] | None,
    without: frozenset[str] | None,
    metrics_at: tuple[str, int] | None,
    *,
    host: str,
    port: int,
    origins: tuple[str, ...],
    wait_s: float,
    max_body: int,
    config_path: Path,
    store_url: str,
    log_format: str | None,
    log_level: str | None,
    as_json: bool,
) -> None:
    """Serve until a signal; `worker_options` None: without a worker, `without` None: without any part."""
    from everstep.checkpoints import database
    from everstep.graphs.http_configuration import read_http
    from everstep.runtime import measuring
    from everstep.runtime.identity import worker_id
    from everstep.runtime.observation import Observation
    from everstep.runtime.worker import Worker
    from everstep.server import exposure, parts
    from everstep.server.app import create_app
    from everstep.server.context import Settings
    from everstep.server.serving import Serving, is_loopback, listen

    catalogue, policies, log_as = prepared(config_path, log_format, log_level)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    _warn_of_missing_files(catalogue)
    http = read_http(catalogue.configuration.content if catalogue.configuration else {})
    output = sys.stdout
    with ExitStack() as stack:
        store = stack.enter_context(opened(store_url, create=True))
        json_lines = stack.enter_context(JsonLines(output)) if as_json else None
        stack.enter_context(redirect_stdout(sys.stderr if as_json else output))
        store.write(database.require_writable).result()  # what is an outage later is a mistake now
        warn_of_names(store, policies)
        listening = stack.enter_context(listen(host, port))
        settings = Settings(wait_s=wait_s, most_body_bytes=max_body)
        local = is_loopback(listening)
        settings = exposure.bounded(settings, store, http, host=host, is_local=local, origins=origins)
        measures = measuring.begin(store, serve=metrics_at)
        app = create_app(store, catalogue, policies=policies, settings=settings, measures=measures)
        running: list[tuple[str, parts.Part]] = []
        worker: Worker | None = None
        thread: parts.WorkerThread | None = None
        if without is not None:
            if worker_options is not None:
                lines = WorkerLines(store, json_lines, log_as)
                worker = Worker(
                    store, catalogue, listener=lines, policies=policies, measures=measures, **worker_options
                )
                lines.worker = worker.id
                thread = parts.WorkerThread(worker, lambda: serving.end())
                running.append(("worker", thread))
            actor = worker.id if worker else worker_id()
            running += parts.beside(store, policies, config_path, measures, actor=actor, without=without)
        if worker is None:  # which does both otherwise
            stack.callback(measures.close)
            if app.state.served.providers.names:
                running.append(("providers", Observation(store, app.state.served.providers, measures=measures)))
        serving = Serving(app, listening, [part for _, part in running])
        url = _url(listening) + http.mount_prefix
        about: dict[str, Any] = {"url": url, "store": store.database.label, "graphs": catalogue.names()}
        about |= {"parts": ["http", *(name for name, _ in running)], "pid": os.getpid()}
        serving.run(lambda: _greet(about, settings, json_lines, log_as))
        if thread is not None and thread.failure is not None:
            _raise_end_of_worker(thread.failure)
    if worker is not None and worker.node_threads is not None and worker.node_threads.busy:
        click.echo("a node of a job that was cancelled or taken over is still in its thread; it ends here", err=True)
        sys.stdout.flush()
        os._exit(0)  # Python would wait for it


def _warn_of_missing_files(catalogue: GraphCatalogue) -> None:
    """Graphs are loaded when they are needed first; that one's file is not there can be told now."""
    for entry in catalogue.configuration.graphs.values() if catalogue.configuration else ():
        if entry.target.file is not None and not entry.target.file.is_file():
            logger.warning(
                "graph %s: there is no file %s, so its jobs wait for a person; next: everstep doctor",
                entry.name,
                entry.target.file,
            )


def _raise_end_of_worker(failure: BaseException) -> NoReturn:
    if isinstance(failure, SystemExit):
        raise WorkerEnded(
            f"a node ended this process: it called sys.exit({failure.code!r})",
            next_step="raise an error instead; the next worker goes on, and a job that ends every worker fails",
        ) from failure
    raise failure


def _url(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(host, str(host))
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _greet(about: dict[str, Any], settings: Settings, json_lines: JsonLines | None, log_as: str) -> None:
    """Tell that requests are answered now."""
    if json_lines is not None:
        json_lines.say({"event": "ready", **about})
        return
    url = about["url"]
    where = f"{url} serves {', '.join(about['graphs'])} from {about['store']}: {', '.join(about['parts'])}"
    if log_as == "json":
        logger.info("%s", where)
        return
    studio = f"{STUDIO}/studio/?baseUrl={url}"
    allowed = settings.cors is not None and settings.cors.allows(STUDIO)
    click.echo(f"{click.style('Everstep', bold=True)} {where}", err=True)
    click.echo(f"  LangGraph API  get_client(url={url!r}), and {url}/docs", err=True)
    click.echo(f"  Agent Chat UI  deployment URL {url}, graph {about['graphs'][0]}", err=True)
    click.echo(f"  Studio         {studio}" + ("" if allowed else f" (start with --cors {STUDIO})"), err=True)
