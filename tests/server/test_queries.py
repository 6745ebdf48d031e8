"""Query parameters that a path does not know."""

from __future__ import annotations

import httpx

from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from everstep.server.app import create_app
from tests.support.jobs import chain


async def test_a_query_parameter_is_honoured_or_refused_by_its_name(store: Store) -> None:
    """One that the path takes passes; another is answered with 422, its name and what there is."""
    app = create_app(store, GraphCatalogue.from_graphs({"agent": chain(lambda _s: {})}))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        assert (await client.get("/assistants/agent/graph", params={"xray": "true"})).status_code == 200
        for path in ("/assistants/agent/graph", "/everstep/jobs"):
            refused = await client.get(path, params={"colour": "red"})
            assert refused.status_code == 422
            assert "colour is not supported" in refused.json()["detail"]
        assert (await client.get("/ok", params={"once": "1"})).status_code == 200
