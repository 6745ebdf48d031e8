"""Where the server may listen, and what follows from it for who may call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from everstep.checkpoints import api_keys
from everstep.checkpoints.store import Store
from everstep.errors import ServerUnguarded
from everstep.graphs.http_configuration import Cors, HttpConfiguration
from everstep.server.browsers import THIS_MACHINE, with_local_pages
from everstep.server.context import Settings


def bounded(
    settings: Settings,
    store: Store,
    http: HttpConfiguration,
    *,
    host: str,
    is_local: bool,
    origins: Sequence[str] = (),
) -> Settings:
    """The settings of a server that listens there.

    Args:
        settings: How it answers otherwise.
        store: The record, which knows whether there are keys.
        http: What `langgraph.json` says.
        host: Where it listens, as it was asked for.
        is_local: Whether this machine alone can reach it.
        origins: Origins whose pages may call it, besides those that the configuration names.

    Raises:
        ServerUnguarded: Other machines can reach it, and nobody would have to say who they are.
    """
    now = store.clock.now_ms()
    asks = http.auth_path is not None or store.read(api_keys.any_made)
    if not is_local and http.auth_path is None and not store.read(lambda c: api_keys.any_valid(c, now=now)):
        raise ServerUnguarded(
            f"{host} can be reached from other machines, and anyone there could run jobs: no API key counts",
            next_step="make one with: everstep keys create NAME; or listen on this machine alone, without --host",
            host=host,
        )
    cors = http.cors or Cors()
    cors = replace(cors, allow_origins=(*cors.allow_origins, *origins))
    if is_local and http.cors is None:
        cors = with_local_pages(cors)
    names = None if asks or not is_local else THIS_MACHINE | {host.lower().strip("[]")}
    return replace(settings, cors=cors, hosts=names)
