"""The user's graphs by name: from `langgraph.json` or given as objects, opened one at a time with our checkpointer.

Nothing is imported before a graph is opened, so that enqueuing a job needs no more than the name.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from dotenv import dotenv_values
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from everstep.checkpoints.fence import Fence
from everstep.checkpoints.items import ItemTables, OwnedItems
from everstep.checkpoints.store import Store
from everstep.errors import EverstepError, GraphLoadFailed, GraphNotFound
from everstep.graphs.configuration import Configuration, read_configuration, require_name
from everstep.graphs.fingerprint import Fingerprint, fingerprint
from everstep.graphs.importing import import_graph, load_failed
from everstep.graphs.item_tables import open_tables
from everstep.graphs.opening import Graph, Purpose, kind_of, open_graph
from everstep.graphs.storage import Storage, read_storage

logger = logging.getLogger(__name__)

__all__ = ["GraphCatalogue", "GraphDescription", "GraphReport"]


@dataclass(frozen=True)
class GraphDescription:
    """What is known of a graph without importing it.

    Attributes:
        name: Its name.
        source: `./file.py:variable`, `package.module:variable`, or `given` for an object.
        description: The configuration's words about it.
    """

    name: str
    source: str
    description: str = ""


@dataclass(frozen=True)
class GraphReport:
    """What opening a graph showed.

    Attributes:
        name: Its name.
        source: As in `GraphDescription`.
        ok: Whether it opened.
        kind: `graph`, `builder` or `factory`; empty when it did not load.
        nodes: Names of its nodes.
        fingerprint: Digest of its shape; empty when it did not open.
        warnings: What works otherwise than the author may expect.
        error: Why it did not open.
    """

    name: str
    source: str
    ok: bool
    kind: str = ""
    nodes: tuple[str, ...] = ()
    fingerprint: str = ""
    warnings: tuple[str, ...] = ()
    error: EverstepError | None = None


class GraphCatalogue:
    """The graphs a program can run, by name. Make it with `from_config` or `from_graphs`.

    Attributes:
        configuration: The file it came from, if any.
    """

    def __init__(self, configuration: Configuration | None, given: dict[str, Any]) -> None:
        self.configuration = configuration
        self._given = given
        self._loaded: dict[str, Any] = {}
        self._compiled: dict[str, Graph] = {}
        self._fingerprints: dict[str, Fingerprint] = {}
        self._warned: set[tuple[str, str]] = set()
        self._tables: WeakKeyDictionary[Store, ItemTables] = WeakKeyDictionary()
        self._prepared = False
        self._lock = Lock()

    @classmethod
    def from_config(cls, path: str | Path) -> GraphCatalogue:
        """The graphs of a `langgraph.json`; reads the file, imports nothing.

        Raises:
            ConfigInvalid: See `read_configuration`.
        """
        return cls(read_configuration(path), {})

    @classmethod
    def from_graphs(cls, graphs: dict[str, Any]) -> GraphCatalogue:
        """Graphs given as objects: compiled graphs, builders, workflows or factories, by name."""
        return cls(None, dict(graphs))

    @property
    def folder(self) -> Path:
        """The folder of the file it came from, where paths in `everstep.toml` start; else the current one."""
        return self.configuration.folder if self.configuration is not None else Path.cwd()

    @cached_property
    def storage(self) -> Storage:
        """What the configuration says about what is kept.

        Raises:
            ConfigInvalid: An entry is not what the format allows.
        """
        return read_storage(self.configuration.content if self.configuration else {})

    def items_of(self, store: Store, owner: str, fence: Fence | None = None) -> OwnedItems:
        """The key-value store of an owner in a record, as the configuration has it.

        Args:
            store: The record, which closes it.
            owner: Whose items.
            fence: The claim to write under, for a run.

        Raises:
            ConfigInvalid: Items are to be found by meaning, and that is not possible here.
        """
        with self._lock:
            tables = self._tables.get(store)
            if tables is None:
                tables = self._tables[store] = open_tables(store, self.storage, self.configuration)
                store.closing.callback(tables.close)
        return OwnedItems(store, tables, owner, fence)

    def names(self) -> list[str]:
        """The names, in the order they were given."""
        return list(self.configuration.graphs if self.configuration else self._given)

    def exists(self, name: str) -> bool:
        """Whether there is a graph of this name; does not import it."""
        return name in (self.configuration.graphs if self.configuration else self._given)

    def require(self, name: str) -> None:
        """Refuse a name that is not there.

        Raises:
            GraphNotFound: Lists the names there are and the closest ones.
        """
        require_name(name, self.names(), self.configuration.path if self.configuration else None)

    def describe(self, name: str) -> GraphDescription:
        """What is known of a graph without importing it.

        Raises:
            GraphNotFound: There is none of this name.
        """
        self.require(name)
        if self.configuration is None:
            return GraphDescription(name, "given")
        entry = self.configuration.graphs[name]
        return GraphDescription(name, str(entry.target), entry.description)

    def prepare(self) -> None:
        """Make the process ready for the graphs' code: folders to import from, and environment variables.

        Variables that are set stay as they are. Done once, and by `open`; a program that reads the environment before
        it opens a graph (for the exporters of traces, say) calls it first.
        """
        with self._lock:
            if self._prepared or self.configuration is None:
                return
            for folder in reversed(self.configuration.import_folders):
                if str(folder) not in sys.path:
                    sys.path.insert(0, str(folder))
            file = self.configuration.environment_file
            if file and not file.is_file():
                logger.warning("%s: the env file %s does not exist", self.configuration.path, file)
            variables = dotenv_values(file) if file else self.configuration.environment
            for variable, value in variables.items():
                if value is not None:
                    os.environ.setdefault(variable, value)
            self._prepared = True

    @asynccontextmanager
    async def open(
        self,
        name: str,
        config: RunnableConfig | None = None,
        *,
        checkpointer: BaseCheckpointSaver[Any] | None = None,
        items: BaseStore | None = None,
        purpose: Purpose = "threads.create_run",
    ) -> AsyncGenerator[Graph]:
        """A compiled graph that writes to our checkpointer, for the time of one run.

        A checkpointer or store that the graph was compiled with is replaced, with a warning once a graph, so that the
        same file works by itself and here. What the block raises is raised, whatever the graph's own context manager
        would swallow.

        Args:
            name: The graph's name.
            config: The run's config, for factories that take one.
            checkpointer: Where its steps go; None to only look at the graph.
            items: Its key-value store; see `items_of`. None: the one it brings, if any.
            purpose: Told to factories that take a `ServerRuntime`.

        Raises:
            GraphNotFound: There is none of this name.
            GraphLoadFailed: Its module could not be imported, its factory raised, or it is no graph.
        """
        raised: BaseException | None = None
        async with AsyncExitStack() as stack:
            graph = await self._open(name, stack, config or {}, purpose, items)
            if isinstance(graph.checkpointer, BaseCheckpointSaver):
                self._warn_once(name, _OWN_CHECKPOINTER)
            if graph.store is not None and items is not None:
                self._warn_once(name, _OWN_STORE)
            try:
                ours = copy.copy(graph)  # not its own `copy`, which looks through all of it anew
                ours.checkpointer = checkpointer
                ours.store = graph.store if items is None else items
                yield ours
            except BaseException as error:
                raised = error
                raise
        if raised is not None:
            raise raised

    def fingerprint(self, name: str, graph: Graph) -> Fingerprint:
        """The fingerprint of a graph that is open; of one that is not made anew for each run it is taken once.

        Args:
            name: The graph's name.
            graph: What `open` gave.
        """
        compiled = self._compiled.get(name)
        if compiled is None or compiled.nodes is not graph.nodes:
            return fingerprint(graph)
        if name not in self._fingerprints:
            self._fingerprints[name] = fingerprint(graph)
        return self._fingerprints[name]

    def check(self, name: str) -> GraphReport:
        """Open a graph as far as one can without running it, and tell what was found. Not for use inside an event loop.

        Args:
            name: The graph's name; an unknown one is reported, not raised.
        """
        return asyncio.run(self._check(name))

    async def _check(self, name: str) -> GraphReport:
        try:
            source = self.describe(name).source
        except GraphNotFound as error:
            return GraphReport(name, "", ok=False, error=error)
        kind = ""
        try:
            kind = kind_of(await self._load(name))
            async with AsyncExitStack() as stack:
                graph = await self._open(name, stack, {}, "assistants.read")
                return GraphReport(
                    name,
                    source,
                    ok=True,
                    kind=kind,
                    nodes=tuple(node for node in graph.nodes if node != "__start__"),
                    fingerprint=fingerprint(graph).digest,
                    warnings=(_OWN_CHECKPOINTER,) if isinstance(graph.checkpointer, BaseCheckpointSaver) else (),
                )
        except GraphLoadFailed as error:
            return GraphReport(name, source, ok=False, kind=kind, error=error)
        except Exception as error:
            return GraphReport(name, source, ok=False, kind=kind, error=load_failed(name, source, error))

    async def _open(
        self,
        name: str,
        stack: AsyncExitStack,
        config: RunnableConfig,
        purpose: Purpose,
        items: BaseStore | None = None,
    ) -> Graph:
        value = self._compiled.get(name) or await self._load(name)
        try:
            graph = await open_graph(value, stack, config, purpose, items)
        except (Exception, SystemExit) as error:
            raise load_failed(name, self.describe(name).source, error) from error
        if kind_of(value) != "factory":  # which may make another one each time
            self._compiled[name] = graph
        return graph

    async def _load(self, name: str) -> Any:
        self.require(name)
        if self.configuration is None:
            return self._given[name]
        if name not in self._loaded:
            self.prepare()
            entry = self.configuration.graphs[name]
            self._loaded[name] = await asyncio.to_thread(import_graph, entry, self.configuration.folder)
        return self._loaded[name]

    def _warn_once(self, name: str, what: str) -> None:
        if (name, what) not in self._warned:
            self._warned.add((name, what))
            logger.warning("graph %r: %s", name, what)


_OWN_STORE = "it brings its own store, which is not used here: items go to Everstep's record"
_OWN_CHECKPOINTER = "it brings its own checkpointer, which is not used here: steps go to Everstep's record"
