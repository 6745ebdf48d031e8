"""Which providers a program has, by name, and how each is used; an attempt, the poller and the server carry it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from everstep.errors import EventInvalid, EventRefused, ProviderNotFound
from everstep.nodes.providers.blackout import Blackout
from everstep.nodes.providers.interface import Provider

if TYPE_CHECKING:
    from everstep.checkpoints.provider_status import ProviderEvent

Check = Callable[[Mapping[str, str], bytes, int], None]
"""Refuses a message that is not genuine: its headers, its body, and the time in UTC milliseconds."""


@dataclass(frozen=True)
class Entry:
    """A provider and how it is used.

    Attributes:
        make: Makes it, when it is first needed.
        rate: Most queries a second, over all processes; None: as many as are due.
        burst: How many of them may come at once.
        poll_first_ms: How long after its submission a task is first asked about.
        poll_most_ms: The longest time between two queries about one task.
        check: Tells whether a message is genuine; None: it sends none that could be told.
        prices: Path of its price list.
        secret_envs: Variables that hold its key and the secrets of its webhook.
    """

    make: Callable[[], Provider]
    rate: Fraction | None = None
    burst: int = 1
    poll_first_ms: int = 2_000
    poll_most_ms: int = 300_000
    check: Check | None = None
    prices: Path | None = None
    secret_envs: tuple[str, ...] = ()


@dataclass
class Providers:
    """Providers by name.

    Args:
        entries: What there is.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict[str, Entry])
    _made: dict[str, Provider] = field(default_factory=dict[str, Provider])
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def of(cls, *providers: Provider) -> Providers:
        """Providers given as objects, such as in a test."""

        def entry(provider: Provider) -> Entry:
            return Entry(lambda: provider)

        return cls({provider.name: entry(provider) for provider in providers})

    @property
    def names(self) -> list[str]:
        """Their names."""
        return list(self.entries)

    def entry(self, name: str) -> Entry:
        """How a provider is used.

        Raises:
            ProviderNotFound: There is none of this name.
        """
        if name in self.entries:
            return self.entries[name]
        close = get_close_matches(name, self.entries, n=1)
        known = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(self.entries) or 'none'}."
        raise ProviderNotFound(
            f"there is no provider {name!r}",
            next_step=f"{known} A provider is a section [providers.{name}] of everstep.toml.",
            provider=name,
        )

    def get(self, name: str) -> Provider:
        """A provider, made at its first use.

        Raises:
            ProviderNotFound: There is none of this name.
            ProviderUnusable: It cannot be made.
        """
        entry = self.entry(name)
        with self._lock:
            if name not in self._made:
                self._made[name] = entry.make()
            return self._made[name]

    def webhook(self, name: str, headers: Mapping[str, str], body: bytes, *, now_ms: int) -> ProviderEvent:
        """What a message to a provider's webhook says, if it is genuine.

        Args:
            name: The provider's name.
            headers: The request's headers, their names in small letters.
            body: What was sent, byte by byte.
            now_ms: UTC milliseconds.

        Raises:
            ProviderNotFound: There is none of this name.
            EventRefused: It is not known to be genuine, or too old or from the future.
            ProviderUnusable: The secret is not in the environment.
            EventInvalid: It is genuine, and nothing that this provider sends.
        """
        check, blackout = self.entry(name).check, Blackout(self.entry(name).secret_envs)
        if check is None:
            raise EventRefused(
                f"the provider {name} has no webhook",
                next_step=f"say in everstep.toml how its messages are signed: [providers.{name}.webhook]",
                provider=name,
            )
        check(headers, body, now_ms)
        try:
            event = self.get(name).parse_webhook(headers, body)
        except ValueError as error:  # an id that no record can keep
            why = blackout.text(str(error))
            raise EventInvalid(f"the message of the provider {name} cannot be read: {why}", provider=name) from None
        return replace(event, status=blackout.status(event.status))
