"""The description of the interface is true: schemathesis tries every path of the application with what it allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from everstep.checkpoints import deliveries
from everstep.checkpoints.store import Store
from everstep.graphs.loader import GraphCatalogue
from everstep.graphs.policies import Policies
from everstep.nodes.providers.registry import Entry, Providers
from everstep.runtime.worker import Worker
from everstep.server.app import create_app
from everstep.server.context import Settings
from tests.support.native import agent, job_of
from tests.support.paid import Scripted, task_of
from tests.support.record import fresh

CHECKS = [not_a_server_error, response_schema_conformance, status_code_conformance, content_type_conformance]
EXAMPLES = 20
ENDLESS = {
    "POST /threads/{thread_id}/runs/stream": "no worker runs the job, so its stream has no end",
    "POST /runs/stream": "as before",
    "GET /threads/{thread_id}/runs/{run_id}/stream": "as before",
    "GET /runs/{run_id}/stream": "as before",
    "POST /threads/{thread_id}/runs/wait": "it answers when the run is over",
    "POST /runs/wait": "as before",
    "GET /threads/{thread_id}/runs/{run_id}/join": "as before",
    "GET /runs/{run_id}/join": "as before",
    "GET /threads/{thread_id}/stream": "it follows a thread as long as there is one",
    "POST /threads/{thread_id}/stream/events": "as before",
    "GET /everstep/jobs/{job_id}/stream": "it follows a job to its end, which pending ones have not",
}
"""What is not tried, and why; tests of their own read these streams."""
LAST = ("DELETE", "prune", "purge")
"""What takes away that the others look for comes after them."""
HOOK = "https://example.invalid/hook"
TRIGGER = {"source": "http", "graph": "agent", "input": {"log": [{"path": "/body", "default": 1}]}}


class Tried:
    """An application on a record in which something has happened, and what its paths may name."""

    def __init__(self, store: Store) -> None:
        self.graphs = GraphCatalogue.from_graphs({"agent": agent()})
        self.store = store
        self.known: dict[str, list[str]] = {"assistant_id": ["agent"], "name": ["api.example.com"], "schedule": ["s"]}
        policies = Policies.model_validate({"triggers": {"api.example.com": TRIGGER}})
        provider = Scripted("films")
        providers = Providers({"films": Entry(lambda: provider, check=lambda _headers, _body, _now: None)})
        settings = Settings(wait_s=0.02)
        self.app: FastAPI = create_app(store, self.graphs, policies=policies, settings=settings, providers=providers)

    async def fill(self) -> None:
        """Jobs in every state, a thread with runs, reviews, a schedule, a cron, an item."""
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:

            async def made(path: str, body: Any, name: str) -> str:
                answer = await client.post(path, json=body)
                assert answer.status_code == 200, answer.text
                return str(answer.json()[name])

            jobs = [
                (await job_of(client, wish, max_attempts=1, services=["api.example.com"], webhook=HOOK))["id"]
                for wish in ("end", "ask", "fail")
            ]
            thread = await made("/threads", {}, "thread_id")
            run = {"assistant_id": "agent", "input": {"log": []}}
            runs = [await made(f"/threads/{thread}/runs", run, "run_id") for _ in range(2)]
            schedule = {"name": "s", "graph": "agent", "cron": "0 0 * * *", "overlap": "skip"}
            await made("/everstep/schedules", schedule, "id")
            cron = await made("/runs/crons", {**run, "schedule": "0 0 * * *"}, "cron_id")
            self.known["assistant_id"].append(await made("/assistants", {"graph_id": "agent"}, "assistant_id"))
            item = {"namespace": ["a"], "key": "k", "value": {"v": 1}}
            assert (await client.put("/store/items", json=item)).status_code == 204
            await Worker(self.store, self.graphs).run_async(until_idle=True)
            jobs.append((await job_of(client, "later"))["id"])
            event = await made("/everstep/triggers/api.example.com", {"a": 1}, "event")
        self.known |= {
            "job_id": jobs,
            "thread_id": [thread, *jobs],
            "run_id": runs,
            "cron_id": [cron],
            "event_id": [event],
        }
        tasks = [task_of(self.store, to, to=to) for to in ("created", "submission_unknown", "pending")]
        self.known |= {"task_id": [task.public_id for task in tasks], "provider": ["films"]}
        self.known["delivery_id"] = [one.public_id for one in self.store.read(deliveries.every)]
        self.known["review_id"] = [review.public_id for review in self.store.reviews()]

    def named(self, case: schemathesis.Case) -> None:
        """Have three of four cases name what is there, by the text they would have named."""
        for name, found in self.known.items():
            text = str((case.path_parameters or {}).get(name, ""))
            if text and len(text) % 4:
                case.path_parameters[name] = found[len(text) % len(found)]
        body: Any = case.body
        if isinstance(body, dict) and len(str(body)) % 4:
            body |= {name: "agent" for name in ("graph", "graph_id", "assistant_id") if isinstance(body.get(name), str)}
            body |= {name: "0 0 * * *" for name in ("cron", "schedule") if name in body}
            body |= {"timezone": "UTC"} if "timezone" in body else {}
            body |= {"services": ["api.example.com"]} if "services" in body else {}
            body |= {"webhook": "https://example.org/hook"} if isinstance(body.get("webhook"), str) else {}
            body |= {"jobs": self.known["job_id"]} if body.get("jobs") else {}


@pytest.fixture
async def tried(tmp_path: Path) -> Iterator[Tried]:
    """The application, and what it has."""
    with fresh(tmp_path) as store:
        found = Tried(store)
        await found.fill()
        yield found


def test_schemathesis_finds_nothing(tried: Tried) -> None:
    """Whatever it sends, no answer is a failure of the server's, and each is one that the description promises."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", tried.app)
    operations = [found.ok() for found in schema.get_all_operations()]
    names = {f"{one.method.upper()} {one.path}": one for one in operations}
    assert set(ENDLESS) <= set(names)
    for name in sorted(set(names) - set(ENDLESS), key=lambda name: (any(last in name for last in LAST), name)):

        @seed(1)
        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=names[name].as_strategy())
        def finds_nothing(case: schemathesis.Case) -> None:
            tried.named(case)
            case.call_and_validate(checks=CHECKS)

        finds_nothing()
