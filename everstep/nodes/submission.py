"""One submission of paid work, from its row to the provider's id: what `submit_task` does, for sync and async nodes.

The call is an effect, `provider.submit`, whose key is the task's own. The row goes along: what the provider answered is
noted at once, whoever holds the claim by then, because it is true; what is not known stays unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from everstep import crash
from everstep.checkpoints import claims, jobs, provider_tasks
from everstep.checkpoints import effects as effect_rows
from everstep.checkpoints.payload import find_secrets
from everstep.checkpoints.provider_outcome import Outcome, tell
from everstep.checkpoints.provider_status import SUBMIT, ProviderStatus
from everstep.checkpoints.provider_tasks import ProviderTask
from everstep.checkpoints.quote import Quote
from everstep.errors import EverstepError, ProviderConflict, ProviderRefused, ProviderTaskConflict, SecretInPayload
from everstep.nodes import arguments
from everstep.nodes.attempt import Attempt
from everstep.nodes.effect_life import EffectUnknown
from everstep.nodes.providers.interface import Provider, Submitted

logger = logging.getLogger("everstep.provider")

EFFECT = SUBMIT
PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0


def check_request(request: Mapping[str, Any], allow_secret_keys: bool) -> None:
    """Refuse a request that seems to hold credentials: the record keeps it.

    Raises:
        SecretInPayload: Names every suspect path, never a value.
    """
    paths = [] if allow_secret_keys else find_secrets(dict(request))
    if paths:
        raise SecretInPayload(
            f"the request to the provider seems to hold credentials at {', '.join(paths)}; the record keeps it",
            next_step="leave them out: the provider of everstep.toml reads its key from the environment (api_key_env);"
            " or say allow_secret_keys=True if they are none",
            paths=paths,
        )


class Submission:
    """A submission by one attempt; its functions are what the effect calls.

    Attributes:
        conflict: The provider's id turned out to be another task's; that is evidence in the record.

    Args:
        attempt: The attempt.
        provider: Who is asked.
        poll_first_ms: How long after its acceptance the task is first asked about, milliseconds.
    """

    def __init__(self, attempt: Attempt, provider: Provider, poll_first_ms: int) -> None:
        self._attempt = attempt
        self._provider = provider
        self._poll_first_ms = poll_first_ms
        self._task: ProviderTask | None = None
        self.conflict: ProviderTaskConflict | None = None

    @property
    def task(self) -> ProviderTask:
        """The task as it was last seen."""
        assert self._task is not None
        return self._task

    def open(
        self, connection: Connection, *, request: Mapping[str, Any], key: str, generation: int, quote: Quote | None
    ) -> bool:
        """Make the task, or load it; in a transaction of the attempt.

        Returns:
            Whether this attempt has to see to its submission.
        """
        attempt, now = self._attempt, self._now
        claims.fence(connection, attempt.job_id, attempt.claim_no)
        task, _ = provider_tasks.create(
            connection,
            owner=jobs.get(connection, attempt.job_id).owner,
            submission_key=key,
            generation=generation,
            job=attempt.public_id,
            provider=self._provider.name,
            request=dict(request),
            quote=quote,
            now=now,
            actor=f"job {attempt.public_id}",
        )
        task = provider_tasks.lock(connection, task)  # another job may adopt it now
        effect = effect_rows.by_key(connection, self._effect_key(task))
        if effect is not None and effect.state == "rejected" and task.job == attempt.public_id:
            task = provider_tasks.not_accepted(connection, task, now=now)
        self._task = task = provider_tasks.submitting(connection, task, job=attempt.public_id, now=now)
        if task.job != attempt.public_id:
            return False
        return task.state in ("submitting", "submission_unknown") or (
            effect is not None and effect.state in ("intended", "unknown")
        )

    # ---- what the effect does

    async def call(self) -> Outcome:
        """Submit it, and note what came of it."""
        task = await self._attempt.store.aread(self._reloaded)
        if task.state == "created":  # an equal call beside this one was surely refused
            task = await asyncio.wrap_future(self._attempt.write(self._submitting))
        if (known := _known(task)) is not None:
            return known
        try:
            submitted = await self._provider.submit(task.request, key=task.provider_key)
        except ProviderRefused as error:
            refused = ProviderStatus("failed", error={"message": error.message, **error.ids})
            outcome: Outcome = {"refused": refused.as_dict()["error"]}  # without credentials
        except ProviderConflict:  # also where the key is honoured: the same key again may be answered so for ever
            found = await self._provider.find(task.provider_key) if self._provider.findable else None
            if found is None:
                raise
            outcome = _outcome(found)
        else:
            outcome = _outcome(submitted)
        crash.point("provider.submitted", self._provider.name, task)
        try:
            await self._attempt.store.awrite(lambda connection: self.note(connection, outcome))
        except EverstepError as error:  # what the effect keeps is noted again
            logger.warning("what became of provider task %s could not be noted yet: %s", task.public_id, error)
        return outcome

    @property
    def safeguard(self) -> dict[str, Any]:
        """How the effect finds out about a lost answer: the same key again, else the provider is asked, else a person.

        A provider that honours the key is not asked: that it does not show the task yet is no proof, and submitting
        with the same key is.
        """
        return {"idempotent": True} if self._provider.idempotent else {"probe": self.probe}

    async def probe(self) -> Outcome:
        """What is known of a submission whose answer was lost; None: the provider surely has no such task.

        Raises:
            EffectUnknown: Nobody can say.
        """
        task = await self._attempt.store.aread(self._reloaded)
        if (known := _known(task)) is not None:
            return known
        if self._provider.findable:
            found = await self._found(task.provider_key)
            return None if found is None else _outcome(found)
        raise EffectUnknown(
            f"nobody can say whether the provider {task.provider} took task {task.public_id}",
            next_step="look for it at the provider, by its time and its content; then: everstep review approve ID"
            " --value '\"ITS ID THERE\"', or reject ID if it is not there",
            effect=EFFECT,
            key=self._effect_key(task),
        )

    async def _found(self, key: str) -> Submitted | None:
        """Ask by our key, for as long as a task that is not there may still be on its way."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + self._provider.settle_s, PAUSE_S
        while True:
            over = loop.time() >= until
            found = await self._provider.find(key)
            if found is not None or over:
                return found
            await asyncio.sleep(min(pause, max(until - loop.time(), 0)))
            pause = min(pause * 2, LONGEST_PAUSE_S)

    # ---- what the row is told

    def note(self, connection: Connection, outcome: Outcome) -> ProviderTask:
        """Tell the task what is known of its submission; twice is nothing. Needs no claim: it is true whoever knows."""
        now, task, actor = self._now, self._reloaded(connection), f"job {self._attempt.public_id}"
        next_poll_at = now + self._poll_first_ms
        self.conflict = None
        try:
            task = tell(connection, task, outcome, actor=actor, now=now, next_poll_at=next_poll_at)
        except ProviderTaskConflict as error:  # raised once the evidence is committed
            self.conflict = error
        self._task = task
        return task

    def give_up(self, connection: Connection) -> None:
        """The effect raised: the task is not accepted if the effect was rejected, and otherwise unknown."""
        claims.fence(connection, self._attempt.job_id, self._attempt.claim_no)
        effect = effect_rows.by_key(connection, self._effect_key(self.task))
        change = provider_tasks.unknown if effect and effect.state != "rejected" else provider_tasks.not_accepted
        self._task = change(connection, self.task, now=self._now)

    def _submitting(self, connection: Connection) -> ProviderTask:
        claims.fence(connection, self._attempt.job_id, self._attempt.claim_no)
        return provider_tasks.submitting(connection, self.task, job=self._attempt.public_id, now=self._now)

    def _reloaded(self, connection: Connection) -> ProviderTask:
        return provider_tasks.get(connection, self.task.id)

    def _effect_key(self, task: ProviderTask) -> str:
        return arguments.effect_key(self._attempt.job_key, EFFECT, "business", task.provider_key)

    @property
    def _now(self) -> int:
        return self._attempt.store.clock.now_ms()


def _known(task: ProviderTask) -> Outcome:
    """What the row says by itself: a webhook, or a person, was faster than the answer."""
    if task.provider_task_id is not None:
        return task.provider_task_id
    return {"settled": task.state} if task.is_final else None


def _outcome(submitted: Submitted) -> Outcome:
    if submitted.status is None or not submitted.status.is_final:
        return submitted.provider_task_id
    status = replace(
        submitted.status, provider_task_id=None
    )  # it is about this one, by whatever id its answer calls it
    return {"provider_task_id": submitted.provider_task_id, "status": status.as_dict()}
