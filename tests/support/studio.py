"""A provider of the user's own, in this process, that does what a prompt says."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from everstep.checkpoints import ledger
from everstep.checkpoints.provider_status import ProviderStatus
from everstep.checkpoints.store import Store
from everstep.errors import CancelUnsupported, EffectRejected, ProviderRefused
from everstep.nodes.providers.interface import Provider, Submitted
from everstep.nodes.providers.registry import Entry, Providers

MADE = b"a moving picture"


@dataclass
class Studio(Provider):
    """Makes one artefact a task, when it is asked for the task as often as the prompt says: `after 2`; or it fails.

    Prompts: `after N`, `fail`, `never`, `refuse`, `at once`, `busy` (it takes nothing, and says so). A task that is
    cancelled fails.

    Attributes:
        submitted: The requests it took, by our key.
        cancels: Whether a task can be cancelled.
    """

    name: str = "studio"
    idempotent: bool = False
    findable: bool = True
    settle_s: float = 0.0
    cancels: bool = True
    submitted: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict[str, list[Mapping[str, Any]]])
    asked: dict[str, int] = field(default_factory=dict[str, int])
    cancelled: set[str] = field(default_factory=set[str])

    async def submit(self, request: Mapping[str, Any], *, key: str) -> Submitted:
        if request["prompt"] == "refuse":
            raise ProviderRefused("no such picture", status=400)
        if request["prompt"] == "busy":
            raise EffectRejected("too busy")
        self.submitted.setdefault(key, []).append(request)
        done = ProviderStatus("succeeded", result=self._made()) if request["prompt"] == "at once" else None
        return Submitted(f"task-of-{key}", done)

    async def find(self, key: str) -> Submitted | None:
        return Submitted(f"task-of-{key}") if key in self.submitted else None

    async def query(self, provider_task_id: str) -> ProviderStatus:
        key = provider_task_id.removeprefix("task-of-")
        asked = self.asked[key] = self.asked.get(key, 0) + 1
        word, _, number = str(self.submitted[key][0]["prompt"]).partition(" ")
        if word == "fail" or key in self.cancelled:
            return ProviderStatus("failed", error={"message": "it was too hard"})
        if word == "never" or asked < int(number or 1):
            return ProviderStatus("pending", progress=asked)
        return ProviderStatus("succeeded", result=self._made())

    async def cancel(self, provider_task_id: str) -> None:
        if not self.cancels:
            raise CancelUnsupported("it cannot be cancelled")
        self.cancelled.add(provider_task_id.removeprefix("task-of-"))

    def _made(self) -> Any:
        content = base64.b64encode(MADE).decode()
        return {"id": "secret-of-the-provider", "outputs": [{"b64_json": content, "media_type": "video/mp4"}]}


def providers_with(studio: Studio, prices: Path) -> Providers:
    """The providers of a program that has it, asked often."""
    return Providers({studio.name: Entry(lambda: studio, poll_first_ms=5, poll_most_ms=50, prices=prices)})


def granted(store: Store, amount: int = 1000, owner: str = "default") -> None:
    """Give an owner credit."""
    give = partial(ledger.grant, owner=owner, currency="EUR", amount=amount, reason="test", key="first", actor="test")
    store.write(partial(give, now=store.clock.now_ms())).result()


def balance(store: Store, owner: str = "default") -> int:
    """What an owner has."""
    return store.read(lambda connection: ledger.balance(connection, owner, "EUR"))
