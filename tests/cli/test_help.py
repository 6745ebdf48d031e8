"""Help that is there at once, and commands that load no more than they need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Prepared
from tests.cli.folder import Folder, environment

COMMANDS = [
    (),
    ("submit",),
    ("up",),
    ("server",),
    ("worker",),
    ("jobs",),
    ("show",),
    ("history",),
    ("traces",),
    ("traces", "status"),
    ("traces", "flush"),
    ("review",),
    ("review", "list"),
    ("review", "show"),
    ("review", "approve"),
    ("review", "edit"),
    ("review", "respond"),
    ("review", "reject"),
    ("budget",),
    ("prices",),
    ("credits",),
    ("credits", "grant"),
    ("credits", "balance"),
    ("credits", "entries"),
    ("retry",),
    ("cancel",),
    ("dlq",),
    ("dlq", "list"),
    ("dlq", "show"),
    ("dlq", "redrive"),
    ("dlq", "purge"),
    ("provider",),
    ("provider", "list"),
    ("provider", "tasks"),
    ("provider", "show"),
    ("provider", "reconcile"),
    ("provider", "link"),
    ("provider", "poll"),
    ("provider", "cancel"),
    ("provider", "events"),
    ("provider", "replay"),
    ("classify",),
    ("crash-test",),
    ("doctor",),
    ("keys",),
    ("keys", "create"),
    ("keys", "list"),
    ("keys", "revoke"),
    ("metrics",),
    ("backup",),
    ("prune",),
    ("demo",),
]
PROGRAM = (
    "import sys\nfrom everstep.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as left:\n    "
)
PROGRAM += "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)\n    raise"


def loaded(folder: Path, *arguments: str) -> set[str]:
    """The packages a command has loaded by its end."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ran.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help(command: tuple[str, ...], tmp_path: Path) -> None:
    """`--help` exits 0 and tells on stdout what the command is for, each option with a description."""
    ran = Folder(tmp_path).run(*command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: {' '.join(('everstep', *command))} ")
    assert len(ran.out.splitlines()[2].strip()) > 15
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_do_is_help(tmp_path: Path) -> None:
    """`everstep` alone shows its help, with every command and the exit codes; --version names the version."""
    ran, version = Folder(tmp_path).all((), ("--version",))
    assert (ran.code, ran.err) == (0, "")
    for command in COMMANDS[1:]:
        assert f"\n  {command[0]} " in ran.out
    assert "78 configuration" in ran.out
    assert version.out.startswith("everstep, version ")


def test_help_loads_nothing(tmp_path: Path) -> None:
    """Help comes without the database layer, LangGraph, rich and the tracing packages."""
    heavy = {"sqlalchemy", "alembic", "langgraph", "langchain_core", "rich", "opentelemetry", "requests"}
    assert loaded(tmp_path, "--help") & heavy == set()
    assert loaded(tmp_path, "demo", "--help") & heavy == set()


def test_looking_and_submitting_load_no_graph_library(prepared: Prepared) -> None:
    """`jobs`, `show`, `review` and `submit` work without LangGraph and without Alembic, which take a second to load."""
    heavy = {"alembic", "langgraph", "langchain_core", "opentelemetry", "requests", "graphs"}
    path = prepared.folder.path
    for arguments in (
        ("jobs",),
        ("show", prepared.jobs["lost"]),
        ("review",),
        ("submit", "count", "--input", "{}"),
    ):
        assert loaded(path, *arguments) & heavy == set(), arguments
