"""The keys and secrets of one provider, taken out of what it answers and of what is said of a call to it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import quote

from everstep.checkpoints.provider_status import DEEPEST, ProviderStatus
from everstep.credentials import REDACTED, SHORTEST_SECRET


@dataclass(frozen=True)
class Blackout:
    """Replaces secrets by `***`, as they are and as texts of errors write them.

    A secret of less than eight characters is left: half of every text would be gone. Ids are left as well: a task is
    asked for by its id alone.

    Attributes:
        variables: The variables that hold the secrets; they are read when they are needed.
    """

    variables: tuple[str, ...] = ()

    def text(self, given: str) -> str:
        """A text without the secrets."""
        return _hidden(given, self._secrets())

    def value(self, given: Any) -> Any:
        """JSON data without the secrets, also in names; what is nested too deeply to look at is `***`."""
        return _without(given, self._secrets(), DEEPEST)

    def status(self, given: ProviderStatus) -> ProviderStatus:
        """What a provider said of a task, its result and error without the secrets."""
        return replace(given, result=self.value(given.result), error=self.value(given.error))

    def tells(self, error: BaseException) -> bool:
        """Whether a secret is in an error's text, or in that of one it came from."""
        secrets, seen, left = self._secrets(), set[int](), [error]
        while left and secrets:
            one = left.pop()
            seen.add(id(one))
            said = f"{one!r} {one}"
            if _hidden(said, secrets) != said:
                return True
            left += [of for of in (one.__cause__, one.__context__) if of is not None and id(of) not in seen]
        return False

    def _secrets(self, environment: Mapping[str, str] = os.environ) -> list[str]:
        values = {line.strip() for name in self.variables for line in environment.get(name, "").splitlines()}
        values |= {part for value in values for part in value.split()}
        values |= {value.removeprefix("whsec_") for value in values}
        written = {form for value in values if len(value) >= SHORTEST_SECRET for form in _written(value)}
        return sorted(written, key=len, reverse=True)


def _written(secret: str) -> Iterable[str]:
    yield from (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1], repr(secret.encode())[2:-1])
    yield quote(secret, safe="")


def _hidden(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return text


def _without(given: Any, secrets: list[str], levels: int) -> Any:
    if not secrets:
        return given
    if isinstance(given, str):
        return _hidden(given, secrets)
    if isinstance(given, Mapping | list | tuple) and levels == 0:
        return REDACTED
    if isinstance(given, Mapping):
        members = cast("Mapping[str, Any]", given).items()
        return {_hidden(str(name), secrets): _without(one, secrets, levels - 1) for name, one in members}
    if isinstance(given, list | tuple):
        return [_without(member, secrets, levels - 1) for member in cast("list[Any]", given)]
    return given
