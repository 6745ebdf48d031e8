"""A trace as one self-contained page: nothing is loaded, nothing of the trace is ever read as markup or code.

The data stand in a `script` element that is not run, as JSON without a `<` in it; the page's own script puts them into
the document as text only. The content security policy allows nothing but that script and that style, by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from everstep.runtime.trace.tree import Node, TraceTree, moment

LIMIT = 10_000
"""Entries on a page; of more, those that failed and what they happened in come first."""


def page(tree: TraceTree) -> bytes:
    """The page of a trace, in UTF-8."""
    parts = files("everstep.runtime.trace") / "page_parts"
    style, script = ((parts / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    policy = f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; base-uri 'none'"
    filled = {
        "POLICY": f"{policy}; form-action 'none'",
        "TITLE": html.escape(f"{tree.graph} · {tree.job_id} · {tree.status}"),
        "STYLE": style,
        "DATA": _harmless_json(_data(tree)),
        "SCRIPT": script,
    }
    written: list[str] = []
    for part in (parts / "page.html").read_text(encoding="utf-8").split("%%"):
        written.append(filled.get(part, part))  # one pass: what was filled in is not looked at again
    return "".join(written).encode("utf-8", "backslashreplace")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _harmless_json(value: Any) -> str:
    """JSON that no parser of HTML can take for markup; it is pure ASCII."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(tree: TraceTree) -> dict[str, Any]:
    chosen = _chosen(tree)
    moments = [node.started_ns for node in chosen.values() if node.started_ns is not None]
    origin = min(moments, default=tree.drawn_at_ns)
    left_out = tree.count() - len(chosen)
    return {
        "job": tree.job_id,
        "graph": tree.graph,
        "thread": tree.thread_id,
        "status": tree.status,
        "step": tree.step,
        "use": tree.use.as_dict(),
        "origin": moment(origin),
        "originMs": origin // 1_000_000,
        "end": _offset(tree.drawn_at_ns, origin),
        "drawn": moment(tree.drawn_at_ns),
        "omitted": tree.omitted + left_out,
        "version": version("everstep"),
        "traces": {str(leg.number): leg.trace_id for leg in tree.legs},
        "nodes": [_node(node, origin, chosen) for node in tree.nodes if id(node) in chosen],
    }


def _chosen(tree: TraceTree) -> dict[int, Node]:
    """The nodes for which there is room, by identity."""
    everything = [node for top in tree.nodes for node in top.walk()]
    if len(everything) <= LIMIT:
        return {id(node): node for node in everything}
    chosen = {id(top): top for top in tree.nodes[:LIMIT]}
    for only_wrong in (True, False):
        for top in tree.nodes:
            _choose(top, [], only_wrong, chosen)
    return chosen


def _choose(node: Node, above: list[Node], only_wrong: bool, chosen: dict[int, Node]) -> None:
    line = [*above, node]
    if node.is_wrong or not only_wrong:
        new = {id(one): one for one in line if id(one) not in chosen}
        if len(chosen) + len(new) <= LIMIT:
            chosen.update(new)
    for child in node.children:
        _choose(child, line, only_wrong, chosen)


def _node(node: Node, origin: int, chosen: dict[int, Node]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "kind": node.kind,
        "name": node.name,
        "status": node.status,
        "start": _offset(node.started_ns, origin),
        "end": _offset(node.ended_ns, origin),
        "detail": node.detail,
        "resume": node.resume,
        "stack": node.stack,
        "wholeStack": node.whole_stack if node.whole_stack != node.stack else None,
        "use": {key: value for key, value in node.use.as_dict().items() if value is not None},
        "facts": node.facts,
        "children": [_node(child, origin, chosen) for child in node.children if id(child) in chosen],
    }
    return {key: value for key, value in told.items() if value not in (None, "", {}, [])}


def _offset(at_ns: int | None, origin: int) -> float | None:
    """Milliseconds since the origin."""
    return None if at_ns is None else round((at_ns - origin) / 1_000_000, 3)
