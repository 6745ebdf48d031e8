"""What a provider says of a task, in one form for every provider: an answer to a question, or an event it sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, cast, get_args

from everstep.credentials import REDACTED, names_secret, without_secrets

State = Literal["pending", "succeeded", "failed"]
STATES: Final[tuple[State, ...]] = get_args(State)
FINAL: Final = ("succeeded", "failed")
LONGEST_ID: Final = 1000
DEEPEST: Final = 100
"""Levels of an error that are kept."""
LATEST: Final = 253_402_300_799_000
"""The last second of the year 9999, UTC milliseconds."""


SUBMIT: Final = "provider.submit"
"""The effect that submits; its business key is the task's key at the provider."""


def what_became_of_it(result: Any) -> dict[str, Any]:
    """What this says as the result of a submission; empty if it says nothing, as what a person gave may.

    Returns:
        `provider_task_id`, with a `status` if one is known; or `refused`, or `settled`.
    """
    told = cast("dict[str, Any]", result) if isinstance(result, dict) else {"provider_task_id": result}
    known = told.get("provider_task_id")
    if isinstance(known, str | int) and not isinstance(known, bool) and is_id(str(known)):
        return {**told, "provider_task_id": str(known)}
    return {name: told[name] for name in ("refused", "settled") if name in told}


def is_id(given: str) -> bool:
    """Whether every database can keep it as a provider's id of something."""
    surrogates = any("\ud800" <= letter <= "\udfff" for letter in given)
    return 0 < len(given) <= LONGEST_ID and "\0" not in given and not surrogates


def require_id(given: str) -> str:
    """A provider's id of something, if every database can keep it.

    Raises:
        ValueError: It is empty, too long, or holds what is no text.
    """
    if not is_id(given):
        raise ValueError(f"{given[:100]!a} is no id that can be kept: it is empty, too long, or no text")
    return given


@dataclass(frozen=True)
class ProviderStatus:
    """What a provider says of a task.

    Attributes:
        state: `pending` as long as it is under way.
        provider_task_id: The provider's id of the task, where it tells it.
        result: What came of it; JSON data.
        error: Why it failed; JSON data.
        progress: How far it is, percent.
        retry_after_ms: How long the provider wants not to be asked, milliseconds.
    """

    state: State
    provider_task_id: str | None = None
    result: Any = None
    error: Any = None
    progress: int | None = None
    retry_after_ms: int | None = None

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"{self.state!r} is no state of a provider's task; there are {', '.join(STATES)}")
        if self.provider_task_id is not None:
            require_id(self.provider_task_id)

    @property
    def is_final(self) -> bool:
        """Whether nothing more comes of the task."""
        return self.state in FINAL

    def as_dict(self) -> dict[str, Any]:
        """The status as JSON data, without what is None; its error without what seems to be a credential."""
        known = ((field.name, getattr(self, field.name)) for field in fields(self))
        told = {name: value for name, value in known if value is not None}
        return {**told, "error": _clean(self.error)} if self.error is not None else told

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> ProviderStatus:
        """The status that `as_dict` gave."""
        return cls(**data)


@dataclass(frozen=True)
class ProviderEvent:
    """What a provider sent on its own: a verified and parsed webhook.

    Attributes:
        event_id: The provider's id of the event, the same whenever it is sent.
        status: What it says of the task.
        provider_task_id: The provider's id of the task.
        provider_key: The key that the task was submitted with, where the provider tells it.
        occurred_at: When it happened, UTC milliseconds.
    """

    event_id: str
    status: ProviderStatus
    provider_task_id: str | None = None
    provider_key: str | None = None
    occurred_at: int | None = None

    def __post_init__(self) -> None:
        for given in (self.event_id, self.provider_task_id, self.provider_key):
            if given is not None:
                require_id(given)
        if self.occurred_at is not None and not 0 <= self.occurred_at <= LATEST:
            raise ValueError(f"{self.occurred_at} is no time, UTC milliseconds")


def finite(value: Any) -> Any:
    """JSON data with null in the place of numbers that JSON has not: NaN and infinities."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(member) for name, member in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [finite(member) for member in cast("list[Any]", value)]
    return value


def _clean(value: Any, levels: int = DEEPEST) -> Any:
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, Mapping | list | tuple) and levels == 0:
        return REDACTED
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value).items()
        return {
            name: REDACTED if isinstance(one, str) and names_secret(name) else _clean(one, levels - 1)
            for name, one in members
        }
    if isinstance(value, list | tuple):
        return [_clean(member, levels - 1) for member in cast("list[Any]", value)]
    return value
