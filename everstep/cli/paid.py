"""Lines about the paid work of a job, for `everstep show`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everstep.checkpoints.quote import money
from everstep.cli.views import text


def paid_lines(view: dict[str, Any] | None) -> Iterator[str]:
    """What `everstep show` says of a job's paid work.

    Args:
        view: As `paid_view.of` gives it.
    """
    if view is None:
        return
    price: dict[str, Any] = view["price"] or {"decimals": 0, "text": "nothing"}

    def told(amount: int) -> str:
        return f"{money(amount, price['decimals'])} {view['currency'] or ''}".rstrip()

    yield f"paid       {view['stage']}; charged {told(view['charged'])}, refunded {told(view['refunded'])}"
    yield f"request    {text(view['request'])}"
    for task in view["tasks"]:
        done = "" if task["progress"] is None else f", {task['progress']} %"
        error = "" if task["error"] is None else f"  {text(task['error'], 120)}"
        where = f"at {text(task['provider'], 40)}, generation {task['generation']}"
        yield f"task       {task['id']}  {task['state']}{done} {where}{error}"
    for artefact in view["artefacts"]:
        yield f"artefact   {text(artefact['file'] if isinstance(artefact, dict) and 'file' in artefact else artefact)}"
