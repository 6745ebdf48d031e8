"""A secret in every place where one can be, looked for in every byte that Everstep writes (docs/secrets.md).

What a graph chooses to keep (its input, its state, an effect's arguments and result, a question) is in the record, at
the places listed here, and is shown by the commands that show the record. Nothing else is anywhere.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.canary_graph import known, word
from tests.cli.canary_scene import DATABASES, WEBHOOK_SECRET, Ear, Scene, a_folder, holds
from tests.cli.folder import Folder, is_refused

ASKED = {"writes.value", "reviews.value_json", "threads.interrupts_json"}

KEPT: dict[str, tuple[set[str], set[str]]] = {
    word("payload"): (
        {"agent_jobs.payload_json", "checkpoints.checkpoint", "writes.value"},
        {"show", "dlq show", "jobs", "worker"},
    ),
    **{secret("state"): ({"checkpoints.checkpoint", "writes.value"}, set()) for secret in (known, word)},
    word("effect-plain"): ({"effects.arguments_json"}, {"show", "dlq show"}),
    **{secret("effect-result"): ({"effects.result"}, {"show", "dlq show"}) for secret in (known, word)},
    word("lost-body"): (
        {"effects.arguments_json", "reviews.value_json", "threads.interrupts_json"},
        {"show", "review"},
    ),
    **{secret("question"): (ASKED, {"show", "review"}) for secret in (known, word)},
}
"""What a graph chose to keep: the columns of the record where it is, and the commands that may show it."""

PLACES = (
    "configurable metadata tag payload state log log-header log-cookie log-field log-exception tool-argument tool-plain"
    " tool-result prompt answer effect-header effect-body effect-plain effect-result effect-error lost-body"
    " request-header response-header address query question error webhook-address langfuse otlp orders"
).split()

CANARIES = [secret(place) for place in PLACES for secret in (known, word)] + [WEBHOOK_SECRET]

CAPTURED = {word(place) for place in ("tool-plain", "tool-result", "prompt", "answer", "question")}
"""What stands in the content of spans when that is captured: no form and no name tells that it is secret."""


@pytest.fixture(scope="module", params=DATABASES)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Jobs that ended in every way, with content not captured, and what every command says of them."""
    with Ear().open() as ear, a_folder(tmp_path_factory.mktemp("canary"), request.param) as folder:
        scene = Scene(folder, request.param, ear)
        jobs = scene.submit("fail", "outage", "ask", "lose")
        assert set(scene.work(jobs, "--log-format", "json").values()) == {"failed", "retry", "review"}
        isolated = scene.submit("isolated")
        scene.work(isolated, "--isolate")
        scene.commands("traces flush")
        failed, *_, lost = jobs
        of_jobs = [f"{command} {job} --json" for job in (*jobs, *isolated) for command in ("show", "trace")]
        texts = [f"{command} {job}" for job in (failed, lost) for command in ("show", "trace", "history")]
        exports = [f"trace {job} {to}" for job in (failed, lost) for to in ("--html -", f"--otlp {job}.json")]
        lists = ("jobs", "dlq list", f"dlq show {failed}", "review", "services", "services show api.example", "doctor")
        scene.commands(*of_jobs, *texts, *exports, *lists, *(f"{line} --json" for line in lists), "metrics")
        for job in (failed, lost):
            scene.written[f"exported {job}"] = (scene.folder.path / f"{job}.json").read_bytes()
        yield scene


@pytest.fixture(scope="module", params=DATABASES)
def captured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A job that failed and one that asks, with content captured."""
    with Ear().open() as ear, a_folder(tmp_path_factory.mktemp("captured"), request.param) as folder:
        scene = Scene(folder, request.param, ear)
        capture = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY"}
        scene.work(scene.submit("fail", "ask"), **capture)
        scene.commands("traces flush")
        yield scene


def test_the_places_are_real(scene: Scene) -> None:
    """What is searched is there: spans at both receivers, a signed message, metrics, log lines, and each command."""
    heard = {path: b"".join(bodies) for path, bodies in scene.ear.heard.items()}
    assert b"step 1 work" in heard["/v1/traces"]
    assert b"execute_tool look" in heard["/langfuse/api/public/otel/v1/traces"]
    assert b"effect letter.send" in heard["/v1/traces"]
    assert len(scene.ear.heard["/hook"]) == 2
    assert b"ValueError" in heard["/hook"]
    logs = [content for name, content in scene.written.items() if name.startswith("log")]
    assert all(b"sending with" in log and b"LookupError" in log for log in logs), logs
    assert len(logs) == 2
    columns = scene.columns()
    assert b"refused *** password=***; I know *** *** ***" in columns["writes.value"]
    for name in ("agent_jobs.error_json", "evidence.detail_json", "spans.body"):
        for further in (b"no *** password=***", b"odd *** password=***", b"all of *** password=***"):
            assert further in columns[name], (name, further)
    assert {"spans.body", "upstream_events.detail", "evidence.detail_json", "effects.error"} <= set(columns)


def test_what_a_graph_keeps_is_where_it_belongs(scene: Scene) -> None:
    """Input, state, effects and questions are in the columns that are for them, and in no other."""
    assert scene.places(KEPT) == {kept: at for kept, (at, _) in KEPT.items()}


def test_nothing_else_is_in_the_record(scene: Scene) -> None:
    """Configuration, headers, error texts, prompts, answers, tools and variables are in no byte of the record."""
    assert scene.left(canary for canary in CANARIES if canary not in KEPT) == []


def test_nothing_is_in_what_is_sent(scene: Scene) -> None:
    """Spans, metrics and messages of dead letters hold none of it, neither what the record keeps."""
    for path, bodies in scene.ear.heard.items():
        content = b"\n".join(bodies)
        assert [canary for canary in CANARIES if holds(content, canary)] == [], path


def test_nothing_is_in_what_is_written(scene: Scene) -> None:
    """No log, no page, no command but those that show the record: and these show what the graph keeps, nothing else."""
    found: dict[str, list[str]] = {}
    for name, content in scene.written.items():
        shown = {canary for canary in KEPT if any(f"{name} ".startswith(f"{shows} ") for shows in KEPT[canary][1])}
        found[name] = [canary for canary in CANARIES if canary not in shown and holds(content, canary)]
    assert {name: canaries for name, canaries in found.items() if canaries} == {}


def test_captured_content_has_no_credentials_that_can_be_told(captured: Scene) -> None:
    """With content switched on, spans hold the words of prompts and tools, without what form or name tells."""
    content = b"\n".join(captured.ear.heard["/v1/traces"])
    assert {canary for canary in CANARIES if holds(content, canary)} == CAPTURED
    raw = captured.raw()
    stored = CAPTURED | set(KEPT)
    assert [canary for canary in CANARIES if canary not in stored and holds(raw, canary)] == []


def test_an_input_with_a_known_secret_is_refused(tmp_path: Path) -> None:
    """A credential of a known form or under a suspect name does not get into the record by `submit`."""
    folder = Folder(tmp_path)
    shutil.copy(Path(__file__).with_name("canary_graph.py"), tmp_path / "canary_graph.py")
    folder.configure(careless="./canary_graph.py:graph")
    for given in ({"note": known("payload")}, {"api_key": word("payload")}):
        ran = folder.run("submit", "careless", "--input", json.dumps(given))
        is_refused(ran, 64, "secret_in_payload")
        assert not holds((ran.out + ran.err).encode(), known("payload"))
        assert not holds((ran.out + ran.err).encode(), word("payload"))
