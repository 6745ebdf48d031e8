"""The description of the interface (OpenAPI) is complete for every path."""

from __future__ import annotations

from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from everstep.server.app import create_app
from everstep.server.description import METHODS, TAGS


def test_every_path_tells_all_that_a_client_must_know(store: Store) -> None:
    """What it does, in one line and in full, under which heading, what it answers and which errors, who may call."""
    described = create_app(store, GraphCatalogue.from_graphs({})).openapi()
    assert set(described["components"]["securitySchemes"]) == {"apiKey", "bearer"}
    for path, operations in described["paths"].items():
        for method in set(METHODS) & set(operations):
            operation, what = operations[method], f"{method} {path}"
            assert operation["summary"], what
            assert operation["description"], what
            assert set(operation["tags"]) <= set(TAGS), what
            assert len(operation["summary"]) <= 120, what
            statuses = set(operation["responses"])
            assert {"403"} <= statuses, what
            assert operation.get("security") == [] or {"401", "503"} <= statuses, what
            assert "requestBody" not in operation or {"400", "413", "422"} <= statuses, what
            assert "{" not in path or {"404", "422"} <= statuses, what
            for status, answer in operation["responses"].items():
                assert answer["description"], what
                empty = status in ("202", "204") and "content" not in answer
                assert empty or all("schema" in one for one in answer["content"].values()), (what, status)


def test_what_is_open_to_everybody_says_so(store: Store) -> None:
    """Whether the server lives and can work, and what is signed: events of triggers, webhooks of providers."""
    paths = create_app(store, GraphCatalogue.from_graphs({})).openapi()["paths"]
    found = {path for path, operations in paths.items() for one in operations.values() if one.get("security") == []}
    signed = {"/everstep/triggers/{name}", "/webhooks/{provider}"}
    assert found == {"/ok", "/everstep/health", "/everstep/ready", *signed}
