"""Paid work of a provider, as nodes ask for it: submitted once, observed for as long as it takes, settled once.

`submit_task` charges and submits; `observe_task` parks the job until the task has ended. Whoever else learns of the end
(a poll, a webhook, a person) settles the task, and the job is woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from datetime import timedelta
from typing import Any, TypedDict, TypeVar

from sqlalchemy import Connection

from everstep.checkpoints import jobs, provider_tasks
from everstep.checkpoints.jobs import LostClaim
from everstep.checkpoints.provider_status import ProviderStatus
from everstep.checkpoints.provider_tasks import ProviderTask
from everstep.checkpoints.quote import Quote
from everstep.checkpoints.waits import Wait
from everstep.errors import CancelUnsupported, OutsideJob, WaitInvalid
from everstep.nodes.attempt import Attempt, current
from everstep.nodes.effect import effect
from everstep.nodes.providers.interface import Provider, Submitted
from everstep.nodes.submission import EFFECT, Submission, check_request
from everstep.nodes.wait import apark_until, park_until

__all__ = [
    "Provider",
    "Submitted",
    "TaskView",
    "cancel_task",
    "cancel_task_sync",
    "observe_task",
    "observe_task_sync",
    "submit_task",
    "submit_task_sync",
]

R = TypeVar("R")


class TaskView(TypedDict):
    """A task as graphs and people see it; JSON, so it may stand in a graph's state.

    Attributes:
        id: Its id; `observe_task` takes it, or all of this.
        provider: The provider's name.
        key: The submission's key.
        generation: Which try of the submission it is, from 1.
        state: `pending` until it is known to be `succeeded` or `failed`.
        result: What it gave, if it succeeded.
        error: Why it failed, if it did.
        progress: Percent, if the provider tells.
        amount: What it costs, in the currency's smallest unit; 0: nothing.
        currency: The currency.
    """

    id: str
    provider: str
    key: str
    generation: int
    state: str
    result: Any
    error: Any
    progress: int | None
    amount: int
    currency: str | None


async def submit_task(
    provider: str,
    request: Mapping[str, Any],
    *,
    key: str,
    generation: int = 1,
    quote: Quote | None = None,
    allow_secret_keys: bool = False,
) -> TaskView:
    """Submit paid work, once, whatever happens to this process; in an async node.

    Args:
        provider: The provider's name in `everstep.toml`.
        request: What is asked for; JSON.
        key: What makes it the same submission, among all of its owner's; a second one with it is the first.
        generation: 1, or one more than the generation that failed, to pay and try once more.
        quote: What it costs; None: nothing is charged.
        allow_secret_keys: Accept a request that looks as if it held credentials.

    Returns:
        The task, `pending`; or as it ended, if that is known. A request that the provider refuses for good is a task
        that `failed`, and its charge is given back.

    Raises:
        OutsideJob: No job runs here.
        SecretInPayload: The request seems to hold credentials, and the record is no place for them.
        ProviderNotFound: There is no such provider.
        SubmissionConflict: The key belongs to another request.
        GenerationRefused: The generation before has not failed.
        InsufficientCredit: The owner's credit does not cover the price; nothing was submitted.
        EffectUnknown: Nobody can say whether the provider took it; a person has to.
        ProviderTaskConflict: The provider's id for it is another task's.
    """
    attempt = _attempt("submit_task")
    check_request(request, allow_secret_keys)
    submission, open_ = _submission(attempt, provider, request, key, generation, quote)
    if await asyncio.wrap_future(attempt.write(open_)):
        submit = effect(EFFECT, key=submission.task.provider_key, **submission.safeguard)
        try:
            outcome = await submit(submission.call)()
        except Exception:
            with suppress(LostClaim):
                await asyncio.wrap_future(attempt.write(submission.give_up))
            raise
        await asyncio.wrap_future(attempt.write(lambda connection: submission.note(connection, outcome)))
    return _submitted(submission)


def submit_task_sync(
    provider: str,
    request: Mapping[str, Any],
    *,
    key: str,
    generation: int = 1,
    quote: Quote | None = None,
    allow_secret_keys: bool = False,
) -> TaskView:
    """As `submit_task`, in a node that is not async."""
    attempt = _attempt("submit_task_sync")
    check_request(request, allow_secret_keys)
    submission, open_ = _submission(attempt, provider, request, key, generation, quote)
    if attempt.write(open_).result():
        submit = effect(EFFECT, key=submission.task.provider_key, **submission.safeguard)
        try:
            outcome = submit(lambda: _in_own_loop(submission.call()))()
        except Exception:
            with suppress(LostClaim):
                attempt.write(submission.give_up).result()
            raise
        attempt.write(lambda connection: submission.note(connection, outcome)).result()
    return _submitted(submission)


async def observe_task(task: TaskView | str, *, window: float | None = None) -> TaskView:
    """Wait for a task's end; the job is parked until then, and holds no worker. In an async node.

    Args:
        task: The task, or its id.
        window: Seconds after which to go on without an end, counted from the first time this is asked; the task goes
            on all the same, and may be observed again. None: until its end.

    Returns:
        The task as it ended; or `pending`, if the window was over first.

    Raises:
        OutsideJob: No job runs here.
        ProviderTaskNotFound: The job's owner has no such task.
    """
    attempt = _attempt("observe_task")
    seen = await attempt.store.aread(_finder(attempt, task))
    wait = await apark_until(seen.signal, until=_span(window))
    return _observed(await attempt.store.aread(_finder(attempt, seen.public_id)), wait)


def observe_task_sync(task: TaskView | str, *, window: float | None = None) -> TaskView:
    """As `observe_task`, in a node that is not async."""
    attempt = _attempt("observe_task_sync")
    seen = attempt.store.read(_finder(attempt, task))
    wait = park_until(seen.signal, until=_span(window))
    return _observed(attempt.store.read(_finder(attempt, seen.public_id)), wait)


async def cancel_task(task: TaskView | str) -> bool:
    """Ask the provider to end a task; in an async node. Observe it to learn what it is then: it may have succeeded.

    Args:
        task: The task, or its id.

    Returns:
        Whether the provider was asked; not if it cannot cancel, if it is not known to have the task, or if the task
        has ended.

    Raises:
        OutsideJob: No job runs here.
        ProviderTaskNotFound: The job's owner has no such task.
    """
    attempt = _attempt("cancel_task")
    public_id = task if isinstance(task, str) else task["id"]
    return await effect("provider.cancel", idempotent=True)(_canceller(attempt))(public_id)


def cancel_task_sync(task: TaskView | str) -> bool:
    """As `cancel_task`, in a node that is not async."""
    attempt = _attempt("cancel_task_sync")
    cancel, public_id = _canceller(attempt), task if isinstance(task, str) else task["id"]

    def cancel_in_thread(task: str) -> bool:
        return _in_own_loop(cancel(task))

    return effect("provider.cancel", idempotent=True)(cancel_in_thread)(public_id)


def _attempt(name: str) -> Attempt:
    attempt = current.get()
    if attempt is None:
        raise OutsideJob(
            f"{name} was called where no job runs, and paid work needs the record",
            next_step="run the graph as a job: everstep submit GRAPH …, and everstep worker",
        )
    if attempt.blocked is not None:
        raise attempt.blocked
    return attempt


def _submission(
    attempt: Attempt, provider: str, request: Mapping[str, Any], key: str, generation: int, quote: Quote | None
) -> tuple[Submission, Callable[[Connection], bool]]:
    entry = attempt.providers.entry(provider)
    submission = Submission(attempt, attempt.providers.get(provider), entry.poll_first_ms)

    def open_(connection: Connection) -> bool:
        return submission.open(connection, request=request, key=key, generation=generation, quote=quote)

    return submission, open_


def _submitted(submission: Submission) -> TaskView:
    if submission.conflict is not None:
        raise submission.conflict
    return _view(submission.task)


def _finder(attempt: Attempt, task: TaskView | str) -> Callable[[Connection], ProviderTask]:
    public_id = task if isinstance(task, str) else task["id"]

    def find(connection: Connection) -> ProviderTask:
        return provider_tasks.find(connection, public_id, owner=jobs.get(connection, attempt.job_id).owner)

    return find


def _canceller(attempt: Attempt) -> Callable[[str], Coroutine[Any, Any, bool]]:
    """What an effect calls; what it gave once it gives in every replay, though the task has ended by then."""

    async def cancel(task: str) -> bool:
        seen = await attempt.store.aread(_finder(attempt, task))
        if seen.is_final or seen.provider_task_id is None:
            return False
        try:
            await attempt.providers.get(seen.provider).cancel(seen.provider_task_id)
        except CancelUnsupported:
            return False
        await attempt.store.awrite(lambda connection: _ask_soon(connection, attempt, seen))
        return True

    return cancel


def _ask_soon(connection: Connection, attempt: Attempt, task: ProviderTask) -> None:
    soon, now = ProviderStatus("pending", retry_after_ms=0), attempt.store.clock.now_ms()
    actor = f"job {attempt.public_id}"
    provider_tasks.reconcile(connection, task, soon, source="cancel", actor=actor, now=now)


def _span(window: float | None) -> timedelta | None:
    if window is not None and not window >= 0:
        raise WaitInvalid(
            f"a task is observed for {window!r} seconds", next_step="give 0 or more, or leave `window` out"
        )
    return None if window is None else timedelta(seconds=window)


def _observed(task: ProviderTask, wait: Wait) -> TaskView:
    """What was seen: decided by the wait, so that every replay sees the same."""
    view = _view(task)
    return view if wait.state == "met" else {**view, "state": "pending", "result": None, "error": None}


def _view(task: ProviderTask) -> TaskView:
    return {
        "id": task.public_id,
        "provider": task.provider,
        "key": task.submission_key,
        "generation": task.generation,
        "state": task.state if task.is_final else "pending",
        "result": task.result,
        "error": task.error,
        "progress": task.progress,
        "amount": task.amount,
        "currency": task.currency,
    }


def _in_own_loop(work: Coroutine[Any, Any, R]) -> R:
    """The result of a coroutine, in a thread that may be the event loop's own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, thread_name_prefix="everstep-provider") as thread:
        return thread.submit(copy_context().run, asyncio.run, work).result()
