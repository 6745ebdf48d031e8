"""docs/benchmarks.md: what stands between its two marks is made here, everything around them is written by hand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bench.processes import ROOT
from bench.tables import Section, markdown, targets_in_markdown

PAGE = ROOT / "docs" / "benchmarks.md"
BLOCK = re.compile(r"(?P<begin><!-- results -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def with_results(page: str, machine: Sequence[tuple[str, str]], sections: Sequence[Section]) -> str:
    """The page with these results in place of what stood between its marks.

    Raises:
        ValueError: The page has no marks.
    """
    lines = "\n".join(f"| {name} | {value} |" for name, value in machine)
    tables = "\n".join(markdown(section) for section in sections)
    made = f"## This run\n\n| | |\n| --- | --- |\n{lines}\n\n## Targets\n\n{targets_in_markdown(sections)}\n"
    made += f"## Tables\n\n{tables}\n"
    if not BLOCK.search(page):
        raise ValueError("the page has no place for results")
    return BLOCK.sub(lambda block: block["begin"] + made + block["end"], page)


def write(machine: Sequence[tuple[str, str]], sections: Sequence[Section], page: Path = PAGE) -> None:
    """Write them into the page."""
    page.write_text(with_results(page.read_text(), machine, sections))
