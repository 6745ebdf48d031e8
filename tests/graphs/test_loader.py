"""Loading the user's graphs: real files, real imports, the environment, and what a check tells of them."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from everstep.errors import GraphLoadFailed, GraphNotFound
from everstep.graphs.loader import GraphCatalogue
from tests.support.loaded import GRAPH, catalogue_of, steps_of, write_files

pytestmark = pytest.mark.usefixtures("untouched_process")

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
    assert len(steps_of(catalogue_of(tmp_path, {"agent": target}, files), "agent")) == 1


def test_nothing_is_imported_before_a_graph_is_opened(tmp_path: Path) -> None:
    """Names, existence and description come from the file alone, even if the code is broken or absent."""
    graphs = {"agent": {"path": "./agent.py:graph", "description": "does it"}, "gone": "./gone.py:graph"}
    catalogue = catalogue_of(tmp_path, graphs, {"agent.py": "raise SystemError('imported')"})
    assert catalogue.names() == ["agent", "gone"]
    assert catalogue.exists("gone")
    assert not catalogue.exists("other")
    described = catalogue.describe("agent")
    assert (described.name, described.source, described.description) == ("agent", "./agent.py:graph", "does it")


def test_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    """Two folders and two projects may each have an `agent.py`; every graph comes from its own."""
    files = {"a/agent.py": GRAPH, "b/agent.py": GRAPH, "agent.py": GRAPH}
    graphs = {name: f"./{name}.py:graph" for name in ("a/agent", "b/agent", "agent")}
    projects = [catalogue_of(tmp_path / project, graphs, files) for project in ("one", "two")]
    names = [steps_of(project, name)[0] for project in projects for name in graphs]
    assert len(set(names)) == 6
    places = {sys.modules[name].__file__ for name in names}
    assert places == {str(tmp_path / project / file) for project in ("one", "two") for file in files}


def test_a_file_is_imported_once_for_all_its_graphs(tmp_path: Path) -> None:
    """Two graphs of one file share its module, however its path is written and even if both are opened at once."""
    counting = GRAPH + "\n    import os\n    os.environ['IMPORTS'] = os.environ.get('IMPORTS', '') + 'x'\n"
    catalogue = catalogue_of(
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
    first = steps_of(
        catalogue_of(tmp_path / "old", {"agent": "./src/agent.py:graph"}, {"src/agent.py": GRAPH}), "agent"
    )
    shutil.move(tmp_path / "old", tmp_path / "new")
    del sys.modules[first[0]]
    assert steps_of(GraphCatalogue.from_config(tmp_path / "new" / "langgraph.json"), "agent") == first


def test_a_file_in_a_package_may_import_relatively(tmp_path: Path) -> None:
    """A file beside an `__init__.py` is its package's module."""
    files = {
        "src/shop/__init__.py": "",
        "src/shop/inner/__init__.py": "",
        "src/shop/inner/agent.py": "from ..parts import graph",
        "src/shop/parts.py": GRAPH,
    }
    assert steps_of(catalogue_of(tmp_path, {"agent": "./src/shop/inner/agent.py:graph"}, files), "agent") == [
        "shop.parts"
    ]


def test_a_package_hidden_by_another_is_still_loaded_as_a_file(tmp_path: Path) -> None:
    """If a module of the package's name is already there, the file is imported by itself."""
    files = {"json/__init__.py": "", "json/agent.py": GRAPH}
    assert steps_of(catalogue_of(tmp_path, {"agent": "./json/agent.py:graph"}, files), "agent") == [
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
    write_files(tmp_path, files)
    catalogue = catalogue_of(
        tmp_path / "app", {"agent": "./agent.py:graph"}, {}, dependencies=["../parts", "langchain-core"]
    )
    assert len(steps_of(catalogue, "agent")) == 1


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
    catalogue = catalogue_of(tmp_path, {"agent": "./agent.py:graph"}, files, env=env)
    assert "SHOP_NEW" not in os.environ
    assert steps_of(catalogue, "agent") == ["from file", "7", "from process"]


def test_preparing_sets_the_environment_before_any_graph(tmp_path: Path) -> None:
    """A program that needs the variables for itself can have them without opening a graph."""
    catalogue_of(tmp_path, {"agent": "./agent.py:graph"}, {}, env={"SHOP_NEW": "here"}).prepare()
    assert os.environ["SHOP_NEW"] == "here"
    assert str(tmp_path) in sys.path


def test_a_missing_env_file_is_only_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In production the variables come from elsewhere and the file is not there."""
    catalogue = catalogue_of(tmp_path, {"agent": "./agent.py:graph"}, {"agent.py": GRAPH}, env=".env.production")
    assert len(steps_of(catalogue, "agent")) == 1
    assert ".env.production" in caplog.text


# ---- what `everstep doctor` shows ------------------------------------------------------------------------------------


def test_a_check_tells_what_a_graph_is(tmp_path: Path) -> None:
    """A graph that opens is reported with its kind, nodes and fingerprint, and what to know about it."""
    code = dedent(GRAPH) + dedent(
        """
        from langgraph.checkpoint.memory import InMemorySaver
        def make(config): return builder.compile(checkpointer=InMemorySaver())
        """
    )
    catalogue = catalogue_of(tmp_path, {"agent": "./agent.py:graph", "made": "./agent.py:make"}, {"agent.py": code})
    report, made = catalogue.check("agent"), catalogue.check("made")
    assert (report.ok, report.kind, report.nodes, report.warnings) == (True, "graph", ("work",), ())
    assert (made.ok, made.kind, made.source, len(made.warnings)) == (True, "factory", "./agent.py:make", 1)
    assert report.fingerprint == made.fingerprint != ""


def test_a_check_reports_failures_instead_of_raising(tmp_path: Path) -> None:
    """Broken, missing and unknown graphs are each a line of the report."""
    catalogue = catalogue_of(tmp_path, {"agent": "./agent.py:graph"}, {"agent.py": "1 / 0"})
    report = catalogue.check("agent")
    assert (report.ok, type(report.error), report.source) == (False, GraphLoadFailed, "./agent.py:graph")
    assert isinstance(catalogue.check("other").error, GraphNotFound)
    assert isinstance(GraphCatalogue.from_graphs({"agent": 7}).check("agent").error, GraphLoadFailed)
