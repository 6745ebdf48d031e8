"""Every command and snippet of the documentation is run, page by page, in an empty folder.

A fence `python file=NAME` (or `json`, or `toml`) is a file the reader makes; `sh` is run as the reader would run it;
`sh no-run`, used for cloning this very repository, is not; a fence without a language shows what is seen.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.reader import program

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="session")
def programs() -> Iterator[Path]:
    """A folder with an `everstep` that need not import anything."""
    with tempfile.TemporaryDirectory(prefix="everstep-reader-") as folder, program(Path(folder)) as programs:
        yield programs


def environment(*first: Path) -> dict[str, str]:
    """A reader's shell: these folders and this Python first on the path, nothing of Everstep's set."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("EVERSTEP_", "OTEL_", "LANGFUSE_"))
    }
    path = [*map(str, first), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {**clean, "PATH": os.pathsep.join(path), "NO_COLOR": "1"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_snippet_runs(page: Path, tmp_path: Path, programs: Path) -> None:
    """The page's files are made and its commands run in order; each must exit 0."""
    script = ["set -euo pipefail"]
    for fence in FENCE.finditer(page.read_text()):
        language, *options = fence["info"].split() or [""]
        named = [option.removeprefix("file=") for option in options if option.startswith("file=")]
        if language == "sh" and "no-run" not in options:
            script.append(fence["body"])
        elif language in ("python", "json", "toml"):
            assert named, f"{page.name}: a {language} snippet must say which file it is: {fence['body'][:60]!r}"
            script.append(f"cat > {named[0]} <<'END_OF_FILE'\n{fence['body']}END_OF_FILE\n")
    ran = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        cwd=tmp_path,
        env=environment(*([] if page.name == "README.md" else [programs])),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file of the project."""
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_is_documented() -> None:
    """docs/commands.md names every command and every option that is not explained by --help alone."""
    from everstep.cli.main import _register, everstep

    _register()
    text = (ROOT / "docs" / "commands.md").read_text()
    for name in everstep.commands:
        assert re.search(rf"\b{name}\b", text), f"docs/commands.md does not mention {name}"
