"""Secrets that come to a server: in headers, in what clients keep there, and in addresses that it is told to call.

What a client keeps (metadata of threads and assistants, items, inputs of schedules, payloads of signals, addresses of
webhooks) is in the columns listed here and in answers to that client. It is in no log, span or metric, in no
message but that of the run it belongs to, and headers are nowhere at all.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.cli.canary_graph import known, word
from tests.cli.canary_scene import DATABASES, Ear, Elsewhere, Scene, a_folder, holds
from tests.cli.folder import COMMAND, environment
from tests.support.waiting import PATIENCE, until

KEPT = {
    "thread-metadata": {"threads.metadata_json"},
    "assistant-metadata": {"assistants.metadata_json"},
    "assistant-config": {
        "assistants.config_json",
        "runs.kwargs_json",
        "agent_jobs.run_json",
        "deliveries.body_json",
    },
    "item": {"store.value"},
    "schedule": {"schedules.input_json", "schedules.options_json"},
    "signal": {"signals.payload_json"},
    "run-webhook": {"runs.kwargs_json", "runs.webhook", "deliveries.url", "deliveries.body_json"},
}
IN_THE_RUNS_MESSAGE = ["assistant-config", "run-webhook"]
"""A run's own webhook is told of the run as its client made it, by LangGraph's protocol."""
NOWHERE = ("door", "door-key", "door-cookie", "provider-header", "provider-body", "request-header", "address", "query")
HEADERS = {
    "Authorization": f"Bearer {word('door')}",
    "X-Auth-Token": known("door-key"),
    "Cookie": f"session={word('door-cookie')}",
}


def visit(client: httpx.Client, ear: Ear) -> str:
    """Leave a secret wherever a client can; returns the job that failed."""

    def ask(method: str, path: str, body: Any, *expected: int, **more: Any) -> Any:
        answer = client.request(method, path, json=body, **more)
        assert answer.status_code in (expected or (200, 201, 204)), (path, answer.text)
        return answer.json() if answer.content else None

    told_apart = {"graph_id": "careless", "config": {"configurable": {"api_token": known("configurable")}}}
    assert known("configurable") not in json.dumps(ask("POST", "/assistants", told_apart, 422))
    assistant = ask(
        "POST",
        "/assistants",
        {
            "graph_id": "careless",
            "config": {"configurable": {"of": word("assistant-config")}},
            "metadata": {"note": word("assistant-metadata")},
        },
    )
    thread = ask("POST", "/threads", {"metadata": {"note": word("thread-metadata")}})
    ask("PUT", "/store/items", {"namespace": ["notes"], "key": "one", "value": {"note": word("item")}})
    ask("POST", "/everstep/signals/paid", {"payload": {"note": word("signal")}})
    at = {"schedule": "0 0 1 1 *", "input": {"how": "fail", "note": word("schedule")}, "assistant_id": "careless"}
    ask("POST", "/runs/crons", at)
    told = {"note": word("provider-body"), "key": known("provider-body")}
    ask("POST", "/webhooks/nobody", told, 401, 403, 404, headers={"X-Signature": word("provider-header")})
    run = {
        "assistant_id": assistant["assistant_id"],
        "input": {"how": "fail", "note": "plain"},
        "webhook": f"{ear.url}/told?of={word('run-webhook')}",
    }
    runs = f"/threads/{thread['thread_id']}/runs"
    refused = ask("POST", runs, {**run, "webhook": f"{ear.url}/told?token={word('address')}"}, 422)
    assert word("address") not in json.dumps(refused)
    where = f"{runs}/{ask('POST', runs, run)['run_id']}"
    until(lambda: ask("GET", where, None)["status"] == "error", "the run's end")
    until(lambda: "/told" in ear.heard, "the run's webhook")
    return str(ask("GET", "/everstep/jobs", None)["jobs"][0]["id"])


@contextmanager
def served(scene: Scene) -> Iterator[httpx.Client]:
    """A server for a scene's folder, and a client that knocks with secrets; the scene gets what the server wrote."""
    folder = scene.folder
    at = {"EVERSTEP_STORE": folder.url} if isinstance(folder, Elsewhere) else {}
    log = folder.path / "log"
    with log.open("wb") as writing:
        server = subprocess.Popen(
            [*COMMAND, "up", "--port", "0", "--json"],
            cwd=folder.path,
            env=environment(**scene.variables, **at, OTEL_METRIC_EXPORT_INTERVAL="200"),
            stdout=subprocess.PIPE,
            stderr=writing,
        )
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            assert line, log.read_text()
            url = json.loads(line)["url"]
            with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False, headers=HEADERS) as client:
                yield client
                scene.written["metrics of the server"] = client.get("/everstep/metrics").raise_for_status().content
            server.terminate()
            scene.written["told"], _ = server.communicate(timeout=PATIENCE)
        finally:
            server.kill()
            server.wait()
    scene.written["log"] = log.read_bytes()


@pytest.fixture(scope="module", params=DATABASES)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A server that was visited, and what it wrote and sent."""
    with Ear().open() as ear, a_folder(tmp_path_factory.mktemp("served"), request.param) as folder:
        scene = Scene(folder, request.param, ear)
        with (folder.path / "everstep.toml").open("a") as settings:
            settings.write('[webhooks]\nallow = ["127.0.0.1"]\n')
        with served(scene) as client:
            visit(client, ear)
        scene.commands("traces flush")
        yield scene


def test_what_clients_keep_is_where_it_belongs(scene: Scene) -> None:
    """In the columns that are for it, and in no other."""
    assert scene.places(word(place) for place in KEPT) == {word(place): at for place, at in KEPT.items()}


def test_headers_and_what_is_refused_are_not_in_the_record(scene: Scene) -> None:
    """Whoever knocks with a secret leaves none of it, also where nobody opens; errors of nodes lose theirs."""
    assert scene.left(secret(place) for place in NOWHERE for secret in (known, word)) == []


def test_nothing_of_it_is_written_or_sent(scene: Scene) -> None:
    """Logs, lines of `--json`, metrics, spans and messages hold neither headers nor what clients keep."""
    assert b"step 1 work" in b"".join(scene.ear.heard["/v1/traces"])
    assert b"LookupError" in scene.written["log"]
    assert b"everstep_jobs" in scene.written["metrics of the server"]
    content = dict(scene.written)
    content |= {f"sent to {path}": b"\n".join(bodies) for path, bodies in scene.ear.heard.items()}
    places = (*NOWHERE, *KEPT, "configurable", "metadata", "tag", "state", "error", "answer", "prompt")
    found = {
        name: [place for place in places for secret in (known, word) if holds(told, secret(place))]
        for name, told in content.items()
    }
    assert {name: which for name, which in found.items() if which} == {"sent to /told": IN_THE_RUNS_MESSAGE}
