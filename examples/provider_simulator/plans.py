"""What is to go wrong with a submission: read strictly, since a fault that is misspelled is none."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, cast, get_args

Drop = Literal["before", "after"]
End = Literal["succeeded", "failed", "never"]
When = Literal["before_answer", "accepted", "ended"]
Signature = Literal["good", "wrong", "missing"]


class PlanInvalid(ValueError):
    """A plan says what it cannot say."""


@dataclass(frozen=True)
class Message:
    """A message that the provider sends to its customer's webhook.

    Attributes:
        when: When: before the submission is answered, once the task is made, or once it has ended.
        delay: Seconds after that.
        state: What it says of the task; what the task is then when omitted.
        times: How often it is sent, with the same id.
        signature: Whether its signature is good.
        age: How many seconds ago it says that it was signed.
    """

    when: When = "ended"
    delay: float = 0.0
    state: str | None = None
    times: int = 1
    signature: Signature = "good"
    age: int = 0


@dataclass(frozen=True)
class Plan:
    """How the provider treats a submission, and the task that comes of it.

    Attributes:
        drop: Close the connection without an answer: before the task is made, or after.
        drop_times: For how many submissions with this key.
        answer_after: Seconds until the submission is answered.
        status: Answer with this HTTP status, such as 429, 503, 500 or 400.
        status_times: For how many submissions with this key.
        status_made: Whether the task is made all the same.
        retry_after: The header `Retry-After` that goes with it.
        work: Seconds the task takes.
        polls: How many queries say that it is under way before it ends; then `work` says nothing.
        end: How it ends; `never`: only `/control/finish` ends it.
        contradict: Whether it says the opposite once its end was told.
        messages: What is sent to the webhook.
    """

    drop: Drop | None = None
    drop_times: int = 1
    answer_after: float = 0.0
    status: int | None = None
    status_times: int = 1
    status_made: bool = False
    retry_after: str | None = None
    work: float = 0.0
    polls: int = 0
    end: End = "succeeded"
    contradict: bool = False
    messages: tuple[Message, ...] = ()


_CHOICES: dict[str, tuple[str, ...]] = {
    "drop": get_args(Drop),
    "end": get_args(End),
    "when": get_args(When),
    "signature": get_args(Signature),
}


def read_plan(data: Any) -> Plan:
    """A plan from JSON.

    Raises:
        PlanInvalid: A field is not there, or no such value can be.
    """
    values = _checked(Plan, data)
    messages = values.pop("messages", ())
    if not isinstance(messages, list | tuple):
        raise PlanInvalid("messages is no list")
    read = tuple(Message(**_checked(Message, message)) for message in cast("list[Any]", messages))
    return Plan(**values, messages=read)


def _checked(kind: type[Any], data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise PlanInvalid(f"a {kind.__name__.lower()} is an object")
    values = cast("dict[str, Any]", data)
    known = {field.name: field for field in fields(kind)}
    for name, value in values.items():
        if name not in known:
            raise PlanInvalid(f"there is no {name!r}; there are {', '.join(known)}")
        default = known[name].default
        number = isinstance(default, float) and isinstance(value, int | float)
        if name in _CHOICES and value is not None and value not in _CHOICES[name]:
            raise PlanInvalid(f"{name} is one of {', '.join(_CHOICES[name])}")
        if default is not None and name != "messages" and not number and type(value) is not type(default):
            raise PlanInvalid(f"{name} is written as {default!r} is")
    return dict(values)
