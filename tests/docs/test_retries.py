"""docs/retries.md says what the rules say."""

from __future__ import annotations

from everstep.runtime.rules.loaded import LIBRARIES
from tests.docs.retry_tables import BLOCK, MODULES, PAGE, tables, with_tables


def test_the_tables_are_those_of_the_rules() -> None:
    """Each table is what the rules give; `python -m tests.docs.retry_tables` writes them anew."""
    assert PAGE.read_text() == with_tables(PAGE.read_text())


def test_no_table_is_missing() -> None:
    """Every library that has rules has its table on the page."""
    assert {block["name"] for block in BLOCK.finditer(PAGE.read_text())} == set(tables())
    shown = {module for modules in MODULES.values() for module in modules}
    assert shown == set(LIBRARIES) - {"httpx2"}
    assert LIBRARIES["httpx2"] == LIBRARIES["httpx"]
