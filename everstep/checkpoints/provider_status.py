"""What a provider says of a task, in one form for every provider: an answer to a question, or an event it sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, cast, get_args

from everstep.credentials import REDACTED, names_secret, without_secrets

State = Literal["pending", "succeeded", "failed"]
STATES: Final[tuple[State, ...]] = get_args(State)
FINAL: Final = ("succeeded", "failed")


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

    @property
    def is_final(self) -> bool:
        """Whether nothing more comes of the task."""
        return self.state in FINAL

    def as_dict(self) -> dict[str, Any]:
        """The status as JSON data, without what is None; its error without what seems to be a credential."""
        told = {name: value for name, value in asdict(self).items() if value is not None}
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


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value).items()
        return {name: REDACTED if isinstance(one, str) and names_secret(name) else _clean(one) for name, one in members}
    if isinstance(value, list | tuple):
        return [_clean(member) for member in cast("list[Any]", value)]
    return value
