"""What can be wrong with a configuration or a graph, and how it is told."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda

from everstep.errors import ConfigInvalid, GraphNotFound
from everstep.graphs.loader import GraphCatalogue
from tests.support.loaded import GRAPH, catalogue_of, failure_of, one_step, steps_of, write_files

pytestmark = pytest.mark.usefixtures("untouched_process")


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
    catalogue = catalogue_of(tmp_path, {"agent": "./agent.py:graph"}, {}, **fields)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'langgraph.json'}: unknown field 'dependancies' is ignored; did you mean 'dependencies'?"
    ]
    assert catalogue.configuration is not None
    assert catalogue.configuration.unused_fields == ("python_version", "store")


def test_an_unknown_graph_lists_the_known_ones(tmp_path: Path) -> None:
    """A misspelt name gets the closest one and the list."""
    catalogue = catalogue_of(tmp_path, {"agent": "./agent.py:graph", "report": "./report.py:graph"}, {})
    with pytest.raises(GraphNotFound) as caught:
        steps_of(catalogue, "agnet")
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
    error = failure_of(catalogue_of(tmp_path, {"agent": "./agent.py:graph"}, files))
    assert says in error.message
    assert error.ids["line"] == line
    assert f"{error.ids['file']}:{line}" in error.message
    assert Path(error.ids["file"]).parent == tmp_path
    assert "\n" not in error.message
    assert error.next_step


def test_a_mended_module_is_imported_again(tmp_path: Path) -> None:
    """A failed import leaves nothing half-made behind."""
    catalogue = catalogue_of(tmp_path, {"agent": "./agent.py:graph"}, {"agent.py": "raise ValueError"})
    failure_of(catalogue)
    write_files(tmp_path, {"agent.py": GRAPH})
    assert len(steps_of(catalogue, "agent")) == 1


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
    error = failure_of(catalogue_of(tmp_path, {"agent": target}, {"agent.py": code}))
    assert says in error.message
    assert error.ids["graph"] == "agent"
    assert error.next_step
    if "grapf" in target:
        assert error.ids["candidates"] == ["builder", "graph"]


def test_a_failed_factory_keeps_its_cause() -> None:
    """Whether to try again is decided by what the factory met, so that stays attached."""

    def factory() -> Any:
        raise ConnectionRefusedError

    error = failure_of(GraphCatalogue.from_graphs({"agent": factory}))
    assert isinstance(error.__cause__, ConnectionRefusedError)


def test_a_runnable_around_a_graph_is_refused() -> None:
    """Only a graph itself can be resumed; a chain around one is told as such."""
    error = failure_of(
        GraphCatalogue.from_graphs({"agent": one_step().compile() | RunnableLambda(lambda value: value)})
    )
    assert "RunnableSequence" in error.message
