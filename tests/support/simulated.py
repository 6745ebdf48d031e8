"""The simulated provider as jobs know it, and a graph that asks it for something."""

from __future__ import annotations

import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from everstep import crash as crash_points
from everstep.checkpoints import provider_tasks
from everstep.checkpoints.provider_task import ProviderTask
from everstep.checkpoints.store import Store
from everstep.graphs.provider_sections import ProviderSection, providers_of
from everstep.nodes.provider import observe_task, observe_task_sync, submit_task, submit_task_sync
from everstep.nodes.providers.registry import Providers
from everstep.runtime.worker import Worker
from tests.support.jobs import Log, chain
from tests.support.record import CONTEXT
from tests.support.waiting import PATIENCE

FOLDER = Path(__file__).parents[2] / "examples" / "provider_simulator"
API_KEY = "key-4711-of-the-provider"
"""That of a provider which wants one."""
Kind = Literal["idempotent", "findable", "neither"]


def simulated(url: str, kind: Kind = "findable", **settings: Any) -> Providers:
    """A provider `sim`, which is the simulated one: its keys are honoured, or it can be asked by them, or neither."""
    quick = {"timeout": 20.0, "settle": 0.0, "poll_first": 0.05}
    section = ProviderSection(
        use="http", file="provider.toml", base_url=url, idempotent=kind == "idempotent", **{**quick, **settings}
    )
    providers = providers_of({"sim": section}, FOLDER)
    provider = providers.get("sim")
    provider.findable = provider.findable and kind == "findable"
    return providers


def asking(plan: dict[str, Any] | None = None, *, key: str = "film", sync: bool = False, observe: bool = False) -> Any:
    """A graph of one node that submits a film, and of one that observes it."""
    request = {"prompt": "a film", "simulate": plan or {}}

    async def submit(state: Log) -> Log:
        return {"log": [await submit_task("sim", request, key=key)]}

    def submit_in_thread(state: Log) -> Log:
        return {"log": [submit_task_sync("sim", request, key=key)]}

    async def watch(state: Log) -> Log:
        return {"log": [await observe_task((state.get("log") or [])[0])]}

    def watch_in_thread(state: Log) -> Log:
        return {"log": [observe_task_sync((state.get("log") or [])[0]["id"])]}

    nodes = [submit_in_thread if sync else submit, *([watch_in_thread if sync else watch] if observe else [])]
    return chain(*nodes)


def task(store: Store) -> ProviderTask:
    """The one task of a record."""
    (found,) = store.read(provider_tasks.listed)
    return found


def _work(url: str, simulator: str, kind: Kind, crash_at: str | None) -> None:
    crash_points.arm(crash_at)
    with Store.open(url) as store:
        Worker(
            store,
            {"graph": asking()},
            providers=simulated(simulator, kind, timeout=2.0 if kind == "findable" else 60.0),
        ).run(until_idle=True)


def work_until_killed(url: str, simulator: str, kind: Kind, crash_at: str) -> bool:
    """Run a worker process until it is idle or killed at the point; whether it was killed."""
    process = CONTEXT.Process(target=_work, args=(url, simulator, kind, crash_at))
    process.start()
    try:
        process.join(PATIENCE)
        assert process.exitcode in (0, -signal.SIGKILL), f"the worker exited with {process.exitcode}"
        return process.exitcode == -signal.SIGKILL
    finally:
        with suppress(ValueError):
            process.kill()
