"""Secrets in paid work, approvals, events, webhooks and schedules, looked for in every byte that Everstep writes.

What a graph, a person or a sender chose to keep is in the columns listed here, and shown by the commands that show
them. Nothing else is anywhere: above all not what a provider says as it fails, and no header but those that were named.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook

from tests.cli.canary_paid import known, word
from tests.cli.canary_scene import DATABASES, Ear, Scene, a_folder, holds
from tests.cli.test_canary_server import served
from tests.support.waiting import until

HOOKS = {name: f"whsec_{base64.b64encode(f'canary of {name} 4711'.encode()).decode()}" for name in ("films", "orders")}
SETTINGS = """
[webhooks]
allow = ["127.0.0.1"]

[providers.films]
use = "./canary_paid.py:Films"
poll_first = 0.05
poll_most = 0.1
webhook = {kind = "standard-webhooks", secret_env = "FILMS_SECRET"}

[triggers.orders]
source = "http"
signature = {kind = "standard-webhooks", secret_env = "ORDERS_SECRET"}
graph = "events"
input.how = {path = "/body/how"}
input.what = {path = "/body/what"}
input.body = {path = "/body"}
"""

STATE = {"checkpoints.checkpoint", "writes.value"}
RESULT = STATE | {"agent_jobs.result_json", "threads.values_json"}
JOB = {"show", "jobs", "told"}
TASK = {"provider show", "provider tasks", *JOB}
KEPT: dict[str, tuple[set[str], set[str]]] = {
    word("request"): ({"provider_tasks.request_json"}, {"show", "provider show"}),
    word("task-result"): (
        STATE | {"agent_jobs.result_json", "provider_tasks.result_json", "deliveries.body_json"},
        TASK | {"deliveries show"},
    ),
    word("task-note"): (STATE | {"agent_jobs.result_json", "provider_tasks.error_json"}, TASK),
    word("early-result"): ({"provider_events.status_json"}, {"provider events --admin"}),
    word("grant"): ({"ledger.reason"}, {"credits entries"}),
    word("job-webhook"): ({"agent_jobs.webhook", "deliveries.url"}, {"deliveries"}),
    word("approval-to"): ({"reviews.value_json", "writes.value"}, {"show", "review show", "review list"}),
    word("edited"): ({"effects.arguments_json", "reviews.answer_json", "reviews.resume_json"}, {"show", "review edit"}),
    word("paid"): (RESULT | {"effects.result"}, JOB),
    word("response"): (RESULT | {"reviews.answer_json", "reviews.resume_json"}, JOB | {"review respond"}),
    **{of("reason"): (RESULT | {"reviews.reason", "reviews.resume_json"}, JOB) for of in (known, word)},
    word("event-what"): (
        STATE | {"agent_jobs.payload_json", "trigger_events.body"},
        JOB | {"dlq show", "triggers show"},
    ),
    word("event-bare"): ({"trigger_events.body"}, {"triggers show"}),
    word("schedule-input"): (
        STATE | {"agent_jobs.payload_json", "schedules.input_json"},
        JOB | {"schedules", "dlq show"},
    ),
}
"""What was given to be kept: the columns of the record where it is, and the commands that may show it."""
PLACES = (
    "request submit-error submit-next lost-answer poll-error poll-header poll-query task-result task-error"
    " task-error-key task-note event-body event-error early-result callback-error callback-token grant job-webhook"
    " approval-to approval-argument approval-wording edited paid response reason event-header event-cookie"
    " event-anything event-what event-password event-bare event-signature event-job schedule-input"
).split()
CANARIES = [of(place) for place in PLACES for of in (known, word)] + [
    secret.removeprefix("whsec_") for secret in HOOKS.values()
]


def signed(secret: str, event: str, body: str) -> dict[str, str]:
    """The headers of a genuine message, with others that are nobody's business."""
    now = datetime.now(UTC)
    return {
        "content-type": "application/json",
        "webhook-id": event,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign(event, now, body),
        "authorization": f"Bearer {word('event-header')}",
        "cookie": f"session={word('event-cookie')}",
        "x-api-key": known("event-header"),
        "x-anything": word("event-anything"),
    }


class Visit:
    """What people, providers and senders do while a server runs."""

    def __init__(self, scene: Scene, client: httpx.Client) -> None:
        self._scene = scene
        self._client = client
        self.jobs: dict[str, str] = {}

    def post(self, path: str, secret: str, event: str, given: Mapping[str, Any], *expected: int) -> Any:
        """Send an event, signed."""
        body = json.dumps(given)
        answer = self._client.post(path, content=body, headers=signed(secret, event, body))
        assert answer.status_code in (expected or (200, 202)), (path, answer.text)
        self._scene.written[f"answer to {path} {event}"] = answer.content
        return answer.json()

    def submit(self, graph: str, how: str, *more: str) -> None:
        """Submit a job."""
        given = json.dumps({"how": how})
        ran = self._scene.folder.run("submit", graph, "--input", given, "--key", f"{graph} {how}", *more)
        assert ran.code == 0, ran
        self.jobs[how] = ran.out.strip()

    def settled(self, *hows: str) -> None:
        """Wait until these jobs came to rest."""

        def status(how: str) -> str:
            return str(self._client.get(f"/everstep/jobs/{self.jobs[how]}").json()["status"])

        for how in hows:
            until(lambda how=how: status(how) in ("done", "failed", "review"), f"the end of {how}")

    def answered(self, how: str, decision: str, *more: str) -> None:
        """Answer the question of a job, when it asks."""
        self.settled(how)
        reviews = json.loads(self._scene.folder.run("review", "--json").out)
        (review,) = [one["id"] for one in reviews if one["job"] == self.jobs[how]]
        self._scene.commands(f"review show {review}", f"review show {review} --json")
        ran = self._scene.folder.run("review", decision, review, *more)
        assert ran.code == 0, ran
        self._scene.written[f"review {decision}"] = (ran.out + ran.err).encode()


def visit(scene: Scene, client: httpx.Client) -> Visit:
    """Leave a secret in each place."""
    here = Visit(scene, client)
    hook = f"{scene.ear.url}/job?of={word('job-webhook')}"
    here.submit("films", "made", "--webhook", hook)
    for how in ("failed", "refused", "told"):
        here.submit("films", how)
    for how in ("plain", "secret", "no"):
        here.submit("payments", how)
    until(lambda: "pending" in scene.folder.run("provider", "tasks", "--job", here.jobs["told"]).out, "its task")
    here.post("/webhooks/films", HOOKS["films"], "garbled", {"note": known("event-body")}, 400, 422)
    orphan = {"id": "early", "film": "film-nobody", "state": "succeeded", "result": {"note": word("early-result")}}
    here.post("/webhooks/films", HOOKS["films"], "early", orphan)
    end = {"message": f"{known('callback-error')} password={word('callback-error')}", "token": word("callback-token")}
    here.post(
        "/webhooks/films", HOOKS["films"], "end", {"id": "end", "film": "film-told", "state": "failed", "error": end}
    )
    body = {
        "how": "fail", "what": word("event-what"), "note": known("event-what"), "password": word("event-password"),
    }  # fmt: skip
    for event in ("one", "one"):
        here.jobs["fail"] = here.post("/everstep/triggers/orders", HOOKS["orders"], event, body)["job"]
    here.post(
        "/everstep/triggers/orders", HOOKS["orders"], "bare", {"note": word("event-bare"), "key": known("event-bare")}
    )
    wrong = client.post(
        "/everstep/triggers/orders", content="{}", headers={"webhook-signature": word("event-signature")}
    )
    assert wrong.status_code == 401
    here.answered("plain", "edit", "--value", json.dumps({"to": word("edited"), "note": "less"}))
    here.answered("secret", "reject", "--reason", f"because of {word('reason')}, {known('reason')}")
    here.answered("no", "respond", "--value", json.dumps(f"rather {word('response')}"))
    here.settled(*here.jobs)
    ran = scene.folder.run("schedules", "fire", "yearly", "--json")
    here.jobs["fired"] = json.loads(ran.out)["job"]
    here.settled("fired")
    until(lambda: "/job" in scene.ear.heard, "the job's webhook")
    return here


@pytest.fixture(scope="module", params=DATABASES)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A server that was visited, and what every command says of it afterwards."""
    with Ear().open() as ear, a_folder(tmp_path_factory.mktemp("paid"), request.param) as folder:
        scene = Scene(folder, request.param, ear)
        shutil.copy(Path(__file__).with_name("canary_paid.py"), folder.path / "canary_paid.py")
        folder.configure(**{name: f"./canary_paid.py:{name}" for name in ("films", "payments", "events")})
        with (folder.path / "everstep.toml").open("a") as settings:
            settings.write(SETTINGS)
        scene.variables |= {"FILMS_SECRET": HOOKS["films"], "ORDERS_SECRET": HOOKS["orders"]}
        given = json.dumps({"how": "fail", "what": word("schedule-input")})
        for line in (
            ("credits", "grant", "default", "100.00", "EUR", "--reason", f"for {word('grant')}", "--key", "first"),
            (
                "schedules",
                "add",
                "yearly",
                "--graph",
                "events",
                "--cron",
                "0 0 1 1 *",
                "--overlap",
                "skip",
                "--input",
                given,
            ),
        ):
            ran = folder.run(*line)
            assert ran.code == 0, ran
        with served(scene) as client:
            visited = visit(scene, client)
        scene.commands("traces flush")
        jobs = visited.jobs.values()
        tasks = json.loads(folder.run("provider", "tasks", "--json").out)
        orders = json.loads(folder.run("triggers", "events", "--json").out)
        sent = json.loads(folder.run("deliveries", "list", "--all", "--json").out)
        scene.commands(
            *(f"{command} {job}{form}" for job in jobs for command in ("show", "trace") for form in ("", " --json")),
            *(f"show {job} --verbose" for job in jobs),
            *(f"history {job}" for job in jobs),
            *(f"trace {job} {to}" for job in jobs for to in ("--html -", f"--otlp {job}.json", "--verbose")),
            *(f"dlq show {visited.jobs[how]}{form}" for how in ("refused", "fail") for form in ("", " --json")),
            *(f"provider show {one['id']}{form}" for one in tasks for form in ("", " --admin", " --admin --json")),
            *(f"triggers show {one['id']}{form}" for one in orders for form in ("", " --json")),
            *(f"deliveries show {one['id']}{form}" for one in sent for form in ("", " --json")),
            *(
                f"{line}{form}"
                for line in (
                    "jobs", "dlq list", "review list", "provider list", "provider tasks", "provider events",
                    "provider events --admin", "triggers list", "triggers events", "deliveries list --all",
                    "schedules list", "schedules show yearly", "schedules history yearly", "credits entries default",
                    "credits balance default", "services", "doctor",
                )
                for form in ("", " --json")
            ),
            "metrics",
        )  # fmt: skip
        for job in jobs:
            scene.written[f"exported {job}"] = (folder.path / f"{job}.json").read_bytes()
        yield scene


def test_the_places_are_real(scene: Scene) -> None:
    """What is searched is there: tasks that ended each way, messages, events, spans, metrics, a log."""
    sent = b"".join(scene.ear.heard["/v1/traces"])
    for name in (b"effect provider.submit", b"effect payment.send", b"step 1 make", b"step 1 fail"):
        assert name in sent, name
    assert b"no luck with ***" in sent
    columns = scene.columns()
    for column in ("provider_tasks.error_json", "trigger_events.body", "effects.result", "evidence.detail_json"):
        assert b"***" in columns[column], column
    assert b"no luck with ***" in scene.written["log"]
    assert b"***" in scene.written["answer to /webhooks/films garbled"]
    assert b"everstep_provider" in scene.written["metrics of the server"]


def test_what_is_kept_is_where_it_belongs(scene: Scene) -> None:
    """Requests, results, arguments, answers, events and inputs are in the columns for them, and in no other."""
    assert scene.places(KEPT) == {kept: at for kept, (at, _) in KEPT.items()}


def test_nothing_else_is_in_the_record(scene: Scene) -> None:
    """No header, no secret of a webhook, and of no error what can be told, is in any byte of the record."""
    assert scene.left(canary for canary in CANARIES if canary not in KEPT) == []


def test_nothing_is_in_what_is_sent(scene: Scene) -> None:
    """Spans and metrics hold none of it; a job's own webhook only the result of that job."""
    for path, bodies in scene.ear.heard.items():
        content = b"\n".join(bodies)
        result = {word("task-result")} if path == "/job" else set[str]()
        assert {canary for canary in CANARIES if holds(content, canary)} == result, path


def test_nothing_is_in_what_is_written(scene: Scene) -> None:
    """No log, page, export, answer or drawing holds it, and commands that show the record only what is kept."""
    found: dict[str, list[str]] = {}
    for name, content in scene.written.items():
        shown = {
            kept for kept, (_, commands) in KEPT.items() if any(f"{name} ".startswith(f"{one} ") for one in commands)
        }
        found[name] = [canary for canary in CANARIES if canary not in shown and holds(content, canary)]
    assert {name: canaries for name, canaries in found.items() if canaries} == {}
