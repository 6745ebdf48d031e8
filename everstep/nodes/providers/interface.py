"""What a provider of paid work can do, whoever it is: take a request, be asked about it, and tell of its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from everstep.checkpoints.provider_status import require_id
from everstep.errors import CancelUnsupported, EventInvalid, QueryUnsupported

if TYPE_CHECKING:
    from everstep.checkpoints.provider_status import ProviderEvent, ProviderStatus


@dataclass(frozen=True)
class Submitted:
    """A request that the provider took.

    Attributes:
        provider_task_id: The provider's own id of it.
        status: What it is already; None: nothing was said.
    """

    provider_task_id: str
    status: ProviderStatus | None = None

    def __post_init__(self) -> None:
        require_id(self.provider_task_id)


class Provider(Protocol):
    """A provider; subclass it, and leave out what yours cannot do.

    Its methods run on whatever event loop calls them, several at once: what they share must not belong to one loop.
    They keep time limits of their own, and try nothing twice; the job's retries do that.

    Attributes:
        name: Its name in `everstep.toml`.
        idempotent: Whether a second `submit` with the same key is surely the same task.
        findable: Whether `find` can tell.
        settle_s: How many seconds after `find` was first asked a task may still turn up: the time limit of `submit`,
            and how long the provider takes to show what it accepted. Before, "not there" is no proof.
    """

    name: str
    idempotent: bool = False
    findable: bool = False
    settle_s: float = 60.0

    async def submit(self, request: Mapping[str, Any], *, key: str) -> Submitted:
        """Ask for the work.

        Args:
            request: What is asked for, JSON.
            key: Our key, the same in every try: to be passed on as the provider's idempotency key, or reference.

        Raises:
            ProviderRefused: It surely did not take it, and never will.
            ProviderConflict: It may have taken it before; it is asked by our key, if it can be, else tried again.
            Exception: Anything else. What surely did not reach the provider is told by the exception as in any effect
                (a refused connection, HTTP 429 and 503, `EffectRejected`); after all others nobody knows.
        """
        ...

    async def find(self, key: str) -> Submitted | None:
        """The task that was submitted with this key; None: it is not there.

        Raises:
            QueryUnsupported: The provider cannot be asked so.
        """
        raise QueryUnsupported(
            f"the provider {self.name} cannot be asked for a task by our key",
            next_step="look at the provider's own list of tasks",
            provider=self.name,
        )

    async def query(self, provider_task_id: str) -> ProviderStatus:
        """What a task is now.

        Raises:
            ProviderTaskMissing: The provider says that there is no such task.
        """
        ...

    async def cancel(self, provider_task_id: str) -> None:
        """Ask to end a task; what became of it is told by `query`. A task that has ended is no error.

        Raises:
            CancelUnsupported: The provider cannot.
        """
        raise CancelUnsupported(f"the provider {self.name} cannot cancel a task", provider=self.name)

    def parse_webhook(self, headers: Mapping[str, str], body: bytes) -> ProviderEvent:
        """What a message of the provider says; it is known to be genuine.

        A message that tells of an end and not what came of it is `pending` with `retry_after_ms=0`: ask now.

        Args:
            headers: Its headers, their names in small letters.
            body: What was sent.

        Raises:
            EventInvalid: It is nothing that this provider sends.
        """
        raise EventInvalid(f"the provider {self.name} is known to send no messages", provider=self.name)
