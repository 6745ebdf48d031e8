"""The page about the shipped agent names everything there is, and nothing else."""

import re
from pathlib import Path

from everstep.graphs.codemods import OPERATIONS
from everstep.graphs.offline_model import NAME
from everstep.graphs.repository_job import RepositoryJob

PAGE = (Path(__file__).parents[2] / "docs" / "shipped-agent.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[str]:
    """The names in the first column of the first table below a heading."""
    table = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)


def test_every_field_of_the_input_is_documented() -> None:
    """The table of the input has each field of the payload once."""
    assert sorted(rows("Use it")) == sorted(RepositoryJob.__annotations__)


def test_every_operation_is_documented() -> None:
    """The table of operations has each operation, in order."""
    assert rows("Operations") == list(OPERATIONS)


def test_the_page_says_that_the_offline_policy_is_no_language_model() -> None:
    """The name on the page is the name in the traces."""
    assert f"`{NAME}`" in PAGE
    assert "a fixed rule by its nature" in PAGE
