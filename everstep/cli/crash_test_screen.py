"""What `crash-test` shows: progress on stderr, then a table of crash points, what differed, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from everstep.counts import counted

if TYPE_CHECKING:
    from everstep.runtime.crash_test.campaign import Listener
    from everstep.runtime.crash_test.judgement import PointResult
    from everstep.runtime.crash_test.one_run import EffectSeen
    from everstep.runtime.crash_test.report import Report

COLOURS = {"held": "green", "asks": "magenta", "differs": "bold red", "hung": "bold red", "not reached": "yellow"}
SETTLES = {"probe": " (probe)", "key": " (may repeat)", "person": " (a person)"}
"""What settles an effect after a kill."""

MOST_SHOWN = 20


class Screen:
    """Where a crash test is shown; `quiet` shows no progress."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = Console(highlight=False, soft_wrap=True)
        if not self._console.is_terminal:
            self._console.width = 120

    @contextmanager
    def progress(self) -> Generator[Listener]:
        """Show how far it is, for the time of a block, where stderr is a terminal."""
        from everstep.runtime.crash_test.campaign import Listener

        errors = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=errors, transient=True, disable=self._quiet or not errors.is_terminal) as bar:
            task = bar.add_task("", total=None)
            wrong = Counter[str]()

            def judged(result: PointResult) -> None:
                wrong[result.outcome] += 1
                bad = wrong["differs"] + wrong["hung"]
                words = f"killed at {result.point.label}" + (f", {bad} differ" if bad else "")
                bar.update(task, advance=1, description=words)

            yield Listener(
                begun=lambda words: bar.update(task, description=words),
                chosen=lambda tested, passed: bar.update(
                    task, total=tested, description=f"{tested} of {counted(passed, 'point')}"
                ),
                judged=judged,
            )

    def show(self, report: Report, keep: Path | None) -> None:
        """The whole report."""
        self._uninterrupted(report)
        self._table(report)
        self._touches(report)
        self._problems(report, keep)
        self._notes(report)
        self._say(("✓ " if report.held else "✗ ") + report.verdict(), "bold green" if report.held else "bold red")
        sampled = "" if report.sample is None else f" --sample {report.sample}"
        self._say(f"  seed {report.seed}; the same again: --seed {report.seed}{sampled}", "dim")

    def _uninterrupted(self, report: Report) -> None:
        run = report.reference.run
        nodes = ", ".join(f"{node} ×{count}" if count > 1 else node for node, count in run.bodies().items())
        effects = Counter(f"{effect.name} {effect.state}" for effect in run.effects)
        told = ", ".join(f"{what} ×{count}" if count > 1 else what for what, count in effects.items())
        asked = Counter(asked.kind for asked in run.asked)
        questions = ", ".join(f"{kind} ×{count}" for kind, count in asked.items())
        self._say(f"{report.graph} without a crash: {run.status} in {run.seconds:.1f} s", "bold")
        self._say(f"  nodes    {nodes or 'none'}")
        self._say(f"  effects  {told or 'none'}")
        if questions:
            self._say(f"  reviews  {questions}, answered the same in every run")
        if run.world:
            self._say(f"  world    {counted(len(run.world), 'file')} compared")
        else:
            self._say("  world    nothing to compare: put {run} into the input, or name places with --world", "yellow")
        unstable = [*sorted(report.reference.unstable_state), *report.reference.unstable_world]
        if unstable:
            self._say(f"  differs by itself, so not compared: {_some(unstable)}", "yellow")
        if report.unused_answers:
            self._say(f"  answers that no question asked for: {_some(report.unused_answers)}", "yellow")
        self._say("")

    def _table(self, report: Report) -> None:
        groups: dict[str, list[PointResult]] = {}
        for result in report.results:
            groups.setdefault(result.point.kind, []).append(result)
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("killed at", no_wrap=True, overflow="fold")
        for column in ("kills", "held", "ask", "differ", "attempts"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("effects")
        table.add_column("bodies that ran again")
        for kind, results in groups.items():
            counts = Counter(result.outcome for result in results)
            bad = counts["differs"] + counts["hung"]
            again = Counter[str]()
            for result in results:
                again.update(result.ran_again)
            settled = Counter(_settlement(effect) for result in results for effect in result.effects)
            attempts = sorted({result.attempts for result in results if result.outcome != "not reached"})
            settles = SETTLES.get(results[0].point.settles, "")
            table.add_row(
                Text.assemble(kind, (settles, "dim")),
                str(len(results) - counts["not reached"]),
                Text(str(counts["held"]), style=COLOURS["held"] if counts["held"] else "dim"),
                Text(str(counts["asks"]), style=COLOURS["asks"] if counts["asks"] else "dim"),
                Text(str(bad), style=COLOURS["differs"] if bad else "dim"),
                "–".join(str(number) for number in dict.fromkeys(attempts[:1] + attempts[-1:])),
                Text(_counted(settled)),
                Text(_counted(again)),
            )
        self._console.print(table)
        self._say("")

    def _touches(self, report: Report) -> None:
        allowed = sum(touch.allowed for touch in report.touches)
        ordered = sorted((touch for touch in report.touches if not touch.allowed), key=lambda touch: not touch.fails)
        for touch in ordered[:MOST_SHOWN]:
            mark = "✗" if touch.fails else "·"
            where = f"  {touch.where}" if touch.where else ""
            why = "touches the world outside an effect" if touch.fails else f"outside an effect ({touch.kind})"
            others = f" and {touch.different - 1} more" if touch.different > 1 else ""
            self._say(
                f"{mark} node {touch.node} {why}: {touch.what}{others}{where}", "red" if touch.fails else "yellow"
            )
        if len(ordered) > MOST_SHOWN:
            self._say(f"  … and {len(ordered) - MOST_SHOWN} more; --json tells all")
        if any(touch.fails for touch in report.touches):
            self._say(
                "  next: put it into a function under @effect(…), called by the node; or --allow TEXT if it may repeat"
            )
        if allowed:
            self._say(
                f"· {counted(allowed, 'line touches', 'lines touch')} the world outside an effect as --allow says",
                "yellow",
            )
        if any(not touch.fails for touch in ordered):
            self._say("  connections and databases fail nothing by themselves: what only reads may happen twice", "dim")

    def _problems(self, report: Report, keep: Path | None) -> None:
        wrong = [result for result in report.results if result.problems]
        for result in wrong[:MOST_SHOWN]:
            after = f" (after {result.point.after})" if result.point.after else ""
            self._say(f"✗ killed at {result.point.label}{after}: {result.outcome}", "bold red")
            for problem in result.problems:
                self._say(f"    {problem}")
            for node, count in result.ran_again.items():
                self._say(f"    node {node} ran again ({count}×): what it does outside of effect() happened again")
            if keep is not None:
                self._say(f"    everstep jobs --store sqlite:///{result.folder}/record.db", "dim")
        if len(wrong) > MOST_SHOWN:
            self._say(f"  … and {len(wrong) - MOST_SHOWN} more; --json tells all")
        if wrong:
            self._say(f"  this one alone: --only {wrong[0].point.label}", "dim")

    def _notes(self, report: Report) -> None:
        asked = Counter(effect for result in report.results for effect in set(result.asked))
        for effect, count in asked.items():
            self._say(
                f"· effect {effect} asked a person after {counted(count, 'kill')}: it has no probe and is not"
                " idempotent, so nobody else can know whether it happened",
                "magenta",
            )
        if report.unseen_inside:
            self._say(
                f"· killed before and after, not within, as nothing they do was seen: {_some(report.unseen_inside)}",
                "yellow",
            )
        notes = Counter(note for result in report.results for note in result.notes)
        for note, count in notes.most_common(MOST_SHOWN):
            self._say(f"· {note}" + (f" ({count}×)" if count > 1 else ""), "yellow")

    def _say(self, words: str, style: str = "") -> None:
        self._console.print(Text(words, style=style), soft_wrap=True)


def _settlement(effect: EffectSeen) -> str:
    """How an effect came to its end otherwise than by its first call."""
    if effect.settled_by in ("call", None):
        return "called again"
    return f"settled by {effect.settled_by}"


def _counted(names: Counter[str]) -> str:
    return ", ".join(f"{name} ×{count}" for name, count in sorted(names.items()))


def _some(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
