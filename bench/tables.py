"""What a scenario hands back: tables, and what became of the targets; on the screen and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table as Grid


@dataclass(frozen=True)
class Table:
    """A table as it is shown.

    Attributes:
        title: What it tells.
        columns: Its heads; the first column is the system.
        rows: Its cells.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Target:
    """Something Everstep aims at, and what came of it in this run."""

    what: str
    wanted: str
    got: str
    is_met: bool


@dataclass
class Section:
    """All of one scenario.

    Attributes:
        name: Its short name, as in `make bench ONLY=…`.
        title: Its heading.
        notes: How it was measured, and what the systems differ in.
        tables: What came out.
        targets: What of it was aimed at.
        raw: Every measurement, for `results.json`.
        failures: What could not be measured, and why.
    """

    name: str
    title: str
    notes: list[str] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def show(console: Console, section: Section) -> None:
    """Print a section."""
    console.rule(section.title)
    for table in section.tables:
        grid = Grid(title=table.title, title_justify="left")
        for index, column in enumerate(table.columns):
            grid.add_column(column, justify="left" if index == 0 else "right")
        for row in table.rows:
            grid.add_row(*row)
        console.print(grid)
    for line in (*section.notes, *(f"not measured: {failure}" for failure in section.failures)):
        console.print(line, markup=False, highlight=False)
    for target in section.targets:
        colour = "green" if target.is_met else "red"
        verdict = "met" if target.is_met else "behind"
        console.print(f"[{colour}]{verdict:<6}[/] {target.what}: wanted {target.wanted}, got {target.got}")


def markdown(section: Section) -> str:
    """A section of the page."""
    lines = [f"### {section.title}", ""]
    lines += section.notes
    for table in section.tables:
        lines += [
            "",
            *([f"**{table.title}**", ""] if table.title else []),
            _row(table.columns),
            _row(["---", *["---:"] * (len(table.columns) - 1)]),
        ]
        lines += [_row(row) for row in table.rows]
    if section.failures:
        lines += ["", "Not measured: " + "; ".join(failure.splitlines()[0] for failure in section.failures) + "."]
    return "\n".join([*lines, ""])


def targets_in_markdown(sections: Sequence[Section]) -> str:
    """The table of targets."""
    rows = [
        _row([target.what, target.wanted, target.got, "met" if target.is_met else "**behind**"])
        for section in sections
        for target in section.targets
    ]
    return "\n".join([_row(["target", "wanted", "in this run", ""]), _row(["---"] * 4), *rows, ""])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
