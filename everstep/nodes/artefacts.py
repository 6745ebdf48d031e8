"""Artefacts: what a provider made, brought from its address or taken from its answer into a folder of ours.

The folder is content-addressed: a file's name is the SHA-256 of what is in it, so one that is brought twice is there
once. An address is followed only by https, or to this machine; nothing of ours, such as a key, is sent there.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import mimetypes
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast
from urllib.parse import unquote_to_bytes, urljoin, urlsplit

from everstep.errors import ArtefactInvalid
from everstep.nodes.attempt import current_job
from everstep.nodes.effect import effect

if TYPE_CHECKING:
    import httpx

FOLDER_VARIABLE = "EVERSTEP_ARTEFACTS"
"""Environment variable that names the folder."""
DEFAULT_FOLDER = "artefacts"
MOST_BYTES = 1024**3
MOST = 100
"""Artefacts of one result."""
LIMIT_S = 600.0
SILENCE_S = 30.0
REDIRECTS = 3
Pieces = AsyncGenerator[tuple[bytes, str | None]]
"""What was made, piece by piece, and with the first one what the provider calls it."""
_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*")
_GONE = range(400, 500)
_PASSING = (408, 425, 429)


class Artefact(TypedDict):
    """Something that was made, and is kept.

    Attributes:
        file: Where, within the folder of artefacts.
        sha256: What is in it.
        bytes: How much that is.
        media_type: What kind of thing it is, as the provider told.
    """

    file: str
    sha256: str
    bytes: int
    media_type: str


@dataclass(frozen=True)
class Offer:
    """What a result says of something that was made.

    Attributes:
        url: Where it is; a `data:` address holds it.
        content: Or itself, as base64.
        media_type: What it is, if that is told.
        sha256: What must be in it, if that is told.
    """

    url: str | None = None
    content: str | None = None
    media_type: str | None = None
    sha256: str | None = None


def offers(result: Any) -> list[Offer]:
    """What a provider's result offers.

    That is each object in it with a `url`, a `b64_json` or a `base64` (and perhaps `media_type` or `content_type`, and
    `sha256`), and each text of a list that is an address. A result without any is itself what was made, as JSON.

    Args:
        result: The result; JSON.

    Raises:
        ArtefactInvalid: It offers more than `MOST`.
    """
    found = list(_offers(result))
    if len(found) > MOST:
        raise ArtefactInvalid(
            f"the result offers {len(found)} artefacts; {MOST} are the most", next_step="ask for fewer outputs"
        )
    if found:
        return found
    text = json.dumps(result, ensure_ascii=False)
    return [Offer(content=base64.b64encode(text.encode()).decode(), media_type="application/json")]


def _offers(value: Any, *, listed: bool = True, levels: int = 20) -> Iterator[Offer]:
    if levels == 0:
        return
    if isinstance(value, str):
        if listed and value.startswith(("https://", "http://", "data:")):
            yield Offer(value)
    elif isinstance(value, list):
        for member in cast("list[Any]", value):
            yield from _offers(member, levels=levels - 1)
    elif isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        url = _text(table, "url")
        content = None if url is not None else _text(table, "b64_json", "base64")
        if url is not None or content is not None:
            yield Offer(url, content, _text(table, "media_type", "content_type", "mime_type"), _text(table, "sha256"))
        else:
            for member in table.values():
                yield from _offers(member, listed=False, levels=levels - 1)


def _text(table: Mapping[str, Any], *names: str) -> str | None:
    return next((table[name] for name in names if isinstance(table.get(name), str)), None)


def folder() -> Path:
    """The folder of artefacts of this process."""
    return Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)


def _name(offer: Offer, name: str, most_bytes: int) -> str:
    del offer, most_bytes
    return name


@effect("artefact.keep", idempotent=True, key=_name)
async def keep(offer: Offer, name: str, most_bytes: int = MOST_BYTES) -> Artefact:
    """Keep what was made. The record has its name and digest, not its address, which may be a key to it.

    Args:
        offer: Where it is.
        name: What makes it the same one in a replay.
        most_bytes: What is larger is refused.

    Raises:
        ArtefactInvalid: See there.
        httpx.HTTPError: It could not be had this time.
    """
    where = folder()
    where.mkdir(parents=True, exist_ok=True)
    begins = f".{hashlib.sha256(f'{current_job()}/{name}'.encode()).hexdigest()[:16]}-"
    for left in where.glob(f"{begins}*.part"):  # by a worker that was killed
        left.unlink(missing_ok=True)
    handle, part = tempfile.mkstemp(".part", begins, where)
    try:
        with os.fdopen(handle, "wb") as file:
            digest, size, told = hashlib.sha256(), 0, offer.media_type
            async with asyncio.timeout(LIMIT_S), aclosing(_pieces(offer)) as pieces:
                async for piece, kind in pieces:
                    size, told = size + len(piece), told or kind
                    if size > most_bytes:
                        raise ArtefactInvalid(
                            f"artefact {name} has more than {most_bytes} bytes",
                            next_step="raise the graph's most_bytes",
                        )
                    digest.update(piece)
                    await asyncio.to_thread(file.write, piece)
            file.flush()
            await asyncio.to_thread(os.fsync, file.fileno())
        sha256 = digest.hexdigest()
        if offer.sha256 is not None and offer.sha256.lower() != sha256:
            raise ArtefactInvalid(
                f"artefact {name} is not what the provider told: its SHA-256 is {sha256}, not {offer.sha256}",
                next_step="try again; if it stays so, ask the provider",
            )
        media_type = _media_type(told)
        file_name = f"{sha256[:2]}/{sha256}{mimetypes.guess_extension(media_type) or ''}"
        (where / sha256[:2]).mkdir(exist_ok=True)
        Path(part).replace(where / file_name)
    finally:
        Path(part).unlink(missing_ok=True)
    return Artefact(file=file_name, sha256=sha256, bytes=size, media_type=media_type)


def _media_type(told: str | None) -> str:
    plain = (told or "").partition(";")[0].strip().lower()
    return plain if _MEDIA_TYPE.fullmatch(plain) else "application/octet-stream"


def _pieces(offer: Offer) -> Pieces:
    url = offer.url or ""
    return _inline(offer) if offer.content is not None or url.startswith("data:") else _fetched(url)


async def _inline(offer: Offer) -> Pieces:
    if offer.content is not None:
        yield _decoded(offer.content), None
        return
    head, _, data = (offer.url or "").removeprefix("data:").partition(",")
    content = _decoded(data) if head.endswith(";base64") else unquote_to_bytes(data)
    yield content, head.removesuffix(";base64") or "text/plain"


def _decoded(content: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ArtefactInvalid("what the provider made is not base64", next_step="ask the provider") from error


async def _fetched(url: str) -> Pieces:
    import httpx

    async with httpx.AsyncClient(timeout=SILENCE_S, follow_redirects=False, trust_env=False) as client:
        for _ in range(REDIRECTS + 1):
            async with client.stream("GET", require_address(url)) as response:
                if response.is_redirect:
                    url = urljoin(url, response.headers["location"])
                    continue
                _require_success(response)
                yield b"", response.headers.get("content-type")
                async for piece in response.aiter_bytes(65_536):
                    yield piece, None
                return
    raise ArtefactInvalid(f"the provider's address leads on more than {REDIRECTS} times", next_step="ask the provider")


def _require_success(response: httpx.Response) -> None:
    if response.status_code in _GONE and response.status_code not in _PASSING:
        raise ArtefactInvalid(
            f"the provider's address answers HTTP {response.status_code}: what was made may not be there any more",
            next_step="look at the task at the provider",
        )
    if not response.is_success:
        response.raise_for_status()


def require_address(url: str) -> str:
    """An address that may be followed: by https, or on this machine.

    Raises:
        ArtefactInvalid: It is none.
    """
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        raise _refused("is no address") from None
    if not host or parts.username is not None:
        raise _refused("is no address, or holds credentials")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_here(host)):
        raise _refused(f"is not https, but {parts.scheme or 'nothing'}")
    return url


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _refused(why: str) -> ArtefactInvalid:
    return ArtefactInvalid(f"where the provider says that the artefact is {why}", next_step="ask the provider")
