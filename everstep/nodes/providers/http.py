"""A provider of HTTP and JSON, as a file describes it; see `http_description` for the file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import quote

from everstep.checkpoints.provider_status import ProviderEvent, ProviderStatus, State
from everstep.credentials import without_secrets
from everstep.errors import EventInvalid, ProviderAnswerInvalid, ProviderRefused, ProviderTaskMissing
from everstep.nodes.providers.calls import TOLD, Answer, Caller
from everstep.nodes.providers.http_description import Description, Request
from everstep.nodes.providers.interface import Provider, Submitted
from everstep.nodes.providers.templates import MISSING, NothingThere, at, filled, fits_header

NO_SUCH = (404, 410)


class HttpProvider(Provider):
    """A provider that a file describes.

    Args:
        description: The file's content.
        caller: How it is reached.
        idempotent: Whether it honours the key, as `[submit]` passes it on.
        settle_s: See `Provider`.
    """

    def __init__(self, description: Description, caller: Caller, *, idempotent: bool, settle_s: float) -> None:
        self.name = caller.provider
        self.idempotent = idempotent
        self.findable = description.find is not None
        self.settle_s = settle_s
        self._description = description
        self._caller = caller
        words = description.task.words
        meanings: dict[State, list[str]] = {
            "pending": words.pending,
            "succeeded": words.succeeded,
            "failed": words.failed,
        }
        self._states: dict[str, State] = {word: state for state, named in meanings.items() for word in named}

    async def submit(self, request: Mapping[str, Any], *, key: str) -> Submitted:
        answer = await self._send(self._description.submit, {"request": request, "key": key})
        answer.require_taken(self.name)
        document = self._read(answer)
        place = self._description.submit.id or self._description.task.id
        return Submitted(self._id(document, place), self._status(document, answer))

    async def find(self, key: str) -> Submitted | None:
        find = self._description.find
        if find is None:
            return await super().find(key)
        answer = await self._send(find, {"key": key})
        if answer.status in NO_SUCH:
            return None
        document = at(self._read(answer), find.item)
        if document is MISSING or document is None:
            return None
        return Submitted(self._id(document, self._description.task.id), self._status(document, answer))

    async def query(self, provider_task_id: str) -> ProviderStatus:
        answer = await self._send(self._description.query, {"id": provider_task_id})
        if answer.status in NO_SUCH:
            raise ProviderTaskMissing(
                f"the provider {self.name} answered {answer.status}: it has no such task", provider=self.name
            )
        document = self._read(answer)
        status = self._status(document, answer)
        if status is None:
            word = answer.blackout.text(str(at(document, self._description.task.state)))
            raise self._invalid(f"calls a task {word[:TOLD]!r}, which none of the words in its description is")
        return status

    async def cancel(self, provider_task_id: str) -> None:
        cancel = self._description.cancel
        if cancel is None:
            return await super().cancel(provider_task_id)
        answer = await self._send(cancel, {"id": provider_task_id})
        if not answer.is_success and not answer.is_refusal and answer.status != 409:  # refused: it has ended
            raise answer.error

    def parse_webhook(self, headers: Mapping[str, str], body: bytes) -> ProviderEvent:
        described = self._description.webhook
        if described is None:
            return super().parse_webhook(headers, body)
        try:
            message = {"body": json.loads(body), "headers": dict(headers)}
        except (ValueError, RecursionError):
            raise EventInvalid(f"the message of the provider {self.name} is no JSON", provider=self.name) from None
        event_id, document = at(message, described.event_id), at(message, described.task)
        key = None if described.key is None else at(message, described.key)
        task_id = _text(at(document, self._description.task.id))
        status = self._status_of(document)
        if _text(event_id) is None or (task_id is None and _text(key) is None) or status is None:
            places = f"{described.event_id}, {described.task}"
            raise EventInvalid(
                f"the message of the provider {self.name} tells of no task: look at {places}",
                next_step="correct [webhook] and [task] of the provider's description, or subscribe to other events",
                provider=self.name,
            )
        if described.thin:
            status = ProviderStatus("pending", task_id, retry_after_ms=0)
        return ProviderEvent(str(event_id), status, task_id, _text(key))

    async def _send(self, request: Request, known: Mapping[str, Any]) -> Answer:
        document = dict(known)

        def fill(template: Any) -> Any:
            try:
                return filled(template, lambda pointer: at(document, pointer))
            except NothingThere as nothing:
                raise self._lacks(str(nothing)) from None

        path = request.path
        for name in ("key", "id"):
            path = path.replace(f"{{{name}}}", quote(str(known.get(name, "")), safe=""))
        query = {name: _written(value) for name, value in cast("dict[str, Any]", fill(request.query)).items()}
        headers = {name: _written(value) for name, value in cast("dict[str, Any]", fill(request.headers)).items()}
        if wrong := [name for name, value in headers.items() if not fits_header(value)]:
            raise ProviderRefused(
                f"the request for the provider {self.name} puts into the header {wrong[0]} what cannot stand there",
                next_step="send it in the body, or correct the request",
                provider=self.name,
            )
        return await self._caller.call(request.method, path, query=query, headers=headers, body=fill(request.body))

    def _read(self, answer: Answer) -> Any:
        if not answer.is_success:
            raise answer.error
        return answer.json(self.name)

    def _id(self, document: Any, place: str) -> str:
        found = _text(at(document, place))
        if found is None:
            raise self._invalid(f"told no id of the task: there is none at {place or 'the whole answer'}")
        return found

    def _status(self, document: Any, answer: Answer) -> ProviderStatus | None:
        status = self._status_of(document, answer.retry_after_ms)
        return None if status is None else answer.blackout.status(status)

    def _status_of(self, document: Any, retry_after_ms: int | None = None) -> ProviderStatus | None:
        task = self._description.task
        word = at(document, task.state)
        state = self._states.get(word) if isinstance(word, str) else None
        if state is None:
            return None
        result = _or_none(at(document, task.result)) if state == "succeeded" else None
        error: Any = None
        if state == "failed":
            error = None if task.error is None else _or_none(at(document, task.error))
            error = {"message": f"the provider says: {word}"} if error is None else _cleaned(error)
        progress = None if task.progress is None else _percent(at(document, task.progress), task.progress_full)
        return ProviderStatus(state, _text(at(document, task.id)), result, error, progress, retry_after_ms)

    def _invalid(self, what: str) -> ProviderAnswerInvalid:
        return ProviderAnswerInvalid(
            f"the provider {self.name} {what}", next_step="correct its description", provider=self.name
        )

    def _lacks(self, pointer: str) -> ProviderRefused:
        return ProviderRefused(
            f"the request for the provider {self.name} has nothing at {pointer}, which its description wants",
            next_step="add it to the request, or give it a default in the description",
            provider=self.name,
            path=pointer,
        )


def _text(value: Any) -> str | None:
    """An id: text, or a whole number."""
    if isinstance(value, str) and value:
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _or_none(value: Any) -> Any:
    return None if value is MISSING else value


def _cleaned(error: Any) -> Any:
    return without_secrets(error) if isinstance(error, str) else error


def _percent(value: Any, full: float) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value <= 0 or value >= full:  # compared as they are: a number may be too large for a float
        return 0 if value <= 0 else 100
    return int(min(float(value) * 100 / full, 100))
