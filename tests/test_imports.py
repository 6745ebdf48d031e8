"""What `import everstep` costs, and that everything it promises is there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import everstep


def modules_after(code: str) -> set[str]:
    """The modules a fresh interpreter has loaded after running this code."""
    program = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_everstep_loads_next_to_nothing() -> None:
    """`import everstep` loads no database layer, no LangGraph, no telemetry."""
    loaded = modules_after("import everstep; everstep.__all__")
    heavy = {"sqlalchemy", "alembic", "langgraph", "langchain_core", "pydantic", "opentelemetry", "rich", "click"}
    assert loaded & heavy == set()


def test_errors_and_clock_stand_alone() -> None:
    """The error catalogue and the clock can be imported without anything else."""
    loaded = modules_after("import everstep.errors, everstep.clock")
    ours = {name for name in loaded if name.startswith("everstep")}
    assert {name for name in ours if not name.startswith("everstep.errors")} == {"everstep", "everstep.clock"}


def test_opening_a_record_loads_no_graph_library() -> None:
    """Listing jobs of a record that is up to date needs neither LangGraph nor Alembic, so commands answer at once."""
    code = (
        "import tempfile, subprocess\n"
        "folder = tempfile.mkdtemp()\n"
        "url = 'sqlite:///' + folder + '/record.db'\n"
        "make = 'from everstep import Store; Store.open(%r).close()' % url\n"
        "subprocess.run([sys.executable, '-c', make], check=True)\n"
        "from everstep import Store\n"
        "with Store.open(url) as store: store.jobs()\n"
    )
    assert modules_after(code) & {"langgraph", "langchain_core", "alembic"} == set()


@pytest.mark.parametrize("name", everstep.__all__)
def test_every_public_name_is_there(name: str) -> None:
    """Each name of `everstep.__all__` resolves, has a docstring, and is the same object each time."""
    found = getattr(everstep, name)
    assert found is getattr(everstep, name)
    assert found.__doc__
    assert name in dir(everstep)


def test_a_name_that_is_not_there_says_so() -> None:
    """A wrong name is an AttributeError that names it, as for any module."""
    with pytest.raises(AttributeError, match="nonsense"):
        everstep.nonsense  # noqa: B018
    with pytest.raises(ImportError):
        from everstep import nonsense  # noqa: F401
