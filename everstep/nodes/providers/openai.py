"""Background work of OpenAI, and of servers that speak its API: responses, and videos.

Its API documents no way to ask for what was created by a key of ours, and no idempotency key: its own clients send
none. So a lost answer is for a person to settle, unless the server is another one that honours `Idempotency-Key`
(`idempotent = true`). Its webhooks tell that something ended, and not what came of it; so the poller asks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, cast
from urllib.parse import quote

from everstep.checkpoints.provider_status import ProviderEvent, ProviderStatus, State
from everstep.errors import CancelUnsupported, EventInvalid, ProviderAnswerInvalid, ProviderTaskMissing
from everstep.nodes.providers.calls import TOLD, Answer, Caller
from everstep.nodes.providers.interface import Provider, Submitted

Work = Literal["responses", "videos"]
KEY = "everstep_key"
"""Where in a response's metadata our key is, for a person who looks for it."""

_STATES: dict[str, State] = {
    "queued": "pending",
    "in_progress": "pending",
    "completed": "succeeded",
    "failed": "failed",
    "cancelled": "failed",
    "incomplete": "failed",
}
_VIDEO = ("model", "seconds", "size", "created_at", "completed_at", "expires_at")


class OpenAIProvider(Provider):
    """OpenAI's responses in the background, or its videos.

    Args:
        caller: How it is reached; its base URL ends in `/v1`.
        work: `responses` or `videos`.
        idempotent: Whether the server honours `Idempotency-Key`; OpenAI's does not say so.
        settle_s: See `Provider`.
    """

    def __init__(self, caller: Caller, *, work: Work, idempotent: bool, settle_s: float) -> None:
        self.name = caller.provider
        self.idempotent = idempotent
        self.settle_s = settle_s
        self._caller = caller
        self._work: Work = work

    async def submit(self, request: Mapping[str, Any], *, key: str) -> Submitted:
        body = dict(request)
        if self._work == "responses":
            metadata = cast("dict[str, Any]", body.get("metadata") or {})
            body |= {"background": True, "store": True, "stream": False, "metadata": {**metadata, KEY: key}}
        headers = {"idempotency-key": key} if self.idempotent else {}
        answer = await self._caller.call("POST", f"/{self._work}", headers=headers, body=body)
        answer.require_taken(self.name)
        document = self._read(answer)
        return Submitted(self._id(document), self._status(document, answer))

    async def query(self, provider_task_id: str) -> ProviderStatus:
        answer = await self._caller.call("GET", self._path(provider_task_id))
        if answer.status == 404:
            raise ProviderTaskMissing(f"the provider {self.name} answered 404: it has no such task", provider=self.name)
        document = self._read(answer)
        status = self._status(document, answer)
        if status is None:
            word = answer.blackout.text(str(document.get("status")))
            raise self._invalid(f"calls a task {word[:TOLD]!r}, which is no status of its API")
        return status

    async def cancel(self, provider_task_id: str) -> None:
        if self._work == "videos":
            raise CancelUnsupported(
                f"the provider {self.name} cannot cancel a video; it can only delete one that has ended",
                provider=self.name,
            )
        answer = await self._caller.call("POST", f"{self._path(provider_task_id)}/cancel")
        if not answer.is_success and not answer.is_refusal:  # refused: it has ended
            raise answer.error

    def parse_webhook(self, headers: Mapping[str, str], body: bytes) -> ProviderEvent:
        try:
            event: Any = json.loads(body)
        except (ValueError, RecursionError):
            event = None
        told = cast("dict[str, Any]", event) if isinstance(event, dict) else {}
        data: Any = told.get("data")
        task_id = cast("dict[str, Any]", data).get("id") if isinstance(data, dict) else None
        kind, event_id, created = told.get("type"), told.get("id"), told.get("created_at")
        wanted = f"{self._work.removesuffix('s')}."
        if not isinstance(kind, str) or not kind.startswith(wanted) or not isinstance(event_id, str):
            raise EventInvalid(
                f"the message of the provider {self.name} is no event about its {self._work}",
                next_step=f"subscribe its webhook to the events that begin with {wanted} alone",
                provider=self.name,
            )
        if not isinstance(task_id, str):
            raise EventInvalid(f"the message of the provider {self.name} names no task", provider=self.name)
        at = created * 1000 if isinstance(created, int) and not isinstance(created, bool) else None
        return ProviderEvent(event_id, ProviderStatus("pending", task_id, retry_after_ms=0), task_id, occurred_at=at)

    def _path(self, provider_task_id: str) -> str:
        return f"/{self._work}/{quote(provider_task_id, safe='')}"

    def _read(self, answer: Answer) -> dict[str, Any]:
        if not answer.is_success:
            raise answer.error
        document = answer.json(self.name)
        if not isinstance(document, dict):
            raise self._invalid("answered with JSON that is no object")
        return cast("dict[str, Any]", document)

    def _id(self, document: dict[str, Any]) -> str:
        found = document.get("id")
        if not isinstance(found, str) or not found:
            raise self._invalid("told no id of the task")
        return found

    def _status(self, document: dict[str, Any], answer: Answer) -> ProviderStatus | None:
        word = document.get("status")
        state = _STATES.get(word) if isinstance(word, str) else None
        if state is None:
            return None
        progress = document.get("progress")
        status = ProviderStatus(
            state,
            self._id(document),
            self._result(document) if state == "succeeded" else None,
            _error(document, str(word)) if state == "failed" else None,
            progress if isinstance(progress, int) and not isinstance(progress, bool) else None,
            answer.retry_after_ms,
        )
        return answer.blackout.status(status)

    def _result(self, document: dict[str, Any]) -> Any:
        if self._work == "videos":
            return {name: document[name] for name in _VIDEO if name in document}
        output: Any = document.get("output") or []
        return {
            "model": document.get("model"),
            "text": _text(output),
            "output": _without_ids(output),
            "usage": document.get("usage"),
        }

    def _invalid(self, what: str) -> ProviderAnswerInvalid:
        return ProviderAnswerInvalid(
            f"the provider {self.name} {what}", next_step="look at base_url in everstep.toml", provider=self.name
        )


def _error(document: dict[str, Any], word: str) -> Any:
    if document.get("error") is not None:
        return document["error"]
    details: Any = document.get("incomplete_details")
    reason = cast("dict[str, Any]", details).get("reason") if isinstance(details, dict) else None
    return {"code": word, "message": f"the response is {word}" + (f": {reason}" if reason else "")}


def _text(output: Any) -> str:
    """The text of all messages of a response."""
    parts: list[str] = []
    for item in cast("list[Any]", output) if isinstance(output, list) else []:
        content: Any = cast("dict[str, Any]", item).get("content") if isinstance(item, dict) else None
        for part in cast("list[Any]", content) if isinstance(content, list) else []:
            text: Any = cast("dict[str, Any]", part).get("text") if isinstance(part, dict) else None
            parts += [text] if isinstance(text, str) else []
    return "".join(parts)


def _without_ids(output: Any) -> Any:
    """The output without the provider's ids of its items: they are nobody's business here."""
    if not isinstance(output, list):
        return output
    items = cast("list[Any]", output)
    return [
        {name: value for name, value in cast("dict[str, Any]", item).items() if name != "id"}
        if isinstance(item, dict)
        else item
        for item in items
    ]
