"""docs/provider-faults.md says what happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.provider_faults import BLOCK, PAGE, TABLES, Fault, carry_out, faults, shown


@pytest.mark.parametrize(("key", "fault"), faults(), ids=[key for key, _ in faults()])
def test_each_fault_comes_to_what_the_page_says(tmp_path: Path, key: str, fault: Fault) -> None:
    """Carried out again, at a real provider and by a real worker; `python -m tests.docs.provider_faults` writes it."""
    name, _, number = key.rpartition("-")
    assert carry_out(fault, tmp_path).row(fault) == shown(name)[int(number)]


def test_no_fault_is_missing() -> None:
    """Each table is on the page, with a row for each fault."""
    assert {block["name"] for block in BLOCK.finditer(PAGE.read_text())} == set(TABLES)
    assert {name: len(shown(name)) for name in TABLES} == {name: len(each) for name, each in TABLES.items()}
