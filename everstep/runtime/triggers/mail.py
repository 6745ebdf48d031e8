"""A message dropped into a folder as a file, read as an event: who wrote to whom, about what, and what is attached.

The message is moved to `done` once it is stored, and to `failed` if it cannot be read. Attachments stay in the file.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from email.utils import getaddresses, parsedate_to_datetime
from pathlib import Path
from typing import Any

from everstep.errors import EventInvalid
from everstep.runtime.triggers.incoming import Incoming, shortened

PATTERNS = ("*.eml",)
LONGEST_TEXT = 200_000
"""Characters of a message's text that are stored; the whole is in the file."""


def target(folder: Path, name: str, content: bytes, *, to: str = "done") -> Path:
    """Where a message is moved to: its own name behind a digest of it, so that none takes another's place."""
    return folder / to / f"{hashlib.sha256(content).hexdigest()[:12]}-{name}"


def move(file: Path, to: Path) -> None:
    """Move a message; nothing happens if another process did."""
    to.parent.mkdir(exist_ok=True)
    with suppress(FileNotFoundError):
        os.replace(file, to)


def event_of(content: bytes, *, name: str, file: str) -> Incoming:
    """The event that a message came.

    Args:
        content: The message, as RFC 5322 has it.
        name: The name of its file.
        file: Where it will be.

    Raises:
        EventInvalid: It is no message.
    """
    try:
        return _read(content, name, file)
    except Exception as error:  # whatever a broken one makes the parser stumble over
        raise EventInvalid(f"{name} cannot be read as a message: {type(error).__name__}: {error}") from error


def _read(content: bytes, name: str, file: str) -> Incoming:
    message = BytesParser(policy=policy.default).parsebytes(content)
    assert isinstance(message, EmailMessage)
    if not message.keys():
        raise ValueError("it has no headers")
    text, whole = _text(message)
    message_id = _header(message, "message-id").strip()
    senders = _addresses(message, "from")
    date = _header(message, "date")
    body: dict[str, Any] = {
        "from": senders[0] if senders else "",
        "to": _addresses(message, "to"),
        "cc": _addresses(message, "cc"),
        "reply_to": _addresses(message, "reply-to"),
        "subject": _header(message, "subject"),
        "message_id": message_id,
        "in_reply_to": _header(message, "in-reply-to"),
        "date": date,
        "text": text,
        "text_is_whole": whole,
        "attachments": [_attachment(part) for part in message.iter_attachments()],
        "name": name,
        "file": file,
    }
    key = message_id or f"sha256:{hashlib.sha256(content).hexdigest()}"
    return Incoming(shortened(key), {}, body, _moment(date))


def _header(message: EmailMessage, name: str) -> str:
    return next(iter(_values(message, name)), "")


def _values(message: EmailMessage, name: str) -> list[str]:
    """The headers of a name; one that the parser stumbles over as it is written."""
    try:
        return [_clean(str(value)) for value in message.get_all(name, [])]
    except Exception:
        return [_clean(str(value)) for header, value in message.raw_items() if header.lower() == name]


def _addresses(message: EmailMessage, name: str) -> list[str]:
    given = _values(message, name)
    return [_clean(address) for _, address in getaddresses(given) if address]


def _text(message: EmailMessage) -> tuple[str, bool]:
    """The text, plain rather than HTML, and whether it is all of it."""
    part = message.get_body(preferencelist=("plain", "html"))
    if part is None:
        return "", True
    try:
        text = str(part.get_content())
    except (LookupError, UnicodeError):  # a character set nobody knows
        raw = part.get_payload(decode=True)
        text = raw.decode("latin-1") if isinstance(raw, bytes) else ""
    text = _clean(text)
    return text[:LONGEST_TEXT], len(text) <= LONGEST_TEXT


def _attachment(part: Any) -> dict[str, Any]:
    raw = part.get_payload(decode=True)
    size = len(raw) if isinstance(raw, bytes) else None
    return {"name": _clean(part.get_filename() or ""), "content_type": part.get_content_type(), "size": size}


def _moment(date: str) -> int | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    return int(moment.timestamp() * 1000) if moment.tzinfo is not None else None


def _clean(text: str) -> str:
    """Without halves of characters, which JSON has no form for."""
    return text.encode("utf-8", "replace").decode("utf-8")
