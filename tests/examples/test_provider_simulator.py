"""The simulated provider itself: what it counts, sends, refuses and remembers."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from everstep.clock import SystemClock
from everstep.errors import EventRefused
from everstep.nodes.providers.signatures import HmacScheme, StandardScheme, verify
from examples.provider_simulator.server import simulating
from tests.support.serving import serving
from tests.support.simulated import FOLDER
from tests.support.waiting import until

SECRET = "whsec_" + base64.b64encode(b"a secret of twenty-four b").decode()
SCHEMES = {
    "standard": StandardScheme(),
    "hmac": HmacScheme("x-signature", "sha256=", timestamp_header="x-timestamp", signs="{timestamp}.{body}"),
}


@contextmanager
def receiving(*statuses: int) -> Generator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A webhook that answers with these statuses in turn, then 200; and what came."""
    came: list[tuple[dict[str, str], bytes]] = []
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with lock:
                came.append(({name.lower(): value for name, value in self.headers.items()}, body))
                status = statuses[len(came) - 1] if len(came) <= len(statuses) else 200
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_address[1]}", came


def submit(url: str, plan: dict[str, Any], reference: str = "k") -> httpx.Response:
    """Submit a generation."""
    body = {"prompt": "x", "reference": reference, "simulate": plan}
    return httpx.post(f"{url}/v1/generations", json=body, timeout=60)


@pytest.mark.parametrize("scheme", ["standard", "hmac"])
def test_messages_are_signed_and_badly_if_told_to(scheme: Any) -> None:
    """Before the answer, twice under one id, with another word than the truth, wrongly signed, and long ago."""
    messages = [
        {"when": "before_answer", "times": 2, "state": "succeeded"},
        {"when": "before_answer", "signature": "wrong"},
        {"when": "before_answer", "signature": "missing"},
        {"when": "before_answer", "age": 604_800},
    ]
    with (
        receiving() as (hook, came),
        simulating(webhook=hook, scheme=scheme, secret=SECRET) as simulator,
    ):
        answer = submit(simulator.url, {"end": "never", "messages": messages})
        assert answer.json()["status"] == "running"
        assert len(came) == 5
        said: list[str | None] = []
        for headers, body in came:
            try:
                verify(SCHEMES[scheme], headers, body, secrets=[SECRET], now_ms=SystemClock().now_ms())
                said.append(json.loads(body)["data"]["status"])
            except EventRefused:
                said.append(None)
        assert said == ["succeeded", "succeeded", None, None, None]
        first, second = (json.loads(body)["id"] for _, body in came[:2])
        assert first == second


def test_a_message_that_is_not_taken_is_sent_again() -> None:
    """As providers do: under the same id, until it is answered 2xx."""
    with receiving(500, 503) as (hook, came), simulating(webhook=hook, secret=SECRET) as simulator:
        submit(simulator.url, {"messages": [{"when": "ended"}]})
        until(lambda: len(came) == 3, "the third try")
        assert len({json.loads(body)["id"] for _, body in came}) == 1


def test_it_counts() -> None:
    """Tasks and requests by key, questions, and the fastest second of them."""
    with simulating(idempotent=False) as simulator:
        ids = [submit(simulator.url, {"end": "never"}, key).json()["id"] for key in ("a", "a", "b")]
        for number in ids:
            httpx.get(f"{simulator.url}/v1/generations/{number}")
        report = httpx.get(f"{simulator.url}/control/report").json()
        assert report["submissions"] == report["received"] == {"a": 2, "b": 1}
        assert report["polls"] == 3
        assert 1 <= report["peak_polls_per_second"] <= 3


def test_tasks_end_in_any_order_and_may_contradict_themselves() -> None:
    """Control ends the later one first; one that contradicts tells its end once."""
    with simulating() as simulator:
        first, second = (submit(simulator.url, {"end": "never", "contradict": True}, key).json()["id"] for key in "ab")
        httpx.post(f"{simulator.url}/control/finish", json={"key": "b", "state": "failed"})
        states = [
            httpx.get(f"{simulator.url}/v1/generations/{number}").json()["status"] for number in (first, second, second)
        ]
        assert states == ["running", "failed", "succeeded"]


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"dorp": "after"}, "there is no 'dorp'"),
        ({"drop": "sometimes"}, "drop is one of"),
        ({"polls": "3"}, "polls is written as 0 is"),
        ({"messages": [{"when": "never"}]}, "when is one of"),
        ({"messages": {}}, "messages is no list"),
    ],
)
def test_a_fault_that_is_misspelled_is_refused(plan: dict[str, Any], said: str) -> None:
    """Otherwise a test of a fault would test nothing."""
    with simulating() as simulator:
        answer = submit(simulator.url, plan)
        assert answer.status_code == 422
        assert said in answer.text
        assert not simulator.book.made


def test_it_runs_by_itself_and_knows_its_tasks_after_a_restart(tmp_path: Path) -> None:
    """As a program, with a file: killed and started again it is asked by the key, and goes on."""
    command = [sys.executable, str(FOLDER), "--port", "0", "--state", str(tmp_path / "tasks.json")]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None
        url = json.loads(first.stdout.readline())["url"]
        made = submit(url, {"polls": 1}).json()["id"]
    finally:
        first.kill()
        first.communicate()
    second = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert second.stdout is not None
        url = json.loads(second.stdout.readline())["url"]
        (found,) = httpx.get(f"{url}/v1/generations", params={"reference": "k"}).json()["data"]
        assert found["id"] == made
        states = [httpx.get(f"{url}/v1/generations/{made}").json()["status"] for _ in range(2)]
        assert states == ["running", "succeeded"]
    finally:
        second.kill()
        second.communicate()
