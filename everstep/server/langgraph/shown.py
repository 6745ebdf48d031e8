"""What LangGraph's paths answer, for the description of the interface; clients of LangGraph know these forms.

Members are optional where a request can select some of them.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

Values = Any
"""A graph's state: whatever its schema says."""


class Place(BaseModel):
    """A checkpoint."""

    thread_id: str
    checkpoint_ns: str = ""
    checkpoint_id: str | None = None
    checkpoint_map: dict[str, Any] | None = None


class AssistantShown(BaseModel):
    """A graph with a configuration."""

    assistant_id: str
    graph_id: str
    config: dict[str, Any]
    context: Any
    created_at: str
    updated_at: str
    metadata: dict[str, Any]
    version: int
    name: str
    description: str | None


class AssistantPart(BaseModel):
    """An assistant, or the members of it that were selected."""

    assistant_id: str = ""
    graph_id: str = ""
    metadata: dict[str, Any] = {}
    version: int = 1


class ThreadShown(BaseModel):
    """A thread, or the members of it that were selected."""

    thread_id: str = ""
    created_at: str = ""
    updated_at: str = ""
    state_updated_at: str = ""
    metadata: dict[str, Any] = {}
    status: Literal["idle", "busy", "interrupted", "error"] = "idle"
    config: dict[str, Any] = {}
    values: Values = None
    interrupts: dict[str, list[Any]] = {}
    error: Any = None


class StateShown(BaseModel):
    """Where a thread stood at a checkpoint, or the members of it that were selected."""

    values: Values = None
    next: list[str] = []
    checkpoint: Place | None = None
    metadata: dict[str, Any] = {}
    created_at: str | None = None
    parent_checkpoint: Place | None = None
    tasks: list[dict[str, Any]] = []
    interrupts: list[Any] = []


class StateChanged(BaseModel):
    """The checkpoint that was made."""

    checkpoint: Place


class RunShown(BaseModel):
    """A run, or the members of it that were selected."""

    run_id: str = ""
    thread_id: str = ""
    assistant_id: str = ""
    created_at: str = ""
    updated_at: str = ""
    status: Literal["pending", "running", "error", "success", "timeout", "interrupted"] = "pending"
    metadata: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    multitask_strategy: str = ""


class CronShown(BaseModel):
    """A cron, or the members of it that were selected."""

    cron_id: str = ""
    assistant_id: str | None = None
    thread_id: str | None = None
    on_run_completed: str | None = None
    end_time: str | None = None
    schedule: str = ""
    timezone: str | None = None
    created_at: str = ""
    updated_at: str = ""
    payload: dict[str, Any] = {}
    user_id: str | None = None
    next_run_date: str | None = None
    metadata: dict[str, Any] = {}
    enabled: bool = True


class ItemShown(BaseModel):
    """An item of the store; `score` where it was searched for."""

    namespace: list[str]
    key: str
    value: dict[str, Any]
    created_at: str
    updated_at: str
    score: float | None = None


class ItemList(BaseModel):
    """Items."""

    items: list[ItemShown]


class NamespaceList(BaseModel):
    """Namespaces."""

    namespaces: list[list[str]]


class Drawing(BaseModel):
    """A graph's nodes and edges."""

    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


class Schemas(BaseModel):
    """What a graph takes and gives, as JSON Schema; null where that has no such form."""

    graph_id: str
    input_schema: dict[str, Any] | None
    output_schema: dict[str, Any] | None
    state_schema: dict[str, Any] | None
    config_schema: dict[str, Any] | None
    context_schema: dict[str, Any] | None


class Alive(BaseModel):
    """The server answers."""

    ok: Literal[True]


class Info(BaseModel):
    """Versions, and what is supported."""

    version: str
    langgraph_py_version: str
    flags: dict[str, bool]


class CommandAnswer(BaseModel):
    """What became of a command."""

    type: Literal["success", "error"]
    id: int | str | None
    result: Any = None
    meta: dict[str, Any] | None = None
    error: str | None = None
    message: str | None = None


STREAM = "text/event-stream"
_STATE = "/threads/{thread_id}/state"
_RUNS = "/threads/{thread_id}/runs"
_ASSISTANT = "/assistants/{assistant_id}"

ANSWERS: dict[str, Any] = {
    "GET /ok": Alive,
    "GET /info": Info,
    "POST /assistants": AssistantShown,
    "POST /assistants/search": list[AssistantPart],
    f"GET {_ASSISTANT}": AssistantShown,
    f"PATCH {_ASSISTANT}": AssistantShown,
    f"POST {_ASSISTANT}/versions": list[AssistantShown],
    f"POST {_ASSISTANT}/latest": AssistantShown,
    f"GET {_ASSISTANT}/graph": Drawing,
    f"GET {_ASSISTANT}/schemas": Schemas,
    f"GET {_ASSISTANT}/subgraphs": dict[str, Any],
    f"GET {_ASSISTANT}/subgraphs/{{namespace}}": dict[str, Any],
    "POST /threads": ThreadShown,
    "POST /threads/search": list[ThreadShown],
    "GET /threads/{thread_id}": ThreadShown,
    "PATCH /threads/{thread_id}": ThreadShown | None,
    "POST /threads/{thread_id}/copy": ThreadShown,
    "POST /threads/{thread_id}/commands": CommandAnswer,
    f"GET {_STATE}": StateShown,
    f"POST {_STATE}": StateChanged,
    f"GET {_STATE}/{{checkpoint_id}}": StateShown,
    f"POST {_STATE}/checkpoint": StateShown,
    "POST /threads/{thread_id}/history": list[StateShown],
    "GET /threads/{thread_id}/history": list[StateShown],
    "GET /store/items": ItemShown | None,
    "POST /store/items/search": ItemList,
    "POST /store/namespaces": NamespaceList,
    f"POST {_RUNS}/crons": CronShown,
    "POST /runs/crons": CronShown,
    "PATCH /runs/crons/{cron_id}": CronShown,
    "POST /runs/crons/search": list[CronShown],
    f"POST {_RUNS}": RunShown,
    f"GET {_RUNS}": list[RunShown],
    "POST /runs": RunShown,
    "POST /runs/batch": list[RunShown],
    f"GET {_RUNS}/{{run_id}}": RunShown,
    "GET /runs/{run_id}": RunShown,
}
"""By method and path: what the answer is; of paths that are not named their own declaration tells."""

STREAMS = frozenset(
    {
        f"POST {_RUNS}/stream",
        "POST /runs/stream",
        f"GET {_RUNS}/{{run_id}}/stream",
        "GET /runs/{run_id}/stream",
        "GET /threads/{thread_id}/stream",
        "POST /threads/{thread_id}/stream/events",
    }
)
"""What answers with server-sent events."""


def schema_of(answer: Any) -> dict[str, Any]:
    """The JSON Schema of an answer, its parts named as the description names them."""
    return TypeAdapter(answer).json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
