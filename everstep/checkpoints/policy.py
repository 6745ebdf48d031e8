"""What is asked of a job beside graph and input: what it may use, what must hold before it is done, what it needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

from everstep.errors import PayloadInvalid


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
        PayloadInvalid: A number is out of range.
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
            raise PayloadInvalid("an acceptance needs returns of at least 0 and a timeout above 0 seconds")

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


@dataclass(frozen=True)
class JobPolicy:
    """What is asked of a job.

    Attributes:
        budget: What it may use.
        acceptance: What must hold before it is done.
        services: Names of the services it needs (hosts, such as `api.openai.com`): while one is out, the job waits.
        concurrency_key: Jobs of one key run at most so many at once as the worker's configuration says.
    """

    budget: Budget | None = None
    acceptance: Acceptance | None = None
    services: tuple[str, ...] = ()
    concurrency_key: str | None = None
