"""What runs the steps of an effect: in the caller's thread, or on the event loop.

The life of an effect is a generator that yields what has to be done next; a driver does it and sends the outcome back.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from everstep.errors import EffectInvalid
from everstep.nodes.attempt import Attempt


@dataclass(frozen=True)
class Write:
    """Write to the record."""

    operation: Callable[[Connection], Any]


@dataclass(frozen=True)
class Read:
    """Read the record, which waits for no write."""

    operation: Callable[[Connection], Any]


@dataclass(frozen=True)
class Call:
    """Call a function of the user: the effect itself, or its probe."""

    function: Callable[[], Any]
    is_probe: bool = False


@dataclass(frozen=True)
class Wait:
    """Wait for another call's end."""

    end: Future[Any]


@dataclass(frozen=True)
class Pause:
    """Let others go first."""

    seconds: float


Step = Write | Read | Call | Wait | Pause
Steps = Generator[Step, Any, Any]


class _Life:
    """The generator, and what came of its last step."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._answer: Any = None
        self._failure: Exception | None = None

    def next(self) -> Step:
        """The next step; StopIteration with the result at the end."""
        answer, failure = self._answer, self._failure
        self._answer = self._failure = None
        return self._steps.send(answer) if failure is None else self._steps.throw(failure)

    def answer(self, answer: Any) -> None:
        """The step went well."""
        self._answer = answer

    def fail(self, failure: Exception) -> None:
        """The step raised."""
        self._failure = failure


def drive(attempt: Attempt, steps: Steps) -> Any:
    """Run the steps of an effect in this thread."""
    life = _Life(steps)
    with closing(steps):
        while True:
            try:
                step = life.next()
            except StopIteration as end:
                return end.value
            try:
                if isinstance(step, Write):
                    life.answer(attempt.write(step.operation).result())
                elif isinstance(step, Read):
                    life.answer(attempt.store.read(step.operation))
                elif isinstance(step, Call):
                    life.answer(_called(step))
                elif isinstance(step, Pause):
                    time.sleep(step.seconds)
                else:
                    _wait(step.end)
            except Exception as error:
                life.fail(error)


async def drive_async(attempt: Attempt, steps: Steps) -> Any:
    """Run the steps of an effect to their end, in a task of their own; what returns an awaitable is awaited."""
    return await attempt.finish(_drive_async(attempt, steps))


async def _drive_async(attempt: Attempt, steps: Steps) -> Any:
    life = _Life(steps)
    with closing(steps):
        while True:
            try:
                step = life.next()
            except StopIteration as end:
                return end.value
            try:
                if isinstance(step, Write):
                    life.answer(await asyncio.wrap_future(attempt.write(step.operation)))
                elif isinstance(step, Read):
                    life.answer(await attempt.store.aread(step.operation))
                elif isinstance(step, Call):
                    answer = step.function()
                    life.answer(await answer if inspect.isawaitable(answer) else answer)
                elif isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                else:
                    await asyncio.shield(asyncio.wrap_future(step.end))
            except Exception as error:
                life.fail(error)


def _called(step: Call) -> Any:
    answer = step.function()
    if inspect.iscoroutine(answer) and not step.is_probe:
        answer.close()  # it has not begun
        raise NotBegun(
            "a sync function that returns a coroutine cannot be an effect: nobody awaits it here",
            next_step="put @effect on the async function itself, below its other decorators",
        )
    return _awaited(answer) if inspect.isawaitable(answer) else answer


class NotBegun(EffectInvalid):
    """The call was refused before it did anything."""


def _wait(end: Future[Any]) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        end.result()
        return
    raise EffectInvalid(
        "a sync effect was called on the event loop while a call with the same key is under way",
        next_step="make the effect async, or call it in a sync node",
    )


def _awaited(awaitable: Awaitable[Any]) -> Any:
    """The result of an async probe of a sync effect, whose own thread may be the event loop's."""

    async def wait() -> Any:
        return await awaitable

    with ThreadPoolExecutor(1, thread_name_prefix="everstep-probe") as thread:
        return thread.submit(copy_context().run, asyncio.run, wait()).result()
