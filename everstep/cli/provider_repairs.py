"""`everstep provider reconcile | link | poll | cancel`: what a person does about one paid task."""

from __future__ import annotations

import asyncio
import getpass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from everstep.cli.options import config_option, json_option, opened, parse_json, store_option
from everstep.cli.views import print_json, text
from everstep.errors import EX_FAILED, PayloadInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from everstep.checkpoints.provider_task import ProviderTask
    from everstep.checkpoints.store import Store
    from everstep.nodes.providers.registry import Providers


@click.command(name="reconcile")
@click.argument("task_id", metavar="TASK")
@click.option("--status", type=click.Choice(("succeeded", "failed")), required=True, help="How it ended.")
@click.option("--result", metavar="JSON", help="What came of it, if it succeeded; null: nothing.")
@click.option("--error", metavar="JSON|TEXT", help="Why it failed, if it did.")
@store_option
@json_option
def reconcile_task(
    task_id: str,
    status: Literal["succeeded", "failed"],
    result: str | None,
    error: str | None,
    store_url: str,
    as_json: bool,
) -> None:
    """Say how a task ended, in the provider's place; a failure refunds its charge, once.

    The first end of a task stands: what has ended is not ended otherwise.

    Such as: everstep provider reconcile 0198c2 --status failed --error '"gone at the provider"'
    """
    from everstep.checkpoints.provider_status import ProviderStatus
    from everstep.runtime import task_care

    if (result if status == "failed" else error) is not None:
        raise PayloadInvalid("--result belongs to succeeded, --error to failed", next_step="leave one of them out")
    if (result if status == "succeeded" else error) is None:
        missing, what = ("--result", "what came of it; null: nothing") if status == "succeeded" else ("--error", "why")
        raise PayloadInvalid(
            f"a task that {status} needs {missing}: its end stands for ever", next_step=f"say {what}: {missing} '…'"
        )
    given = None if result is None else parse_json(result, "--result")
    why = None if error is None else _error(error)
    with opened(store_url) as store:
        task = _find(store, task_id)
        said = ProviderStatus(status, result=given, error=why)
        repair = partial(task_care.repair, task=task, status=said, now=store.clock.now_ms(), by=me())
        found = store.write(repair).result()
    _tell(found.task, as_json, "" if found.changed else "; so it was before")


@click.command(name="link")
@click.argument("task_id", metavar="TASK")
@click.argument("provider_task_id", metavar="PROVIDER-ID")
@store_option
@json_option
def link_task(task_id: str, provider_task_id: str, store_url: str, as_json: bool) -> None:
    """Say that the provider took a task of which nobody knew, and under which id: you have looked there.

    It is observed from then on, and the job's question about it is answered. If the provider did not take it, reject
    that question instead: everstep review
    """
    from everstep.runtime import task_care

    with opened(store_url) as store:
        task = _find(store, task_id)
        link = partial(task_care.link, task=task, provider_task_id=provider_task_id, now=store.clock.now_ms(), by=me())
        _tell(store.write(link).result(), as_json, "")


@click.command(name="poll")
@click.argument("task_id", metavar="TASK")
@config_option
@store_option
@json_option
def poll_task(task_id: str, config_path: Path, store_url: str, as_json: bool) -> int:
    """Ask the provider now how a task is, whatever its time; exits 1 if it has failed."""
    from everstep.runtime import task_care

    return _asked(task_care.poll, task_id, config_path, store_url, as_json)


@click.command(name="cancel")
@click.argument("task_id", metavar="TASK")
@config_option
@store_option
@json_option
def cancel_task(task_id: str, config_path: Path, store_url: str, as_json: bool) -> int:
    """Ask the provider to end a task; it then is what the provider says, with its refund if that is failed."""
    from everstep.runtime import task_care

    with opened(store_url) as store:
        had_ended = _find(store, task_id).is_final
    _asked(task_care.cancel, task_id, config_path, store_url, as_json)
    if had_ended:
        click.echo("it had ended before: nothing was cancelled", err=True)
    return 0


def me() -> str:
    """Who does it, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _asked(
    ask: Callable[..., Coroutine[Any, Any, ProviderTask]],
    task_id: str,
    config_path: Path,
    store_url: str,
    as_json: bool,
) -> int:
    with opened(store_url) as store:
        task, providers = _find(store, task_id), _providers(config_path)
        after = asyncio.run(ask(store, providers, task, by=me()))
    _tell(after, as_json, "")
    return EX_FAILED if after.state == "failed" else 0


def _providers(config_path: Path) -> Providers:
    from everstep.graphs.loader import GraphCatalogue
    from everstep.graphs.policies import read_policies
    from everstep.graphs.provider_sections import providers_of

    catalogue = GraphCatalogue.from_config(config_path)
    catalogue.prepare()  # the configuration's `env` may hold the keys
    return providers_of(read_policies(config_path, catalogue.names()).providers, catalogue.folder)


def _find(store: Store, task_id: str) -> ProviderTask:
    from everstep.checkpoints import provider_task

    return store.read(partial(provider_task.find, public_id=task_id))


def _error(given: str) -> Any:
    """An error as it was given: JSON, or words."""
    try:
        return parse_json(given, "--error")
    except PayloadInvalid:
        return {"message": given}


def _tell(task: ProviderTask, as_json: bool, more: str) -> None:
    if as_json:
        print_json(task.view())
        return
    progress = f", {task.progress} %" if task.progress is not None and not task.is_final else ""
    click.echo(f"{task.public_id}  {task.state}{progress}{more}")
    for name, value in (("result", task.result), ("error", task.error)):
        if value is not None:
            click.echo(f"  {name}  {text(value, 1000)}")
