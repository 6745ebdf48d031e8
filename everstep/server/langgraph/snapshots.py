"""Where a thread stands, as LangGraph's clients read it: `ThreadState`, from the engine's `StateSnapshot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.types import Interrupt, PregelTask, StateSnapshot

from everstep.checkpoints.waits import asks_a_person
from everstep.errors import RequestInvalid
from everstep.observability.exception_chain import text_of
from everstep.runtime.results import json_ready

FIELDS = ("values", "next", "checkpoint", "metadata", "created_at", "parent_checkpoint", "tasks", "interrupts")
OF_CHECKPOINT = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")


def view(snapshot: StateSnapshot) -> dict[str, Any]:
    """All of it, as values a graph may hold: `json_ready` makes them JSON."""
    checkpoint = place(snapshot.config)
    return {
        "values": snapshot.values,
        "next": list(snapshot.next),
        "checkpoint": checkpoint if checkpoint and checkpoint.get("checkpoint_id") else None,
        "metadata": snapshot.metadata or {},
        "created_at": snapshot.created_at,
        "parent_checkpoint": place(snapshot.parent_config),
        "tasks": [_task(task) for task in snapshot.tasks],
        "interrupts": _asked(snapshot.interrupts),
    }


def empty() -> dict[str, Any]:
    """Where a thread stands on which nothing ever ran."""
    nothing: dict[str, Any] = {"values": {}, "next": [], "checkpoint": None, "metadata": {}, "created_at": None}
    return {**nothing, "parent_checkpoint": None, "tasks": [], "interrupts": []}


def place(config: RunnableConfig | None) -> dict[str, Any] | None:
    """The checkpoint that a config names."""
    if config is None:
        return None
    known: Mapping[str, Any] = config.get("configurable", {})
    named = {name: known[name] for name in OF_CHECKPOINT if known.get(name) is not None}
    return {"checkpoint_ns": "", **named} if "thread_id" in named else None


def interrupts_by_task(snapshot: StateSnapshot) -> dict[str, Any]:
    """What waits for a person, by the task that asks; JSON data."""
    return {task.id: json_ready(asked) for task in snapshot.tasks if (asked := _asked(task.interrupts))}


def _asked(interrupts: Sequence[Interrupt]) -> list[Interrupt]:
    """Those that ask a person; the others say that a node waits for a signal or a moment."""
    return [each for each in interrupts if asks_a_person(each.id)]


def check_selection(fields: Sequence[str] | None) -> None:
    """Refuse fields that a state has not.

    Raises:
        RequestInvalid: It names one.
    """
    unknown = [one for one in fields or () if one not in FIELDS and not one.startswith("values.")]
    if unknown:
        raise RequestInvalid(
            f"select names {unknown[0][:80]!r}, which no state has",
            next_step=f"take {', '.join(FIELDS)}, or values.KEY",
            field="select",
        )


def selected(state: dict[str, Any], fields: Sequence[str] | None) -> dict[str, Any]:
    """The fields that were asked for, `values.KEY` for one part of the values; all, if none was named."""
    if not fields:
        return state
    chosen = {name: state[name] for name in fields if name in state}
    keys = [one.removeprefix("values.") for one in fields if one.startswith("values.")]
    values: Any = state["values"]
    if keys and "values" not in chosen and isinstance(values, Mapping):
        known = cast("Mapping[str, Any]", values)
        chosen["values"] = {key: known[key] for key in keys if key in known}
    return chosen


def _task(task: PregelTask) -> dict[str, Any]:
    below = task.state
    error: Any = task.error
    return {
        "id": task.id,
        "name": task.name,
        "path": list(cast("tuple[Any, ...]", task.path)),
        "error": None if error is None else error if isinstance(error, str) else text_of(error),
        "interrupts": _asked(task.interrupts),
        "checkpoint": None if below is None or isinstance(below, StateSnapshot) else place(below),
        "state": view(below) if isinstance(below, StateSnapshot) else None,
        "result": task.result,
    }
