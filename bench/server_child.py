"""The clients of a server, in a process of their own: requests one after another on some connections, and streams."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from bench.child import Control
from bench.figures import quantile

_TIME = re.compile(rb'data: \{"at": ([0-9.]+)\}')
_END = b"event: end"
CONNECTIONS = 8


class Client:
    """One connection; as little of HTTP/1.1 as it takes, so that clients leave the machine to the server."""

    def __init__(self, url: str) -> None:
        self._host, self._port = urlsplit(url).hostname, urlsplit(url).port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Client:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def send(self, method: str, path: str, body: Any = None) -> int | None:
        """Send a request and read the head of its answer: the length of the body, None if it comes in chunks."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
        self._writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + content)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        if answer.split()[1] not in ("200", "201"):
            raise RuntimeError(f"{method} {path}: {answer}")
        found = re.search(r"content-length: (\d+)", answer)
        return int(found[1]) if found else None

    async def chunks(self) -> AsyncIterator[bytes]:
        """The chunks of an answer, to its end."""
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A request and the JSON it is answered with."""
        length = await self.send(method, path, body)
        if length is None:
            return json.loads(b"".join([part async for part in self.chunks()]))
        return json.loads(await self._reader.readexactly(length))


def requests(control: Control, url: str, count: int) -> dict[str, float]:
    """Requests of each kind on eight connections: create a thread, wait for a run on it, get its state.

    Args:
        control: The harness.
        url: Where the server is.
        count: How many of each kind; of runs a quarter.

    Returns:
        Milliseconds and requests a second, by name.
    """
    control.ready()
    return asyncio.run(_requests(url, count))


async def _requests(url: str, count: int) -> dict[str, float]:
    threads: list[str] = []

    async def create(client: Client, _: int) -> None:
        threads.append((await client.ask("POST", "/threads", {}))["thread_id"])

    async def get(client: Client, number: int) -> None:
        await client.ask("GET", f"/threads/{threads[number]}/state")

    async def wait(client: Client, number: int) -> None:
        body = {"assistant_id": "agent", "input": {"tokens": 0}}
        await client.ask("POST", f"/threads/{threads[number]}/runs/wait", body)

    return {
        **await _timed("create", url, count, create),
        **await _timed("wait", url, count // 4, wait),
        **await _timed("get", url, count // 4, get),
    }


async def _timed(name: str, url: str, count: int, ask: Callable[[Client, int], Awaitable[None]]) -> dict[str, float]:
    took: list[float] = []
    numbers = iter(range(count))

    async def one_after_another() -> None:
        async with Client(url) as client:
            for number in numbers:
                begin = time.monotonic()
                await ask(client, number)
                took.append((time.monotonic() - begin) * 1000)

    begin = time.monotonic()
    await asyncio.gather(*(one_after_another() for _ in range(CONNECTIONS)))
    rate = count / (time.monotonic() - begin)
    return {f"{name}_rate": rate, f"{name}_p50": quantile(took, 0.5), f"{name}_p99": quantile(took, 0.99)}


def streams(control: Control, url: str, count: int, tokens: int, pause: float) -> dict[str, float]:
    """Start runs on threads of their own, all at once, and read what they tell.

    Args:
        control: The harness.
        url: Where the server is.
        count: How many.
        tokens: How many tokens each of them tells.
        pause: Seconds between two tokens.

    Returns:
        Milliseconds: from the request to the first token, from a token to its arrival, between arrivals.
    """
    control.ready()
    return asyncio.run(_streams(url, count, tokens, pause))


async def _streams(url: str, count: int, tokens: int, pause: float) -> dict[str, float]:
    async with Client(url) as client:
        threads = [(await client.ask("POST", "/threads", {}))["thread_id"] for _ in range(count)]
    told = await asyncio.gather(*(_told(url, thread, tokens, pause) for thread in threads))
    firsts, lags, gaps = ([value for one in told for value in one[part]] for part in range(3))
    figures: dict[str, float] = {}
    for name, values in (("first", firsts), ("lag", lags), ("gap", gaps)):
        figures |= {f"{name}_p50": quantile(values, 0.5) * 1000, f"{name}_p99": quantile(values, 0.99) * 1000}
    return figures


async def _told(url: str, thread: str, tokens: int, pause: float) -> tuple[list[float], list[float], list[float]]:
    """One stream; seconds: to its first token, from each token to its arrival, between arrivals."""
    body = {
        "assistant_id": "agent",
        "input": {"tokens": tokens, "pause": pause},
        "stream_mode": ["custom"],
    }
    arrivals: list[float] = []
    lags: list[float] = []
    ended = False
    async with Client(url) as client:
        begin = time.monotonic()
        await client.send("POST", f"/threads/{thread}/runs/stream", body)
        async for part in client.chunks():
            now = time.monotonic()
            for found in _TIME.finditer(part):
                arrivals.append(now)
                lags.append(now - float(found[1]))
            ended = ended or _END in part
    if len(arrivals) != tokens or not ended:
        raise RuntimeError(f"{len(arrivals)} of {tokens} tokens came")
    gaps = [after - before for before, after in pairwise(arrivals)]
    return [arrivals[0] - begin], lags, gaps


def idle(control: Control, url: str, count: int) -> int:
    """Open streams of threads on which nothing happens, and keep them open until told to stop.

    Args:
        control: The harness.
        url: Where the server is.
        count: How many.

    Returns:
        How many of them were open to the end.
    """
    return asyncio.run(_idle(control, url, count))


async def _idle(control: Control, url: str, count: int) -> int:
    async with AsyncExitStack() as stack:
        asking = await stack.enter_async_context(Client(url))
        reading: list[asyncio.Task[None]] = []
        for _ in range(count):
            thread = (await asking.ask("POST", "/threads", {}))["thread_id"]
            client = await stack.enter_async_context(Client(url))
            await client.send("GET", f"/threads/{thread}/stream")
            reading.append(asyncio.create_task(_read(client)))
        await asyncio.to_thread(control.ready)
        await asyncio.to_thread(control.stopped.wait)
        still_open = sum(not task.done() for task in reading)
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
    return still_open


async def _read(client: Client) -> None:
    async for _ in client.chunks():
        pass
