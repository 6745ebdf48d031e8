"""A service on this machine that answers as it is told to, and the clients of the SDKs people use to ask it with."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import anthropic
import botocore.session
import google.api_core.exceptions
import httpx
import httpx2
import openai
import requests
from botocore.config import Config
from google import genai
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from google.genai.types import HttpOptions, HttpRetryOptions

PATIENCE_S = 60.0
IMPATIENCE_S = 0.2


@dataclass
class Answer:
    """What the service does with a request: `answer`, `drop` the connection, `keep_silent`, or drop and `leave`."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None
    action: str = "answer"


class Service:
    """Gives the answers it was given, in turn, and the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.requests = 0
        self._answers = list(answers)
        self._over = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer._take(self)

            def do_POST(self) -> None:
                outer._take(self)

            def do_PUT(self) -> None:
                outer._take(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.host = self.url.removeprefix("http://")
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        """Let go whoever waits for an answer, and stop."""
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _take(self, handler: BaseHTTPRequestHandler) -> None:
        answer = self._answers[min(self.requests, len(self._answers) - 1)]
        self.requests += 1
        handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        handler.close_connection = True
        if answer.action == "keep_silent":
            self._over.wait(30)
        if answer.action == "leave":
            self._server.socket.shutdown(socket.SHUT_RDWR)  # closing alone would leave it open while it is waited on
            self._server.socket.close()
        if answer.action != "answer":
            return
        body = json.dumps(answer.body if answer.body is not None else {"error": {"message": "no"}}).encode()
        handler.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(body)


@contextmanager
def serving(*answers: Answer) -> Generator[Service]:
    """A service for as long as the block lasts."""
    service = Service(*answers)
    try:
        yield service
    finally:
        service.close()


@contextmanager
def nobody() -> Iterator[str]:
    """An address on this machine where nobody listens while the block lasts."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


def raised(action: Callable[[], Any]) -> BaseException:
    """What an action raises; it must raise something."""
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def _httpx(url: str, patience_s: float = PATIENCE_S) -> None:
    timeout = httpx.Timeout(PATIENCE_S, read=patience_s)
    httpx.post(url, timeout=timeout, trust_env=False).raise_for_status()


def _httpx2(url: str, patience_s: float = PATIENCE_S) -> None:
    timeout = httpx2.Timeout(PATIENCE_S, read=patience_s)
    httpx2.post(url, timeout=timeout, trust_env=False).raise_for_status()


def _requests(url: str, patience_s: float = PATIENCE_S) -> None:
    requests.post(url, timeout=(5, patience_s)).raise_for_status()


def _aiohttp(url: str, patience_s: float = PATIENCE_S) -> None:
    async def ask() -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=patience_s)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url) as response:
            response.raise_for_status()

    asyncio.run(ask())


def _openai(url: str, patience_s: float = PATIENCE_S, retries: int = 0) -> None:
    timeout = httpx2.Timeout(PATIENCE_S, read=patience_s)
    with openai.OpenAI(base_url=url, api_key="none", max_retries=retries, timeout=timeout) as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])


def _openai_async(url: str, patience_s: float = PATIENCE_S) -> None:
    async def ask() -> None:
        timeout = httpx2.Timeout(PATIENCE_S, read=patience_s)
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout) as client:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])

    asyncio.run(ask())


def _anthropic(url: str, patience_s: float = PATIENCE_S, retries: int = 0) -> None:
    timeout = httpx2.Timeout(PATIENCE_S, read=patience_s)
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=retries, timeout=timeout) as client:
        client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "hello"}])


def _genai(url: str, patience_s: float = PATIENCE_S, attempts: int = 1) -> None:
    retry_options = HttpRetryOptions(attempts=attempts, initial_delay=0, max_delay=0, jitter=0)
    options = HttpOptions(base_url=url, timeout=int(patience_s * 1000), retry_options=retry_options)
    client = genai.Client(api_key="none", http_options=options)
    client.models.generate_content(model="m", contents="hello")


def _google_api_core(url: str, patience_s: float = PATIENCE_S) -> None:
    session = AuthorizedSession(AnonymousCredentials(), refresh_status_codes=())
    response = session.post(url, json={}, timeout=(5, patience_s))
    raise google.api_core.exceptions.from_http_response(response)


def _botocore(url: str, patience_s: float = PATIENCE_S, tries: int = 1) -> None:
    config = Config(retries={"total_max_attempts": tries, "mode": "standard"}, read_timeout=patience_s, proxies={})
    client = botocore.session.get_session().create_client(
        "sqs",
        region_name="eu-west-1",
        endpoint_url=url,
        aws_access_key_id="none",
        aws_secret_access_key="none",
        config=config,
    )
    client.send_message(QueueUrl=f"{url}/1/q", MessageBody="hello")


CLIENTS: dict[str, Callable[..., None]] = {
    "httpx": _httpx,
    "httpx2": _httpx2,
    "requests": _requests,
    "aiohttp": _aiohttp,
    "openai": _openai,
    "openai async": _openai_async,
    "anthropic": _anthropic,
    "google-genai": _genai,
    "google-api-core": _google_api_core,
    "botocore": _botocore,
}
"""Each sends one request to an address and waits `patience_s` for the answer, without retries."""
RETRYING: dict[str, Callable[[str], None]] = {
    "openai": lambda url: _openai(url, retries=1),
    "anthropic": lambda url: _anthropic(url, retries=1),
    "google-genai": lambda url: _genai(url, attempts=2),
    "botocore": lambda url: _botocore(url, tries=2),
}
"""The clients that try a second time by themselves."""
