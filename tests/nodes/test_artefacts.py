"""Artefacts: what a provider made, found in its result, brought from its address, kept by what is in it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from everstep.errors import ArtefactInvalid
from everstep.nodes.artefacts import FOLDER_VARIABLE, MOST, Artefact, Offer, keep, offers, require_address

CONTENT = b"\x00made of bytes" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
ENCODED = base64.b64encode(CONTENT).decode()


class Made(BaseHTTPRequestHandler):
    """Gives the content, leads on, or refuses, by path."""

    def do_GET(self) -> None:
        status = int(self.path.split("/")[1])
        self.send_response(status)
        if status in (302, 307):
            self.send_header("Location", "/" + self.path.partition("/")[2].partition("/")[2])
        self.send_header("Content-Type", "Video/MP4; codecs=x")
        self.end_headers()
        if status == 200:
            self.wfile.write(CONTENT)
        self.server.asked.append((self.path, dict(self.headers)))  # pyright: ignore

    def log_message(self, format: str, *args: Any) -> None:
        del format, args


@pytest.fixture
def provider() -> Iterator[ThreadingHTTPServer]:
    """A server that has what was made."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Made)
    server.asked = []  # pyright: ignore
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where artefacts go."""
    where = tmp_path / "kept"
    monkeypatch.setenv(FOLDER_VARIABLE, str(where))
    return where


def kept(offer: Offer, most: int = 1_000_000) -> Artefact:
    """The artefact of an offer."""
    return asyncio.run(keep(offer, "task/0", most))


def address(server: ThreadingHTTPServer, path: str) -> str:
    """An address of the server."""
    return f"http://127.0.0.1:{server.server_port}{path}"


def files(folder: Path) -> list[str]:
    """What is in the folder."""
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())


def test_what_an_address_has_is_kept_by_its_digest(provider: ThreadingHTTPServer, folder: Path) -> None:
    """The file's name is the digest of what is in it; brought again, by whatever way, it is there once."""
    artefact = kept(Offer(address(provider, "/302/307/200"), sha256=DIGEST.upper()))
    name = f"{DIGEST[:2]}/{DIGEST}.mp4"
    assert artefact == {"file": name, "sha256": DIGEST, "bytes": len(CONTENT), "media_type": "video/mp4"}
    assert (folder / name).read_bytes() == CONTENT
    assert kept(Offer(address(provider, "/200"))) == artefact
    assert kept(Offer(content=ENCODED, media_type="video/mp4")) == artefact
    assert kept(Offer(f"data:video/mp4;base64,{ENCODED}")) == artefact
    assert files(folder) == [name]
    told = {header.lower() for _, headers in provider.asked for header in headers}  # pyright: ignore
    assert told == {"host", "accept", "accept-encoding", "connection", "user-agent"}


def test_a_killed_worker_leaves_nothing(provider: ThreadingHTTPServer, folder: Path) -> None:
    """What it had begun to write is taken away by the next attempt, and no other's."""
    folder.mkdir()
    begins = f".{hashlib.sha256(b'None/task/0').hexdigest()[:16]}-"
    (folder / f"{begins}abc.part").write_bytes(b"half")
    (folder / ".other-abc.part").write_bytes(b"half")
    kept(Offer(address(provider, "/200")))
    assert files(folder) == [".other-abc.part", f"{DIGEST[:2]}/{DIGEST}.mp4"]


def test_what_is_not_as_it_should_be_is_refused(provider: ThreadingHTTPServer, folder: Path) -> None:
    """Too large, another digest, gone, no end of leading on, no base64: a person looks, and nothing is kept."""
    wrong = [
        (Offer(address(provider, "/200")), "more than 100 bytes", 100),
        (Offer(address(provider, "/200"), sha256="0" * 64), "not what the provider told", 10**9),
        (Offer(address(provider, "/410")), "HTTP 410", 10**9),
        (Offer(address(provider, "/302/302/302/302/302/200")), "leads on", 10**9),
        (Offer(content="no base64!"), "not base64", 10**9),
        (Offer(content=ENCODED), "more than 100 bytes", 100),
    ]
    for offer, told, most in wrong:
        with pytest.raises(ArtefactInvalid, match=told):
            kept(offer, most)
    for status in (429, 503):
        with pytest.raises(httpx.HTTPStatusError):  # which is tried again
            kept(Offer(address(provider, f"/{status}")))
    assert files(folder) == []


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/a",
        "http://192.168.0.1/a",
        "http://127.0.0.1.example.com/a",
        "ftp://127.0.0.1/a",
        "file:///etc/passwd",
        "https://user:word@example.com/a",
        "https://example.com:port/a",
        "https:///a",
        "",
    ],
)
def test_only_https_and_this_machine_are_followed(url: str) -> None:
    """Other addresses are refused before anything is asked."""
    with pytest.raises(ArtefactInvalid):
        require_address(url)
    with pytest.raises(ArtefactInvalid):
        kept(Offer(url))
    assert require_address("https://example.com/a?b=c")
    assert require_address("http://localhost:1/a")


def test_what_a_result_offers() -> None:
    """Objects with an address or content, texts of lists that are addresses; without any, the result itself."""
    result = {
        "outputs": [{"url": "https://a.example/1", "content_type": "image/png"}, {"b64_json": "AA==", "sha256": "x"}],
        "more": ["https://a.example/2", "a word"],
        "docs": "https://a.example/docs",
    }
    assert offers(result) == [
        Offer("https://a.example/1", media_type="image/png"),
        Offer(content="AA==", sha256="x"),
        Offer("https://a.example/2"),
    ]
    assert offers("https://a.example/1") == [Offer("https://a.example/1")]
    assert offers({"text": "fine"}) == [
        Offer(content=base64.b64encode(b'{"text": "fine"}').decode(), media_type="application/json")
    ]
    with pytest.raises(ArtefactInvalid, match=f"{MOST} are the most"):
        offers(["https://a.example/1"] * (MOST + 1))
