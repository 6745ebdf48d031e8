"""From whatever a graph's variable holds to a compiled graph: builders, workflows, and factories of every kind.

A factory is called once for each use of the graph. It may take nothing, the run's `config`, LangGraph's
`ServerRuntime`, or both; be sync or async; and return a graph, a builder, or a context manager of one, which stays open
as long as the graph is used. Sync factories run in a thread, so that a slow one stops no other job and may use
`asyncio.run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import typing
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any, Literal, cast, get_args, get_origin

from langchain_core.runnables import RunnableConfig
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

Graph = Pregel[Any, Any, Any, Any]
Purpose = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]
"""Why a graph is opened, in LangGraph's words: to run it, to change or read a thread's state, or to look at it."""


class NotAGraph(TypeError):
    """The variable holds, or the factory returned, something that is no graph."""


def kind_of(value: Any) -> str:
    """What a graph's variable holds: `graph`, `builder` or `factory`.

    Raises:
        NotAGraph: It is none of these.
    """
    if isinstance(value, Pregel):
        return "graph"
    if isinstance(value, StateGraph):
        return "builder"
    if callable(value):
        return "factory"
    raise NotAGraph(f"{_described(value)} is neither a graph, nor a builder, nor a function that makes one")


async def open_graph(
    value: Any, stack: AsyncExitStack, config: RunnableConfig, purpose: Purpose, items: BaseStore | None = None
) -> Graph:
    """Compile, call and enter until a compiled graph is there.

    Args:
        value: A graph, builder or factory.
        stack: Closes what a factory opened.
        config: What a factory that asks for `config` gets.
        purpose: What a factory that asks for `ServerRuntime` is told.
        items: The key-value store that it finds there; an empty one when omitted.

    Raises:
        NotAGraph: What came out is no graph, or the factory wants arguments nobody can give.
        Exception: Whatever the factory raised.
    """
    if kind_of(value) == "factory":
        value = await _call(value, config, purpose, items or InMemoryStore())
        value = await _enter(value, stack)
    if isinstance(value, StateGraph):
        return cast(StateGraph[Any, Any, Any, Any], value).compile()
    if not isinstance(value, Pregel):
        raise NotAGraph(f"the factory returned {_described(value)}, which is no graph")
    return cast(Graph, value)


async def _call(factory: Callable[..., Any], config: RunnableConfig, purpose: Purpose, items: BaseStore) -> Any:
    arguments, named = _arguments(factory, config, purpose, items)
    if inspect.iscoroutinefunction(factory) or inspect.iscoroutinefunction(type(factory).__call__):
        return await factory(*arguments, **named)
    result = await asyncio.to_thread(factory, *arguments, **named)
    return await result if inspect.isawaitable(result) else result


async def _enter(value: Any, stack: AsyncExitStack) -> Any:
    if inspect.isasyncgen(value):
        generator = cast(AsyncGenerator[Any], value)
        return await stack.enter_async_context(contextlib.asynccontextmanager(lambda: generator)())
    if inspect.isgenerator(value):
        steps = cast(Generator[Any], value)
        value = contextlib.contextmanager(lambda: steps)()
    if isinstance(value, AbstractAsyncContextManager):
        return await stack.enter_async_context(cast(AbstractAsyncContextManager[Any], value))
    if isinstance(value, AbstractContextManager):
        manager = cast(AbstractContextManager[Any], value)
        entered = await asyncio.to_thread(manager.__enter__)
        stack.push_async_exit(functools.partial(asyncio.to_thread, manager.__exit__))
        return entered
    return value


def _arguments(
    factory: Callable[..., Any], config: RunnableConfig, purpose: Purpose, items: BaseStore
) -> tuple[list[Any], dict[str, Any]]:
    """What the factory's parameters ask for; parameters with a default that ask for neither are left alone."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:
        return positional, named
    annotations = _annotations(factory)
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        annotation = annotations.get(parameter.name, parameter.annotation)
        if _wants_runtime(parameter.name, annotation):
            argument: Any = _server_runtime(purpose, items)
        elif _wants_config(parameter.name, annotation):
            argument = config
        elif parameter.default is not parameter.empty:
            continue
        else:
            asks = f"the factory's parameter {parameter.name!r}"
            raise NotAGraph(f"{asks} is neither a config nor a ServerRuntime, and has no default")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(argument)
        else:
            named[parameter.name] = argument
    return positional, named


def _annotations(factory: Callable[..., Any]) -> dict[str, Any]:
    for place in (factory, type(factory).__call__, getattr(factory, "func", None)):
        with contextlib.suppress(Exception):
            if hints := typing.get_type_hints(place):
                return hints
    return {}


def _wants_runtime(name: str, annotation: Any) -> bool:
    if annotation is inspect.Parameter.empty:
        return name == "runtime"
    if isinstance(annotation, str):
        return "ServerRuntime" in annotation or "_ExecutionRuntime" in annotation
    runtime = _runtime_types()
    options = {annotation, get_origin(annotation), *get_args(annotation), *map(get_origin, get_args(annotation))}
    return bool(options & runtime)


def _wants_config(name: str, annotation: Any) -> bool:
    if annotation is inspect.Parameter.empty:
        return True
    if isinstance(annotation, str):
        return name == "config" or "RunnableConfig" in annotation
    kinds = {annotation, get_origin(annotation), *get_args(annotation), *map(get_origin, get_args(annotation))}
    return name == "config" or bool(kinds & {RunnableConfig, dict, Mapping, Any})


def _runtime_types() -> set[Any]:
    from langgraph_sdk import runtime

    return {
        runtime.ServerRuntime,
        runtime._ExecutionRuntime,  # pyright: ignore[reportPrivateUsage]
        runtime._ReadRuntime,  # pyright: ignore[reportPrivateUsage]
    }


def _server_runtime(purpose: Purpose, items: BaseStore) -> Any:
    """LangGraph's description of the call. Its classes are private; factories name the alias `ServerRuntime`."""
    from langgraph_sdk import runtime

    kind: Any = runtime._ExecutionRuntime if purpose == "threads.create_run" else runtime._ReadRuntime  # pyright: ignore[reportPrivateUsage]
    return kind(access_context=purpose, store=items)


def _described(value: Any) -> str:
    return f"an object of type {type(value).__module__}.{type(value).__qualname__}"
