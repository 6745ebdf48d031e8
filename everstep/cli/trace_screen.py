"""A trace drawn in the terminal: a tree of bounded length, with runs of steps that went well folded together."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.text import Text

from everstep.cli import views
from everstep.cli.exceptions import stack_lines
from everstep.counts import counted

if TYPE_CHECKING:
    from everstep.runtime.trace.tree import Node, TraceTree, Use

FOLDED_FROM = 9
"""Siblings in a row that went well are folded when they are as many as this."""
FIRST, LAST = 3, 3
HEAD, TAIL = 100, 300
"""Lines that are drawn of a trace that is too long even so."""
MARKS = {"ok": ("", ""), "warning": ("! ", "yellow"), "error": ("✗ ", "red"), "open": ("… ", "cyan")}
KINDS = {"wait": "dim", "gap": "red", "leg": "bold", "review": "magenta", "effect": "blue"}
MESSAGE = 300


@dataclass(frozen=True)
class _Options:
    everything: bool
    verbose: bool
    now_ns: int


def lines(tree: TraceTree, *, everything: bool = False, verbose: bool = False) -> Iterator[Text]:
    """The lines of the drawing, the head first.

    Args:
        tree: The trace.
        everything: Neither fold nor cut.
        verbose: Tell of an error every place it was raised through, also those in libraries.
    """
    yield _head(tree)
    drawn = _drawn(tree.nodes, "", _Options(everything, verbose, tree.drawn_at_ns))
    if everything:
        yield from drawn
    else:
        yield from _cut(drawn)
    if tree.omitted:
        yield Text(
            f"{counted(tree.omitted, 'step in between is', 'steps in between are')} not shown: --leg N shows one leg",
            "dim",
        )


def plain(text: str, limit: int = MESSAGE) -> str:
    """Text of others as one line for a terminal: what could steer it, or turn its direction, is replaced."""
    return _readable(views.text(text, limit))


def _readable(text: str) -> str:
    """Without halves of characters, which rich cannot draw."""
    return "".join("�" if "\ud800" <= one <= "\udfff" else one for one in text)


def span_of(nanoseconds: int | None) -> str:
    """A duration in words, to three figures or so."""
    if nanoseconds is None:
        return ""
    seconds = nanoseconds / 1e9
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "<1 ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if minutes < 60:
        return f"{minutes:.0f} min {seconds % 60:.0f} s"
    if hours < 48:
        return f"{hours:.0f} h {minutes % 60:.0f} min"
    return f"{days:.0f} d {hours % 24:.0f} h"


def used(use: Use) -> str:
    """Tokens and cost in words; nothing where nothing is known or was used."""
    parts: list[str] = []
    if use.input_tokens or use.output_tokens:
        parts.append(f"{counted(use.input_tokens or 0, 'token')} in, {use.output_tokens or 0:,} out")
    if use.cost_micros:
        parts.append(f"${use.cost_micros / 1_000_000:.6f}".rstrip("0").rstrip("."))
    return ", ".join(parts)


def _head(tree: TraceTree) -> Text:
    head = Text.assemble(
        ("job ", "dim"), (plain(tree.job_id), "bold"), "  ", plain(tree.graph), "  ",
        (tree.status, f"bold {views.STATUS_COLOURS[tree.status]}"), f" at step {tree.step}",
    )  # fmt: skip
    if told := used(tree.use):
        head.append(f"  {told}")
    return head


def _drawn(nodes: Sequence[Node], before: str, options: _Options) -> Iterator[Text]:
    groups = list(_folded(nodes, options.everything))
    for place, group in enumerate(groups):
        is_last = place == len(groups) - 1
        corner, below = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        if len(group) > 1:
            yield Text.assemble((before + corner, "dim"), (_summary(group), "dim"))
            continue
        node = group[0]
        yield _line(node, before + corner, options.now_ns)
        inner = before + below
        yield from (Text.assemble((inner, "dim"), more) for more in _more(node, options.verbose))
        yield from _drawn(node.children, inner, options)


def _folded(nodes: Sequence[Node], everything: bool) -> Iterator[list[Node]]:
    """Single nodes, and groups of those in the middle of a long run that went well."""
    run: list[Node] = []
    for node in nodes:
        if not everything and node.kind in ("step", "model", "tool", "effect", "span") and _went_well(node):
            run.append(node)
            continue
        yield from _folded_run(run)
        run = []
        yield [node]
    yield from _folded_run(run)


def _folded_run(run: list[Node]) -> Iterator[list[Node]]:
    if len(run) < FOLDED_FROM:
        yield from ([node] for node in run)
        return
    yield from ([node] for node in run[:FIRST])
    yield run[FIRST:-LAST]
    yield from ([node] for node in run[-LAST:])


def _went_well(node: Node) -> bool:
    return all(one.status == "ok" for one in node.walk())


def _summary(group: Sequence[Node]) -> str:
    names = Counter(str(node.facts.get("node") or node.name) for node in group)
    told = ", ".join(f"{plain(name, 40)} ×{count}" for name, count in names.most_common(4))
    more = ", …" if len(names) > 4 else ""
    took = span_of(sum(node.duration_ns or 0 for node in group))
    return f"⋮  {len(group)} more, all well: {told}{more}  {took}  (--all shows them)"


def _line(node: Node, before: str, now_ns: int) -> Text:
    mark, colour = MARKS[node.status]
    line = Text.assemble((before, "dim"), (mark, colour), (plain(node.name, 120), colour or KINDS.get(node.kind, "")))
    if node.status == "open" and node.started_ns is not None:
        line.append(f"  since {span_of(max(now_ns - node.started_ns, 0))}", "dim")
    elif took := span_of(node.duration_ns):
        line.append(f"  {took}", "dim")
    if node.kind == "leg":
        at = (
            ""
            if node.started_ns is None
            else f"{datetime.fromtimestamp(node.started_ns / 1e9, UTC):%Y-%m-%d %H:%M:%SZ}"
        )
        line.append(f"  {plain(str(node.facts.get('worker', '')), 60)}  {at}", "dim")
    if told := used(node.use):
        line.append(f"  {told}", "dim")
    if node.detail:
        line.append(f"  {plain(node.detail)}", colour if node.is_wrong else "")
    if not node.is_wrong:  # of what failed every word is shown
        line.no_wrap, line.overflow = True, "ellipsis"
    return line


def _more(node: Node, verbose: bool) -> Iterator[Text]:
    if node.kind == "step" and node.is_wrong and node.stack:
        told = stack_lines(node.stack, node.whole_stack or node.stack, verbose=verbose)
        yield from (Text(_readable(line), "dim") for line in told)
    if node.resume and not any(child.resume for child in node.children):
        yield Text.assemble(("next: ", "bold"), plain(node.resume))


def _cut(drawn: Iterator[Text]) -> Iterator[Text]:
    tail: deque[Text] = deque(maxlen=TAIL)
    left_out = 0
    for number, line in enumerate(drawn):
        if number < HEAD:
            yield line
            continue
        left_out += len(tail) == TAIL
        tail.append(line)
    if left_out:
        yield Text(f"⋮  {counted(left_out, 'line is', 'lines are')} left out here: --leg N, --errors or --all", "dim")
    yield from tail
