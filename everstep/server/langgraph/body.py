"""What the modules of LangGraph's paths share: bodies whose fields are honoured or refused, pages, and JSON answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from everstep.checkpoints.store import Store
from everstep.runtime.results import json_ready

MOST_IN_A_PAGE = 1000
MOST_OFFSET = 2**31 - 1
Limit = Annotated[int, Field(ge=1, le=MOST_IN_A_PAGE)]
Offset = Annotated[int, Field(ge=0, le=MOST_OFFSET)]
Order = Literal["asc", "desc"]


class Body(BaseModel):
    """A request's body; a field it does not know is refused."""

    model_config = ConfigDict(extra="forbid")


class Page(Body):
    """Which part of a list is wanted."""

    limit: Limit = 10
    offset: Offset = 0


async def answer(store: Store, value: Any, **headers: str) -> Response:
    """Anything a graph may hold as a JSON answer, made without blocking the event loop."""
    body = await store.in_thread(lambda: json.dumps(json_ready(value)).encode())
    return Response(body, media_type="application/json", headers=headers)


def page_headers(response: Response, page: Page, found: Sequence[Any], total: int) -> None:
    """Tell how many there are, and where the next page begins."""
    response.headers["X-Pagination-Total"] = str(total)
    following = page.offset + len(found)
    if found and following < total:
        response.headers["X-Pagination-Next"] = str(following)


def selected(view: dict[str, Any], fields: Sequence[str] | None) -> dict[str, Any]:
    """The fields of an answer that were asked for; all, if none was named."""
    return view if not fields else {name: view[name] for name in fields if name in view}
