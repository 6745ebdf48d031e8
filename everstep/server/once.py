"""`Idempotency-Key`: a creating request that is sent again creates nothing again, and gets the answer it had.

A path that creates takes `once: AskedOnce` and lets it run its one write:

    @router.post("/threads")
    async def create_thread(body: ThreadCreate, served: ServedBy, caller: CalledBy, once: AskedOnce) -> Response:
        def create(connection: Connection) -> Reply:
            thread = conversations.create(connection, owner=caller.makes_for, now=now, …)
            return Reply(200, view(thread), {"Content-Location": f"/threads/{thread.thread_id}"})

        return (await once.write(create)).response()

The write and the reply are one commit. The same key with the same request (method, path, query and body) gets the same
answer with `Idempotency-Replayed: true`; with another request 409. Requests that come at once wait for the first. Keys
belong to an owner and a path. What fails is not remembered: neither an error's answer, nor what it had written. Without
the header `write` is a plain write. A path that answers otherwise than with the reply itself (a stream of the run that
was created, say) reads `reply.body` and `replayed`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request
from sqlalchemy import Connection
from starlette.responses import Response

from everstep.checkpoints import jobs, replies
from everstep.checkpoints.replies import Asked, Reply
from everstep.checkpoints.store import Store
from everstep.errors import IdempotencyKeyInvalid
from everstep.server.bodies import apart
from everstep.server.context import CalledBy, ServedBy

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
LONGEST_KEY = 255


@dataclass(frozen=True)
class Answered:
    """What a creating request is answered.

    Attributes:
        reply: The answer.
        replayed: Whether it is that of an earlier request, and nothing was created now.
    """

    reply: Reply
    replayed: bool

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer."""
        return {**self.reply.headers, **({REPLAYED: "true"} if self.replayed else {})}

    def response(self) -> Response:
        """The answer itself; the same bytes each time."""
        body = b"" if self.reply.status == 204 else json.dumps(self.reply.body, separators=(",", ":")).encode()
        media_type = None if self.reply.status == 204 else "application/json"
        return Response(body, status_code=self.reply.status, headers=self.headers, media_type=media_type)


@dataclass(frozen=True)
class Once:
    """Runs the write of a creating request."""

    store: Store
    asked: Asked | None

    async def write(self, operation: Callable[[Connection], Reply]) -> Answered:
        """Create, unless this request has been answered before.

        Args:
            operation: Creates in the write transaction it is given, and tells the answer; it may be run again if the
                transaction is.

        Raises:
            IdempotencyConflict: The key came before with another request.
            EverstepError: What the operation raised; then nothing is written and nothing remembered.
        """
        asked, now = self.asked, self.store.clock.now_ms()
        if asked is None:
            return Answered(await self.store.awrite(operation), replayed=False)

        def once(connection: Connection) -> Answered:
            known = replies.begin(connection, asked, now=now)
            if known is not None:
                return Answered(known, replayed=True)
            return Answered(replies.remember(connection, asked, operation(connection)), replayed=False)

        return await self.store.awrite(once)


async def asked_once(
    request: Request,
    served: ServedBy,
    caller: CalledBy,
    key: Annotated[str | None, Header(alias=HEADER, description="The same again gets the same answer.")] = None,
) -> Once:
    """What runs the request's write.

    Raises:
        IdempotencyKeyInvalid: The header is empty, longer than `LONGEST_KEY` characters, or not printable ASCII.
    """
    if key is None:
        return Once(served.store, None)
    if not 0 < len(key) <= LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise IdempotencyKeyInvalid(
            f"the {HEADER} is empty, longer than {LONGEST_KEY} characters, or not printable ASCII",
            next_step="give a random UUID",
        )
    route = f"{request.method} {request.scope['path'].removeprefix(request.scope.get('root_path', ''))}"
    digest = await apart(_digest, request.query_params.multi_items(), await request.body())
    return Once(served.store, Asked(caller.makes_for, route, key, digest))


def _digest(query: list[tuple[str, str]], body: bytes) -> str:
    """Two requests have one exactly if they ask the same; the order of members in an object does not matter."""
    try:
        value: object = json.loads(body) if body else None
    except ValueError:
        value = hashlib.sha256(body).hexdigest()
    return jobs.loose_digest({"query": sorted(map(list, query)), "body": value})


AskedOnce = Annotated[Once, Depends(asked_once)]
"""As the type of a path function's parameter: what runs its write."""
