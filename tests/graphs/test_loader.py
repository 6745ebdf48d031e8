"""Loading the user's graphs: real files, real imports, every kind of object a configuration may name."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import operator
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph_sdk.runtime import ServerRuntime

from everstep.errors import ConfigInvalid, GraphLoadFailed, GraphNotFound
from everstep.graphs import loader
from everstep.graphs.fingerprint import fingerprint
from everstep.graphs.loader import GraphCatalogue

GRAPH = """
    import operator
    from typing import Annotated, TypedDict
    from langgraph.graph import START, StateGraph

    class State(TypedDict):
        steps: Annotated[list[str], operator.add]

    builder = StateGraph(State)
    builder.add_node("work", lambda state: {"steps": [__name__]})
    builder.add_edge(START, "work")
    graph = builder.compile()
"""


class State(TypedDict):
    steps: Annotated[list[str], operator.add]


def _builder(step: str = "work") -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(State)
    builder.add_node("work", lambda state: {"steps": [step]})
    return builder.add_edge(START, "work")


@pytest.fixture(autouse=True)
def untouched_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Gives the process back its import folders, modules and environment."""
    folders, modules, environment = list(sys.path), set(sys.modules), dict(os.environ)
    yield
    sys.path[:] = folders
    for name in set(sys.modules) - modules:
        if name.startswith(("everstep_graph__", "shop", "agent", "library")):
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))


def _project(folder: Path, graphs: dict[str, Any], files: dict[str, str], **fields: Any) -> GraphCatalogue:
    _write(folder, {**files, "langgraph.json": json.dumps({"graphs": graphs, **fields})})
    return GraphCatalogue.from_config(folder / "langgraph.json")


def _run(catalogue: GraphCatalogue, name: str, config: RunnableConfig | None = None) -> list[str]:
    """The steps of one run of a graph, through our own saver."""

    async def run() -> list[str]:
        saver = InMemorySaver()
        async with catalogue.open(name, config, checkpointer=saver) as graph:
            assert graph.checkpointer is saver
            thread: RunnableConfig = {"configurable": {"thread_id": "1"}}
            result = await graph.ainvoke({"steps": []}, thread, durability="sync")
            assert saver.get_tuple(thread) is not None
        return result["steps"]

    return asyncio.run(run())


def _failure(catalogue: GraphCatalogue, name: str = "agent") -> GraphLoadFailed:
    with pytest.raises(GraphLoadFailed) as caught:
        _run(catalogue, name)
    return caught.value


# ---- where graphs come from ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [
        "./src/agent.py:graph",
        "src/agent.py:graph",
        "./src/../src/agent.py:builder",
        "library.agents:graph",
        "./src/agent.py:Holder.graph",
        {"path": "./src/agent.py:graph", "description": "does the work"},
    ],
)
def test_a_graph_is_found_by_file_or_module(target: Any, tmp_path: Path) -> None:
    """A file below the configuration, a module, an attribute and the long form all lead to the graph."""
    holder = "\nclass Holder:\n    graph = graph\n"
    files = {"src/agent.py": dedent(GRAPH) + holder, "library/__init__.py": "", "library/agents.py": GRAPH}
    assert len(_run(_project(tmp_path, {"agent": target}, files), "agent")) == 1


def test_nothing_is_imported_before_a_graph_is_opened(tmp_path: Path) -> None:
    """Names, existence and description come from the file alone, even if the code is broken or absent."""
    graphs = {"agent": {"path": "./agent.py:graph", "description": "does it"}, "gone": "./gone.py:graph"}
    catalogue = _project(tmp_path, graphs, {"agent.py": "raise SystemError('imported')"})
    assert catalogue.names() == ["agent", "gone"]
    assert catalogue.exists("gone")
    assert not catalogue.exists("other")
    described = catalogue.describe("agent")
    assert (described.name, described.source, described.description) == ("agent", "./agent.py:graph", "does it")


def test_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    """Two folders and two projects may each have an `agent.py`; every graph comes from its own."""
    files = {"a/agent.py": GRAPH, "b/agent.py": GRAPH, "agent.py": GRAPH}
    graphs = {name: f"./{name}.py:graph" for name in ("a/agent", "b/agent", "agent")}
    projects = [_project(tmp_path / project, graphs, files) for project in ("one", "two")]
    names = [_run(project, name)[0] for project in projects for name in graphs]
    assert len(set(names)) == 6
    places = {sys.modules[name].__file__ for name in names}
    assert places == {str(tmp_path / project / file) for project in ("one", "two") for file in files}


def test_a_file_is_imported_once_for_all_its_graphs(tmp_path: Path) -> None:
    """Two graphs of one file share its module, however its path is written and even if both are opened at once."""
    counting = GRAPH + "\n    import os\n    os.environ['IMPORTS'] = os.environ.get('IMPORTS', '') + 'x'\n"
    catalogue = _project(
        tmp_path, {"one": "./agent.py:graph", "two": "./x/../agent.py:builder"}, {"agent.py": counting}
    )

    async def both() -> None:
        async def one(name: str) -> None:
            async with catalogue.open(name) as graph:
                assert "work" in graph.nodes

        await asyncio.gather(one("one"), one("two"), one("one"))

    asyncio.run(both())
    assert os.environ["IMPORTS"] == "x"


def test_a_module_name_does_not_depend_on_the_place(tmp_path: Path) -> None:
    """A project moved to another folder finds the classes in its old checkpoints: the module's name is the same."""
    first = _run(_project(tmp_path / "old", {"agent": "./src/agent.py:graph"}, {"src/agent.py": GRAPH}), "agent")
    shutil.move(tmp_path / "old", tmp_path / "new")
    del sys.modules[first[0]]
    assert _run(GraphCatalogue.from_config(tmp_path / "new" / "langgraph.json"), "agent") == first


def test_a_file_in_a_package_may_import_relatively(tmp_path: Path) -> None:
    """A file beside an `__init__.py` is its package's module."""
    files = {
        "src/shop/__init__.py": "",
        "src/shop/inner/__init__.py": "",
        "src/shop/inner/agent.py": "from ..parts import graph",
        "src/shop/parts.py": GRAPH,
    }
    assert _run(_project(tmp_path, {"agent": "./src/shop/inner/agent.py:graph"}, files), "agent") == ["shop.parts"]


def test_a_package_hidden_by_another_is_still_loaded_as_a_file(tmp_path: Path) -> None:
    """If a module of the package's name is already there, the file is imported by itself."""
    files = {"json/__init__.py": "", "json/agent.py": GRAPH}
    assert _run(_project(tmp_path, {"agent": "./json/agent.py:graph"}, files), "agent") == [
        "everstep_graph__json__agent"
    ]


def test_dependencies_can_be_imported(tmp_path: Path) -> None:
    """The configuration's folder, local dependencies and their `src` folders are imported from."""
    files = {
        "app/agent.py": "import shop_here, shop_parts, shop_source\n" + dedent(GRAPH),
        "app/shop_here.py": "",
        "parts/shop_parts.py": "",
        "parts/src/shop_source.py": "",
    }
    _write(tmp_path, files)
    catalogue = _project(
        tmp_path / "app", {"agent": "./agent.py:graph"}, {}, dependencies=["../parts", "langchain-core"]
    )
    assert len(_run(catalogue, "agent")) == 1


# ---- kinds of graphs -------------------------------------------------------------------------------------------------


@entrypoint()
def workflow(state: State) -> dict[str, list[str]]:
    """A graph by LangGraph's functional interface."""
    return {"steps": ["work"]}


def _zero() -> Any:
    return _builder().compile()


def _returns_builder() -> Any:
    return _builder()


def _with_config(config: RunnableConfig) -> Any:
    return _builder(config.get("configurable", {}).get("step", "none"))


def _with_bare_parameter(settings) -> Any:
    return _builder(settings["configurable"]["step"])


def _with_dict(config: dict) -> Any:
    return _builder(config["configurable"]["step"])


def _with_runtime(runtime: ServerRuntime) -> Any:
    assert runtime.execution_runtime is not None
    return _builder(runtime.access_context)


def _with_typed_runtime(runtime: ServerRuntime[State], *, config: RunnableConfig) -> Any:
    return _builder(runtime.access_context + config["configurable"]["step"])


def _with_both(config: RunnableConfig, server: ServerRuntime) -> Any:
    return _builder(server.access_context + config["configurable"]["step"])


def _with_default(model: str = "default") -> Any:
    return _builder(model)


def _with_anything(*args: Any, **kwargs: Any) -> Any:
    return _builder(f"{args}{kwargs}")


async def _async() -> Any:
    await asyncio.sleep(0)
    return _builder()


async def _async_with_config(config: RunnableConfig, /) -> Any:
    return _builder(config["configurable"]["step"])


def _runs_a_loop() -> Any:
    return asyncio.run(_async())


@contextlib.contextmanager
def _context_manager(config: RunnableConfig) -> Iterator[Any]:
    yield _builder(config["configurable"]["step"])


@contextlib.asynccontextmanager
async def _async_context_manager(runtime: ServerRuntime) -> Any:
    yield _builder(runtime.access_context).compile()


def _generator() -> Iterator[Any]:
    yield _builder()


async def _async_generator() -> Any:
    yield _builder()


class _Factory:
    def __call__(self, config: RunnableConfig) -> Any:
        return _builder(config["configurable"]["step"])


class _AsyncFactory:
    async def __call__(self) -> Any:
        return _builder()


@pytest.mark.parametrize(
    ("value", "step"),
    [
        (_builder(), "work"),
        (_builder().compile(), "work"),
        (_builder().compile(checkpointer=False), "work"),
        (_builder().compile(checkpointer=True), "work"),
        (_builder().compile().with_config(tags=["x"]), "work"),
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
    assert _run(catalogue, "agent", {"configurable": {"step": "given"}}) == [step]


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
    catalogue = _project(tmp_path, {"agent": "./agent.py:make"}, {"agent.py": factory, "library.py": GRAPH})
    assert _run(catalogue, "agent", {"configurable": {}}) == ["library"]


def test_a_context_manager_is_open_as_long_as_the_graph_is_used() -> None:
    """What a factory opened is closed after the run, also when the run fails, and told of the failure."""
    seen: list[str] = []

    @contextlib.asynccontextmanager
    async def asynchronous() -> Any:
        seen.append("open")
        try:
            yield _builder()
        except ValueError:
            seen.append("told")
            raise
        finally:
            seen.append("closed")

    @contextlib.contextmanager
    def synchronous() -> Any:
        seen.append("open")
        try:
            yield _builder()
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
            yield _builder()

    async def use() -> None:
        async with GraphCatalogue.from_graphs({"agent": swallowing}).open("agent"):
            raise LookupError("the claim was lost")

    with pytest.raises(LookupError):
        asyncio.run(use())


def test_an_own_checkpointer_is_replaced_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """A graph compiled with a saver runs on ours; its own gets nothing, and the log says so once."""
    own = InMemorySaver()
    catalogue = GraphCatalogue.from_graphs({"agent": _builder().compile(checkpointer=own)})
    with caplog.at_level(logging.WARNING):
        _run(catalogue, "agent")
        _run(catalogue, "agent")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "its own checkpointer" in caplog.text
    assert not own.storage


@pytest.mark.parametrize("kind", ["graph", "builder", "factory"])
def test_what_is_no_factory_is_compiled_and_fingerprinted_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that overlap have a graph of their own, with their own checkpointer; compiling it again is for factories."""
    taken: list[Any] = []
    monkeypatch.setattr(loader, "fingerprint", lambda graph: taken.append(graph) or fingerprint(graph))
    built = _builder()
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
        return _builder().compile(name=f"{runtime.access_context} {runtime.execution_runtime is None}")

    async def name() -> str:
        async with GraphCatalogue.from_graphs({"agent": factory}).open("agent", purpose="threads.read") as graph:
            return graph.get_name()

    assert asyncio.run(name()) == "threads.read True"


# ---- environment -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [".env", {"SHOP_NEW": "from file", "SHOP_SET": "from file", "SHOP_NUMBER": 7}])
def test_the_environment_is_set_but_never_overridden(env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of the configuration reach the graph; those the process has already win."""
    monkeypatch.setenv("SHOP_SET", "from process")
    reading = "import os\n" + dedent(GRAPH).replace(
        "[__name__]", "[os.environ[k] for k in sorted(os.environ) if 'SHOP' in k]"
    )
    files = {
        "agent.py": reading,
        ".env": "SHOP_NEW='from file'\nexport SHOP_SET=from file\nSHOP_NUMBER=7\nSHOP_EMPTY\n",
    }
    catalogue = _project(tmp_path, {"agent": "./agent.py:graph"}, files, env=env)
    assert "SHOP_NEW" not in os.environ
    assert _run(catalogue, "agent") == ["from file", "7", "from process"]


def test_preparing_sets_the_environment_before_any_graph(tmp_path: Path) -> None:
    """A program that needs the variables for itself can have them without opening a graph."""
    _project(tmp_path, {"agent": "./agent.py:graph"}, {}, env={"SHOP_NEW": "here"}).prepare()
    assert os.environ["SHOP_NEW"] == "here"
    assert str(tmp_path) in sys.path


def test_a_missing_env_file_is_only_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In production the variables come from elsewhere and the file is not there."""
    catalogue = _project(tmp_path, {"agent": "./agent.py:graph"}, {"agent.py": GRAPH}, env=".env.production")
    assert len(_run(catalogue, "agent")) == 1
    assert ".env.production" in caplog.text


# ---- what can be wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not valid JSON"),
        ("[]", "no object"),
        ("{}", "names no graphs"),
        ('{"graphs": {}}', "names no graphs"),
        ('{"graphs": ["./a.py:graph"]}', "names no graphs"),
        ('{"graphs": {"a": 7}}', "'a'"),
        ('{"graphs": {"a": {"description": "no path"}}}', "'a'"),
        ('{"graphs": {"": "./a.py:graph"}}', "''"),
        ('{"graphs": {"a": "./a.py"}}', "names no variable"),
        ('{"graphs": {"a": "./a.py:"}}', "names no variable"),
        ('{"graphs": {"a": "./a.py:make()"}}', "names no variable"),
        ('{"graphs": {"a": "my-module:graph"}}', "no module"),
        ('{"graphs": {"a": "./a.ts:graph"}}', "JavaScript"),
        ('{"graphs": {"a": "./a.mjs:graph"}}', "JavaScript"),
        ('{"graphs": {"a": "./a.tsx:graph"}}', "JavaScript"),
        ('{"graphs": {"a": "./a.py:x", "a": "./b.py:x"}}', "twice"),
        ('{"graphs": {"a": "./a.py:x"}, "dependencies": "."}', "dependencies"),
        ('{"graphs": {"a": "./a.py:x"}, "dependencies": [7]}', "7"),
        ('{"graphs": {"a": "./a.py:x"}, "dependencies": ["./missing"]}', "./missing"),
        ('{"graphs": {"a": "./a.py:x"}, "env": ["A=1"]}', "env"),
        ('{"graphs": {"a": "./a.py:x"}, "env": {"A": {"b": 1}}}', "'A'"),
        ('{"graphs": {"a": "./a.py:x"}, "env": {"A": true}}', "'A'"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(text: str, says: str, tmp_path: Path) -> None:
    """Each mistake in the file is named, with what to do about it."""
    (tmp_path / "langgraph.json").write_text(text)
    with pytest.raises(ConfigInvalid) as caught:
        GraphCatalogue.from_config(tmp_path / "langgraph.json")
    assert says in caught.value.message
    assert caught.value.next_step


def test_a_missing_or_unreadable_configuration_is_named(tmp_path: Path) -> None:
    """No file, a folder and bytes that are no text are each told with the path."""
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe{")
    for path in (tmp_path / "langgraph.json", tmp_path, tmp_path / "binary.json"):
        with pytest.raises(ConfigInvalid, match=str(path)):
            GraphCatalogue.from_config(path)


def test_fields_outside_the_format_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fields for LangGraph's server are accepted; a misspelt one is pointed out."""
    fields = {"store": {}, "python_version": "3.11", "dependancies": ["."]}
    catalogue = _project(tmp_path, {"agent": "./agent.py:graph"}, {}, **fields)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'langgraph.json'}: unknown field 'dependancies' is ignored; did you mean 'dependencies'?"
    ]
    assert catalogue.configuration is not None
    assert catalogue.configuration.unused_fields == ("python_version", "store")


def test_an_unknown_graph_lists_the_known_ones(tmp_path: Path) -> None:
    """A misspelt name gets the closest one and the list."""
    catalogue = _project(tmp_path, {"agent": "./agent.py:graph", "report": "./report.py:graph"}, {})
    with pytest.raises(GraphNotFound) as caught:
        _run(catalogue, "agnet")
    assert caught.value.ids == {"graph": "agnet", "known": ["agent", "report"], "close": ["agent"]}
    assert "Did you mean agent?" in caught.value.next_step
    with pytest.raises(GraphNotFound):
        catalogue.describe("agnet")


@pytest.mark.parametrize(
    ("code", "says", "line"),
    [
        ("x = 1\nx.y\n", "AttributeError", 2),
        ("def broken(:\n", "SyntaxError", 1),
        ("import no_such_module_here\n", "no_such_module_here", 1),
        ("import sys\n\nsys.exit(3)\n", "SystemExit", 3),
        ("import json\njson.loads('{')\n", "JSONDecodeError", 2),
        ("from agent_parts import value\n", "ZeroDivisionError", 2),
        ("\nraise ValueError('first line\\nsecond line')\n", "ValueError: first line", 2),
    ],
)
def test_a_module_that_fails_is_told_by_file_and_line(code: str, says: str, line: int, tmp_path: Path) -> None:
    """The user's own file and line and the exception are in the message, without a traceback."""
    files = {"agent.py": code, "agent_parts.py": "\nvalue = 1 / 0\n"}
    error = _failure(_project(tmp_path, {"agent": "./agent.py:graph"}, files))
    assert says in error.message
    assert error.ids["line"] == line
    assert f"{error.ids['file']}:{line}" in error.message
    assert Path(error.ids["file"]).parent == tmp_path
    assert "\n" not in error.message
    assert error.next_step


def test_a_mended_module_is_imported_again(tmp_path: Path) -> None:
    """A failed import leaves nothing half-made behind."""
    catalogue = _project(tmp_path, {"agent": "./agent.py:graph"}, {"agent.py": "raise ValueError"})
    _failure(catalogue)
    _write(tmp_path, {"agent.py": GRAPH})
    assert len(_run(catalogue, "agent")) == 1


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("./missing.py:graph", "no file"),
        ("no_such_package.agents:graph", "no_such_package"),
        ("./agent.py:grapf", "no 'grapf'"),
        ("./agent.py:graph.missing", "no 'missing'"),
        ("./agent.py:number", "int"),
        ("./agent.py:chain", "RunnableLambda"),
        ("./agent.py:nothing", "NoneType"),
        ("./agent.py:wants_name", "'name'"),
        ("./agent.py:fails", "OSError: no server"),
        ("./agent.py:fails_slowly", "OSError: no server"),
        ("./agent.py:leaves", "SystemExit"),
    ],
)
def test_a_graph_that_is_none_is_told(target: str, says: str, tmp_path: Path) -> None:
    """A missing file or name, an object that is no graph, and a factory that fails are each told in one sentence."""
    code = dedent(GRAPH) + dedent(
        """
        from langchain_core.runnables import RunnableLambda
        number = 7
        chain = RunnableLambda(lambda value: value)
        def nothing(): return None
        def wants_name(name: str): return graph
        def fails(): raise OSError("no server")
        async def fails_slowly(): raise OSError("no server")
        def leaves(): raise SystemExit(1)
        """
    )
    error = _failure(_project(tmp_path, {"agent": target}, {"agent.py": code}))
    assert says in error.message
    assert error.ids["graph"] == "agent"
    assert error.next_step
    if "grapf" in target:
        assert error.ids["candidates"] == ["builder", "graph"]


def test_a_failed_factory_keeps_its_cause() -> None:
    """Whether to try again is decided by what the factory met, so that stays attached."""

    def factory() -> Any:
        raise ConnectionRefusedError

    error = _failure(GraphCatalogue.from_graphs({"agent": factory}))
    assert isinstance(error.__cause__, ConnectionRefusedError)


def test_a_runnable_around_a_graph_is_refused() -> None:
    """Only a graph itself can be resumed; a chain around one is told as such."""
    error = _failure(GraphCatalogue.from_graphs({"agent": _builder().compile() | RunnableLambda(lambda value: value)}))
    assert "RunnableSequence" in error.message


# ---- what `everstep doctor` shows ------------------------------------------------------------------------------------


def test_a_check_tells_what_a_graph_is(tmp_path: Path) -> None:
    """A graph that opens is reported with its kind, nodes and fingerprint, and what to know about it."""
    code = dedent(GRAPH) + dedent(
        """
        from langgraph.checkpoint.memory import InMemorySaver
        def make(config): return builder.compile(checkpointer=InMemorySaver())
        """
    )
    catalogue = _project(tmp_path, {"agent": "./agent.py:graph", "made": "./agent.py:make"}, {"agent.py": code})
    report, made = catalogue.check("agent"), catalogue.check("made")
    assert (report.ok, report.kind, report.nodes, report.warnings) == (True, "graph", ("work",), ())
    assert (made.ok, made.kind, made.source, len(made.warnings)) == (True, "factory", "./agent.py:make", 1)
    assert report.fingerprint == made.fingerprint != ""


def test_a_check_reports_failures_instead_of_raising(tmp_path: Path) -> None:
    """Broken, missing and unknown graphs are each a line of the report."""
    catalogue = _project(tmp_path, {"agent": "./agent.py:graph"}, {"agent.py": "1 / 0"})
    report = catalogue.check("agent")
    assert (report.ok, type(report.error), report.source) == (False, GraphLoadFailed, "./agent.py:graph")
    assert isinstance(catalogue.check("other").error, GraphNotFound)
    assert isinstance(GraphCatalogue.from_graphs({"agent": 7}).check("agent").error, GraphLoadFailed)
