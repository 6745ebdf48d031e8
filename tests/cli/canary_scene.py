"""A user's folder with secrets in every place where one can be, whoever is sent something, and every byte written."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg

from tests.cli.canary_graph import word
from tests.cli.folder import Folder, Ran, Worker
from tests.support import postgres
from tests.support.serving import serving
from tests.support.waiting import until

DATABASES = ["sqlite", "postgres"]
IN_POSTGRES = {"checkpoint_writes.blob": "writes.value", "checkpoint_blobs.blob": "checkpoints.checkpoint"}
"""Columns that LangGraph's savers call otherwise there, and what they are called in SQLite."""
WEBHOOK_SECRET = base64.b64encode(b"canary of the webhook's own").decode()


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

    def places(self, canaries: Iterable[str]) -> dict[str, set[str]]:
        """The columns of the record that hold each of these."""
        columns = self.columns()
        return {canary: {name for name, content in columns.items() if holds(content, canary)} for canary in canaries}

    def left(self, canaries: Iterable[str]) -> list[str]:
        """Those of these that the record's files hold."""
        raw = self.raw()
        return [canary for canary in canaries if holds(raw, canary)]

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
