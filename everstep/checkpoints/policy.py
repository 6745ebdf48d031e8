"""What is asked of a job beside graph and input: what it may use, what must hold before it is done, what it needs."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, cast

from everstep.checkpoints.payload import holds_secret
from everstep.errors import PayloadInvalid

FeedbackForm = Literal["message", "list", "text"]
"""How a channel takes a text: as a message of a user, as a list of one text, or as it is."""


def feedback(channel: str, form: FeedbackForm, text: str) -> dict[str, Any]:
    """What a graph is fed so that a channel of its state gets a text."""
    value: Any = [{"role": "user", "content": text}] if form == "message" else [text] if form == "list" else text
    return {channel: value}


@dataclass(frozen=True)
class Budget:
    """What a job may use, over all its legs and its children; None sets no limit.

    Attributes:
        steps: Supersteps of its graph.
        seconds: Time it runs; waiting does not count.
        tokens: Tokens of its model calls, input and output together.
        cost: What its model calls cost, US dollars.

    Raises:
        PayloadInvalid: A limit is no positive number.
    """

    steps: int | None = None
    seconds: float | None = None
    tokens: int | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            limit: Any = getattr(self, field.name)
            whole = field.name in ("steps", "tokens")
            if limit is None:
                continue
            if isinstance(limit, bool) or not isinstance(limit, int if whole else int | float):
                raise PayloadInvalid(
                    f"the budget's {field.name} is {limit!r}", next_step=f"give a {'whole ' if whole else ''}number"
                )
            if not math.isfinite(limit) or limit <= 0:
                raise PayloadInvalid(f"the budget's {field.name} is {limit}", next_step="give a number above 0")

    def as_dict(self) -> dict[str, Any]:
        """The limits that are set."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Acceptance:
    """What must hold before a job whose graph finished is done.

    Attributes:
        verify: Commands that must pass, in order; split as a POSIX shell does, but no shell runs them.
        workdir: The folder they run in; relative to where the worker runs. `{name}` stands for a value of the final
            state.
        timeout: Seconds each command may take.
        returns: How often the graph is given the output of a failing command, before a person is asked.
        feedback: The state's channel that gets that output; `messages` gets it as a human message.
        high_risk: Patterns of paths (`nodes.high_risk`) whose change a person must approve; None: the defaults for
            authentication, billing and deployment; an empty tuple: none.
        base: The git revision the changed paths are told from; None: changed paths are not looked at.

    Raises:
        PayloadInvalid: A number is out of range, a command cannot be split or holds a credential, or patterns are given
            without the revision they need.
    """

    verify: tuple[str, ...] = ()
    workdir: str = "."
    timeout: float = 600.0
    returns: int = 2
    feedback: str = "messages"
    high_risk: tuple[str, ...] | None = None
    base: str | None = None

    def __post_init__(self) -> None:
        if self.returns < 0 or not (math.isfinite(self.timeout) and self.timeout > 0):
            number, least = ("returns", "at least 0") if self.returns < 0 else ("timeout", "above 0 seconds")
            raise PayloadInvalid(
                f"the acceptance's {number} is {getattr(self, number)}, and must be {least}",
                next_step="give another number",
            )
        for command in self.verify:
            _check_command(command)
        if self.base is not None and not self.base.strip():
            raise PayloadInvalid("an acceptance's base is empty", next_step="give a commit, or leave it out")
        if self.high_risk and self.base is None:
            raise PayloadInvalid(
                "an acceptance with high-risk patterns, but without a base, would look at no path",
                next_step="give the commit that changed paths are told from as its base",
            )

    def as_dict(self) -> dict[str, Any]:
        """As JSON data; `of` reads it."""
        return asdict(self)

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Acceptance:
        """What `as_dict` gave, back from JSON."""
        values: dict[str, Any] = {
            name: tuple(cast("list[Any]", value)) if isinstance(value, list) else value
            for name, value in stored.items()
        }
        return cls(**values)


def merged_acceptance(configured: Acceptance | None, given: Mapping[str, Any]) -> Acceptance | None:
    """What is configured for a graph, with what is given for a job in its place.

    Raises:
        PayloadInvalid: Nothing would be checked.
    """
    if not given:
        return configured
    acceptance = replace(configured or Acceptance(), **given)
    if not acceptance.verify and acceptance.base is None:
        raise PayloadInvalid(
            f"nothing would be checked: {', '.join(sorted(given))} says how, but there is no command and no base",
            next_step="give a command (--verify COMMAND), or a base (--base COMMIT)",
        )
    return acceptance


def merged_budget(configured: Budget | None, given: Mapping[str, Any]) -> Budget | None:
    """The limits that are configured for a graph, with those that are given for a job in their place."""
    return Budget(**{**(configured.as_dict() if configured else {}), **given}) if given else configured


def _check_command(command: str) -> None:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise PayloadInvalid(
            f"the verify command {command!r} cannot be split: {error}", next_step="quote it as for a POSIX shell"
        ) from error
    if not words:
        raise PayloadInvalid("a verify command is empty", next_step="give a program and its arguments")
    if holds_secret(command):
        raise PayloadInvalid(
            f"the verify command that starts with {words[0]!r} holds a credential; the record is no place for it",
            next_step="let the command read it from the worker's environment or from a key store",
        )


@dataclass(frozen=True)
class JobPolicy:
    """What is asked of a job.

    Attributes:
        budget: What it may use.
        acceptance: What must hold before it is done.
        services: Names of the services it needs (hosts, such as `api.openai.com`): while one is out, the job waits.
        concurrency_key: Jobs of one key run at most so many at once as the worker's configuration says.

    Raises:
        PayloadInvalid: The concurrency key is empty.
    """

    budget: Budget | None = None
    acceptance: Acceptance | None = None
    services: tuple[str, ...] = ()
    concurrency_key: str | None = None

    def __post_init__(self) -> None:
        if self.concurrency_key is not None and not self.concurrency_key.strip():
            raise PayloadInvalid("the concurrency key is empty", next_step="give a key, or leave it out")
