"""What a request is answered with: the record, the graphs, the settings, and who asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import Annotated, cast

from fastapi import Depends, Request

from everstep.checkpoints.store import Store
from everstep.graphs.http_configuration import Cors, HttpConfiguration
from everstep.graphs.loader import GraphCatalogue
from everstep.graphs.policies import Policies
from everstep.nodes.providers.registry import Providers
from everstep.server.open_streams import OpenStreams

DEFAULT_WAIT_S = 30.0
MOST_BODY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class Settings:
    """How the server answers.

    Attributes:
        wait_s: How long a request waits for a job's end before it is told where to ask, seconds.
        most_body_bytes: The largest body that is read, bytes.
        cors: Web pages of which origins may call it from a browser; None: as `langgraph.json` says, by default none.
        hosts: By which names it may be called, so that no web page can call it by a name of its own (DNS rebinding);
            None: by any.
        key_memory_s: How long a key that was looked up counts without another look, seconds; so long a revoked one may
            still be taken.
    """

    wait_s: float = DEFAULT_WAIT_S
    most_body_bytes: int = MOST_BODY_BYTES
    cors: Cors | None = None
    hosts: frozenset[str] | None = None
    key_memory_s: float = 1.0


@dataclass(frozen=True)
class Caller:
    """Who asks.

    Attributes:
        owner: Whose jobs, threads and schedules are seen and made; None: everybody's are seen, and `default`'s made.
        scopes: What is allowed: `read`, `run`, `review`, `admin` (everything), or `*`, where nobody has to say who they
            are. A path that needs more than its method tells says so by `everstep.server.access.require`.
        identity: Who it is, for the record's history: the name of an API key, a user of the `auth` hook.
    """

    owner: str | None = None
    scopes: frozenset[str] = field(default_factory=lambda: frozenset({"*"}))
    identity: str = "http"

    @property
    def makes_for(self) -> str:
        """The owner of what this caller makes."""
        return self.owner or "default"

    def may(self, scope: str) -> bool:
        """Whether this is allowed; whoever may do anything may `read`."""
        return bool(self.scopes & {scope, "admin", "*"}) or (scope == "read" and bool(self.scopes))

    def sees(self, owner: str) -> bool:
        """Whether what belongs to this owner is there for the caller."""
        return self.owner is None or self.owner == owner


@dataclass(frozen=True)
class Served:
    """What the server serves.

    Attributes:
        store: The record.
        graphs: The graphs by name.
        policies: What `everstep.toml` says.
        settings: How it answers.
        http: What `langgraph.json` says about the server.
        streams: The streams that clients have open.
        providers: The providers of paid work.
        stopping: Set when the server stops: it cuts streams then, and their clients have not left.
    """

    store: Store
    graphs: GraphCatalogue
    policies: Policies
    settings: Settings
    http: HttpConfiguration = field(default_factory=HttpConfiguration)
    streams: OpenStreams = field(default_factory=OpenStreams)
    providers: Providers = field(default_factory=Providers)
    stopping: Event = field(default_factory=Event)


def served(request: Request) -> Served:
    """What the request's application serves."""
    return cast(Served, request.app.state.served)


async def _served(request: Request) -> Served:
    return served(request)


async def _caller(request: Request) -> Caller:
    return cast(Caller, getattr(request.state, "caller", None) or Caller())


ServedBy = Annotated[Served, Depends(_served)]
"""As the type of a path function's parameter: what is served."""
CalledBy = Annotated[Caller, Depends(_caller)]
"""As the type of a path function's parameter: who asks, as the middleware for access found.

All that a path depends on is `async`: FastAPI runs what is not in a thread of its own, for each request.
"""
