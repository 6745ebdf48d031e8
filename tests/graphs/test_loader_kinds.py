"""Every kind of object a configuration may name: graphs, builders, factories and context managers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph_sdk.runtime import ServerRuntime

from everstep.graphs import loader
from everstep.graphs.fingerprint import fingerprint
from everstep.graphs.loader import GraphCatalogue
from tests.support.loaded import GRAPH, State, catalogue_of, one_step, steps_of

pytestmark = pytest.mark.usefixtures("untouched_process")


@entrypoint()
def workflow(state: State) -> dict[str, list[str]]:
    """A graph by LangGraph's functional interface."""
    return {"steps": ["work"]}


def _zero() -> Any:
    return one_step().compile()


def _returns_builder() -> Any:
    return one_step()


def _with_config(config: RunnableConfig) -> Any:
    return one_step(config.get("configurable", {}).get("step", "none"))


def _with_bare_parameter(settings) -> Any:
    return one_step(settings["configurable"]["step"])


def _with_dict(config: dict) -> Any:
    return one_step(config["configurable"]["step"])


def _with_runtime(runtime: ServerRuntime) -> Any:
    assert runtime.execution_runtime is not None
    return one_step(runtime.access_context)


def _with_typed_runtime(runtime: ServerRuntime[State], *, config: RunnableConfig) -> Any:
    return one_step(runtime.access_context + config["configurable"]["step"])


def _with_both(config: RunnableConfig, server: ServerRuntime) -> Any:
    return one_step(server.access_context + config["configurable"]["step"])


def _with_default(model: str = "default") -> Any:
    return one_step(model)


def _with_anything(*args: Any, **kwargs: Any) -> Any:
    return one_step(f"{args}{kwargs}")


async def _async() -> Any:
    await asyncio.sleep(0)
    return one_step()


async def _async_with_config(config: RunnableConfig, /) -> Any:
    return one_step(config["configurable"]["step"])


def _runs_a_loop() -> Any:
    return asyncio.run(_async())


@contextlib.contextmanager
def _context_manager(config: RunnableConfig) -> Iterator[Any]:
    yield one_step(config["configurable"]["step"])


@contextlib.asynccontextmanager
async def _async_context_manager(runtime: ServerRuntime) -> Any:
    yield one_step(runtime.access_context).compile()


def _generator() -> Iterator[Any]:
    yield one_step()


async def _async_generator() -> Any:
    yield one_step()


class _Factory:
    def __call__(self, config: RunnableConfig) -> Any:
        return one_step(config["configurable"]["step"])


class _AsyncFactory:
    async def __call__(self) -> Any:
        return one_step()


@pytest.mark.parametrize(
    ("value", "step"),
    [
        (one_step(), "work"),
        (one_step().compile(), "work"),
        (one_step().compile(checkpointer=False), "work"),
        (one_step().compile(checkpointer=True), "work"),
        (one_step().compile().with_config(tags=["x"]), "work"),
        (workflow, "work"),
        (_zero, "work"),
        (lambda: workflow, "work"),
        (_returns_builder, "work"),
        (_with_config, "given"),
        (_with_bare_parameter, "given"),
        (_with_dict, "given"),
        (_with_runtime, "threads.create_run"),
        (_with_typed_runtime, "threads.create_rungiven"),
        (_with_both, "threads.create_rungiven"),
        (_with_default, "default"),
        (_with_anything, "(){}"),
        (_async, "work"),
        (_async_with_config, "given"),
        (_runs_a_loop, "work"),
        (_context_manager, "given"),
        (_async_context_manager, "threads.create_run"),
        (_generator, "work"),
        (_async_generator, "work"),
        (_Factory(), "given"),
        (_AsyncFactory(), "work"),
        (functools.partial(_with_default, model="partial"), "partial"),
        (functools.partial(_async), "work"),
    ],
)
def test_every_kind_of_graph_runs(value: Any, step: str) -> None:
    """Graphs, builders, workflows and factories of every kind end as a graph that writes to our checkpointer."""
    catalogue = GraphCatalogue.from_graphs({"agent": value})
    assert catalogue.describe("agent").source == "given"
    assert steps_of(catalogue, "agent", {"configurable": {"step": "given"}}) == [step]


def test_annotations_may_be_text_that_cannot_be_resolved(tmp_path: Path) -> None:
    """Factories with postponed annotations, imported only for type checkers, get what they name."""
    factory = """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from langchain_core.runnables import RunnableConfig
            from langgraph_sdk.runtime import ServerRuntime
        from library import builder

        def make(server: ServerRuntime, settings: RunnableConfig):
            assert server.access_context and "configurable" in settings
            return builder
    """
    catalogue = catalogue_of(tmp_path, {"agent": "./agent.py:make"}, {"agent.py": factory, "library.py": GRAPH})
    assert steps_of(catalogue, "agent", {"configurable": {}}) == ["library"]


def test_a_context_manager_is_open_as_long_as_the_graph_is_used() -> None:
    """What a factory opened is closed after the run, also when the run fails, and told of the failure."""
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def asynchronous() -> Any:
        seen.append("open")
        try:
            yield one_step()
        except ValueError:
            seen.append("told")
            raise
        finally:
            seen.append("closed")

    @contextlib.contextmanager
    def synchronous() -> Any:
        seen.append("open")
        try:
            yield one_step()
        except ValueError:
            seen.append("told")
            raise
        finally:
            seen.append("closed")

    async def use(name: str, fail: bool) -> None:
        async with catalogue.open(name):
            seen.append("used")
            if fail:
                raise ValueError

    catalogue = GraphCatalogue.from_graphs({"async": asynchronous, "sync": synchronous})
    for name in catalogue.names():
        asyncio.run(use(name, fail=False))
        assert seen == ["open", "used", "closed"]
        seen.clear()
        with pytest.raises(ValueError):
            asyncio.run(use(name, fail=True))
        assert seen == ["open", "used", "told", "closed"]
        seen.clear()


def test_no_context_manager_swallows_what_a_run_raised() -> None:
    """A factory that suppresses every exception cannot make a failed run look like a finished one."""

    @contextlib.asynccontextmanager
    async def swallowing() -> Any:
        with contextlib.suppress(BaseException):
            yield one_step()

    async def use() -> None:
        async with GraphCatalogue.from_graphs({"agent": swallowing}).open("agent"):
            raise LookupError("the claim was lost")

    with pytest.raises(LookupError):
        asyncio.run(use())


def test_an_own_checkpointer_is_replaced_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A graph compiled with a saver runs on ours; its own gets nothing, and the log says so once."""
    own = InMemorySaver()
    catalogue = GraphCatalogue.from_graphs({"agent": one_step().compile(checkpointer=own)})
    with caplog.at_level(logging.WARNING):
        steps_of(catalogue, "agent")
        steps_of(catalogue, "agent")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "its own checkpointer" in caplog.text
    assert not own.storage


@pytest.mark.parametrize("kind", ["graph", "builder", "factory"])
def test_what_is_no_factory_is_compiled_and_fingerprinted_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that overlap have a graph of their own, with their own checkpointer; compiling it again is for factories."""
    taken: list[Any] = []
    monkeypatch.setattr(loader, "fingerprint", lambda graph: taken.append(graph) or fingerprint(graph))
    built = one_step()
    value = {"graph": built.compile(), "builder": built, "factory": lambda: built}[kind]
    catalogue = GraphCatalogue.from_graphs({"agent": value})
    savers = InMemorySaver(), InMemorySaver()

    async def overlapping() -> None:
        async with (
            catalogue.open("agent", checkpointer=savers[0]) as first,
            catalogue.open("agent", checkpointer=savers[1]) as second,
        ):
            assert (first.checkpointer, second.checkpointer) == savers
            assert catalogue.fingerprint("agent", first) == catalogue.fingerprint("agent", second) == fingerprint(first)
            stopping = first.copy(update={"interrupt_before_nodes": ["work"]})
            assert catalogue.fingerprint("agent", stopping) == fingerprint(stopping) != fingerprint(first)
            assert (first.nodes is second.nodes) == (kind != "factory")

    asyncio.run(overlapping())
    assert len(taken) == (3 if kind == "factory" else 2)


def test_factories_are_told_why_they_are_called() -> None:
    """Looking at a graph is not running it: a `ServerRuntime` tells which."""

    def factory(runtime: ServerRuntime) -> Any:
        return one_step().compile(name=f"{runtime.access_context} {runtime.execution_runtime is None}")

    async def name() -> str:
        async with GraphCatalogue.from_graphs({"agent": factory}).open("agent", purpose="threads.read") as graph:
            return graph.get_name()

    assert asyncio.run(name()) == "threads.read True"
