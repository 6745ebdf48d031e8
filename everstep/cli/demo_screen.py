"""What the demo shows: live progress on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from everstep.cli.views import STATUS_COLOURS, text

if TYPE_CHECKING:
    from everstep.checkpoints.reviews import Review
    from everstep.checkpoints.store import Store
    from everstep.cli.demo_evidence import JobEvidence

REFRESH_S = 0.1
PLAIN_EVERY_S = 1.0


class Screen:
    """A console with a live table of jobs below what was said."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        if not self._console.is_terminal:
            self._console.width = 120
        self._live: Live | None = None
        self._shown = 0.0

    def title(self, words: str) -> None:
        """Begin a chapter."""
        self._still()
        self._console.print(f"\n[bold]{words}[/bold]")

    def say(self, words: str) -> None:
        """One line."""
        self._still()
        self._console.print(Text(words), soft_wrap=True)

    def kill(self, words: str) -> None:
        """A worker died."""
        self._still()
        self._console.print(Text(f"  ✗ {words}", style="bold red"), soft_wrap=True)

    def check(self, words: str, holds: bool) -> None:
        """A claim, and whether it holds."""
        self._console.print(Text(f"  {'✓' if holds else '✗'} {words}", style="green" if holds else "bold red"))

    def review(self, review: Review, package: str, why: str) -> None:
        """A question for a person."""
        self._still()
        value = review.value
        asked = value.get("question") or value["action_requests"][0]["description"]
        self._console.print(Text(f"  ? {package}: {text(asked, 160)} ({why})", style="magenta"), soft_wrap=True)

    def progress(self, store: Store, names: dict[str, str]) -> None:
        """The jobs as they are now; at most ten times a second, and once a second where no terminal is."""
        now = time.monotonic()
        if now - self._shown < (REFRESH_S if self._console.is_terminal else PLAIN_EVERY_S):
            return
        self._shown = now
        jobs = sorted(store.jobs(), key=lambda job: job.id)
        if not self._console.is_terminal:
            states = [f"{names[job.public_id]} {job.status} {job.step}" for job in jobs]
            self._console.print(Text("  " + " · ".join(states)), soft_wrap=True)
            return
        table = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("  job", "package", "status", "step", "node", "attempt", "tokens in", "tokens out"):
            table.add_column(column)
        for job in jobs:
            table.add_row(
                f"  {job.public_id[-12:]}",
                names[job.public_id],
                f"[{STATUS_COLOURS[job.status]}]{job.status}[/]",
                str(job.step),
                job.node or "",
                str(job.attempts),
                f"{job.input_tokens:,}",
                f"{job.output_tokens:,}",
            )
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        self._live.update(table, refresh=True)

    def table(self, rows: list[JobEvidence]) -> None:
        """The evidence of each job."""
        self._still()
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("package", "status", "steps", "legs", "attempts", "new commits", "files", "effects", "reviews"):
            table.add_column(column)
        for row in rows:
            numbers = (row.steps, row.legs, row.attempts, row.new_commits, row.files_changed)
            table.add_row(row.package, row.status, *(str(number) for number in numbers), row.effects, row.reviews)
        self._console.print(table)

    def _still(self) -> None:
        """Leave the live table as it is and go on below it."""
        if self._live is not None:
            self._live.stop()
            self._live = None
