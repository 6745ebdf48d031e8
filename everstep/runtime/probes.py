"""Asking whether a service that is out works again: by the command that `everstep.toml` names for it.

Of all workers one asks at a time; the answer is whether the command exits with 0. A service without such a command is
tried by one of the jobs that wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shlex
import signal

from everstep.checkpoints import services
from everstep.checkpoints.services import Service
from everstep.checkpoints.store import Store
from everstep.counts import counted
from everstep.errors import StoreUnavailable
from everstep.graphs.policies import Policies
from everstep.runtime import backoff

logger = logging.getLogger("everstep.services")

TIMEOUT_S = 60.0


class Probes:
    """Asks for the services of a record that are out, when their time has come.

    Args:
        store: The record.
        policies: Which services have a probe.
        randomness: Source of the waits' jitter.
    """

    def __init__(self, store: Store, policies: Policies, randomness: random.Random) -> None:
        self._store = store
        self._commands = policies.probes()
        self._randomness = randomness
        self._asking: set[asyncio.Task[None]] = set()

    async def ask(self) -> None:
        """Begin to ask for what is due, without waiting for the answers."""
        if not self._commands:
            return
        try:
            for service in await self._store.aread(lambda connection: services.every(connection, gate="closed")):
                due = (service.opens_at or 0) <= self._store.clock.now_ms()
                if due and service.name in self._commands and await self._is_mine(service):
                    task = asyncio.create_task(self._ask(service, self._commands[service.name]))
                    self._asking.add(task)
                    task.add_done_callback(self._asking.discard)
        except StoreUnavailable as error:
            logger.error("%s", error)

    async def stop(self) -> None:
        """Forget the answers that are not there yet."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def _is_mine(self, service: Service) -> bool:
        now = self._store.clock.now_ms()
        until = now + round(TIMEOUT_S * 2000)
        return await self._store.awrite(
            lambda connection: services.postpone(connection, service, now=now, until=until, failed=False)
        )

    async def _ask(self, service: Service, command: str) -> None:
        code = await _exit_code(command)
        now = self._store.clock.now_ms()
        try:
            current = await self._store.aread(lambda connection: services.find(connection, service.name))
            if (current.gate, current.closed_at) != ("closed", service.closed_at):  # another outage, or none
                return
            if code == 0:
                number = await self._store.awrite(lambda connection: services.open_gate(connection, current, now=now))
                logger.info(
                    "%s works again, says its probe: %s on", service.name, counted(number, "job goes", "jobs go")
                )
                return
            wait = backoff.outage_delay_ms(str(service.symptom), service.outages, None, self._randomness)
            await self._store.awrite(
                lambda connection: services.postpone(connection, current, now=now, until=now + wait, failed=True)
            )
            again = f"it is asked again in {wait / 1000:.0f} s"
            logger.warning("%s is still out: its probe gave %s; %s", service.name, code, again)
        except StoreUnavailable as error:
            logger.error("%s", error)


async def _exit_code(command: str) -> int | str:
    """What the command exits with, or why it did not."""
    try:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return str(error)
    try:
        return await asyncio.wait_for(process.wait(), TIMEOUT_S)
    except TimeoutError:
        return f"no answer in {TIMEOUT_S:.0f} s"
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
