"""A secret in every place where one can be, looked for in every byte that Everstep writes (docs/secrets.md).

What a graph chooses to keep (its input, its state, an effect's arguments and result, a question) is in the record, at
the places listed here, and is shown by the commands that show the record. Nothing else is anywhere.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.cli.canary_graph import known, word
from tests.cli.folder import Folder, Ran, Worker, is_refused
from tests.support import postgres
from tests.support.serving import serving
from tests.support.waiting import until

DATABASES = ["sqlite", "postgres"]
IN_POSTGRES = {"checkpoint_writes.blob": "writes.value", "checkpoint_blobs.blob": "checkpoints.checkpoint"}
"""Columns that LangGraph's savers call otherwise there, and what they are called in SQLite."""
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
WEBHOOK_SECRET = base64.b64encode(b"canary of the webhook's own").decode()
CANARIES = [secret(place) for place in PLACES for secret in (known, word)] + [WEBHOOK_SECRET]
CAPTURED = {word(place) for place in ("tool-plain", "tool-result", "prompt", "answer", "question")}
"""What stands in the content of spans when that is captured: no form and no name tells that it is secret."""


class Ear:
    """Receives whatever is sent: spans, metrics, messages of dead letters."""

    def __init__(self) -> None:
        self.heard: dict[str, list[bytes]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.heard.setdefault(self.path.partition("?")[0], []).append(body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                return None

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def open(self) -> Iterator[Ear]:
        """Receive while entered."""
        with serving(self._server):
            yield self


class Elsewhere(Folder):
    """A folder whose record is not in it."""

    def __init__(self, path: Path, url: str) -> None:
        super().__init__(path)
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    def run(self, *arguments: str, **more: Any) -> Ran:
        return super().run(*arguments, **{"EVERSTEP_STORE": self._url, **more})

    @contextmanager
    def worker(self, *options: str, **variables: str) -> Iterator[Worker]:
        with super().worker(*options, EVERSTEP_STORE=self._url, **variables) as worker:
            yield worker


@contextmanager
def a_folder(path: Path, database: str) -> Iterator[Folder]:
    """A folder with a record in it, or in PostgreSQL under a password that is a secret like any other."""
    if database == "sqlite":
        yield Folder(path)
        return
    with postgres.fresh_postgres() as store:
        yield Elsewhere(path, store.url)


class Scene:
    """A user's folder, its secrets in the environment, and every byte that was written so far."""

    def __init__(self, folder: Folder, database: str, ear: Ear) -> None:
        path = folder.path
        self.database = database
        self.ear = ear
        self.written: dict[str, bytes] = {}
        shutil.copy(Path(__file__).with_name("canary_graph.py"), path / "canary_graph.py")
        self.folder = folder.configure(careless="./canary_graph.py:graph")
        hook = f"{ear.url}/hook?token={word('webhook-address')}"
        (path / "everstep.toml").write_text(f'[dead_letters]\nwebhook = "{hook}"\n')
        self.variables = {
            "LANGFUSE_PUBLIC_KEY": "pk-lf-canary",
            "LANGFUSE_SECRET_KEY": word("langfuse"),
            "LANGFUSE_HOST": f"{ear.url}/langfuse",
            "OTEL_EXPORTER_OTLP_ENDPOINT": ear.url,
            "OTEL_EXPORTER_OTLP_HEADERS": f"authorization=Basic%20{word('otlp')}",
            "EVERSTEP_WEBHOOK_SECRET": f"whsec_{WEBHOOK_SECRET}",
            "ORDERS_TOKEN": word("orders"),
        }

    def submit(self, *ends: str) -> list[str]:
        """Submit a job for each way to end; returns their ids."""
        return [self.folder.submit("careless", given=json.dumps({"how": how, "note": word("payload")})) for how in ends]

    def work(self, jobs: list[str], *options: str, **variables: str) -> dict[str, str]:
        """Run a worker until these jobs are settled; returns what as, by id."""
        letters = len(self.ear.heard.get("/hook", []))
        with self.folder.worker(*options, **self.variables, **variables) as worker:
            settled = worker.until_settled(*jobs)
            failed = sum(status == "failed" for status in settled.values())
            until(lambda: len(self.ear.heard.get("/hook", [])) == letters + failed, "the webhook's message")
            worker.process.terminate()
            told, log = worker.process.communicate()
        self.written[f"worker {' '.join(options)}"] = told.encode() + json.dumps(worker.events).encode()
        self.written[f"log {' '.join(options)}"] = log.encode()
        return settled

    def commands(self, *lines: str) -> None:
        """Run commands, whatever they exit with; keep what they say."""

        def run(line: str) -> None:
            ran = self.folder.run(*line.split(), **self.variables)
            assert ran.out + ran.err, line
            self.written[line] = (ran.out + ran.err).encode()

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(run, lines))

    def columns(self) -> dict[str, bytes]:
        """All texts and bytes of the record, by `table.column`."""
        found: dict[str, list[bytes]] = {}
        with closing(self._connect()) as record:
            for (table,) in record.execute(self._tables).fetchall():
                rows = record.execute(f'SELECT * FROM "{table}"')
                names = [f"{table}.{column[0]}" for column in rows.description]
                names = [IN_POSTGRES.get(name, name) for name in names]
                for row in rows:
                    for name, value in zip(names, row, strict=True):
                        if isinstance(value, dict | list):
                            value = json.dumps(value)
                        if isinstance(value, str | bytes):
                            found.setdefault(name, []).append(value.encode() if isinstance(value, str) else value)
        return {name: b"\n".join(values) for name, values in found.items()}

    def _connect(self) -> Any:
        if self.database == "sqlite":
            return sqlite3.connect(self.folder.path / "everstep.db")
        return psycopg.connect(self.folder.url)

    @property
    def _tables(self) -> str:
        if self.database == "sqlite":
            return "SELECT name FROM sqlite_master WHERE type = 'table'"
        return "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"

    def raw(self) -> bytes:
        """The record's files as they are, with what was deleted or overwritten and is still there."""
        if self.database == "sqlite":
            folder = self.folder.path
            return b"".join(file.read_bytes() for file in folder.glob("everstep.db*") if file.is_file())
        with psycopg.connect(self.folder.url, autocommit=True) as record:
            record.execute("CHECKPOINT")  # what is in memory alone is written
            where = "SELECT current_setting('data_directory'), oid FROM pg_database WHERE datname = current_database()"
            ((place, number),) = record.execute(where).fetchall()
        folder = Path(place) / "base" / str(number)
        assert folder.is_dir(), "the server's files are not on this machine"
        return b"".join(file.read_bytes() for file in folder.iterdir() if file.is_file())


def holds(content: bytes, canary: str) -> bool:
    """Whether bytes hold a canary, as it is or in base64, wherever that begins."""
    forms = [canary.encode()]
    for shift in range(3):
        forms.append(base64.b64encode(b"x" * shift + canary.encode())[2 + shift : -4])
    return any(form in content for form in forms)


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
    columns = scene.columns()
    for canary, (places, _) in KEPT.items():
        assert {name for name, content in columns.items() if holds(content, canary)} == places, canary


def test_nothing_else_is_in_the_record(scene: Scene) -> None:
    """Configuration, headers, error texts, prompts, answers, tools and variables are in no byte of the record."""
    raw = scene.raw()
    assert [canary for canary in CANARIES if canary not in KEPT and holds(raw, canary)] == []


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
