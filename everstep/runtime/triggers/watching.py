"""What watches the folders of triggers, and handles the events that a dead process left stored.

One thread with an event loop of its own, beside a worker or a server, or by itself (`everstep triggers run`). Several
processes may watch one folder: an event is stored once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from everstep.checkpoints import trigger_events
from everstep.checkpoints.store import Store
from everstep.errors import EventInvalid
from everstep.graphs.event_sections import FolderTrigger, FromFiles, MailTrigger
from everstep.graphs.policies import Policies
from everstep.runtime.triggers import folders, mail
from everstep.runtime.triggers.folders import Settling, Version
from everstep.runtime.triggers.registry import Triggers

logger = logging.getLogger("everstep.triggers")

LOOK_EVERY_S = 60.0
"""How often a folder, and what is stored, is looked at though nothing told of a change."""
AGAIN_S = 5.0
"""After how long a folder that cannot be read is tried again."""


class Watching:
    """Watches until stopped.

    Args:
        store: The record.
        policies: What `everstep.toml` says.
        config_path: The `langgraph.json` it stands beside; folders are relative to that.
    """

    def __init__(self, store: Store, policies: Policies, config_path: Path) -> None:
        self._triggers = Triggers(store, policies)
        self._store = store
        self._base = config_path.absolute().parent
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        self._began = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="everstep-triggers", daemon=True)

    def start(self) -> None:
        """Begin to watch, on a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End what is under way, and return when nothing runs any more."""
        self._stopping = True
        if self._thread.ident is None:
            return
        self._began.wait()
        if self._loop is not None and not self._loop.is_closed():
            with suppress(RuntimeError):  # it ended just now
                self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            asyncio.run(self.watch())
        finally:
            self._began.set()

    async def watch(self) -> None:
        """Watch until stopped, here."""
        self._loop = asyncio.get_running_loop()
        self._stop, self._wake = asyncio.Event(), asyncio.Event()
        self._began.set()
        if self._stopping:
            return
        watched = [
            self._watch(name, section)
            for name, section in self._triggers.sections.items()
            if section.enabled and isinstance(section, MailTrigger | FolderTrigger)
        ]
        with ExitStack() as listening:
            listening.enter_context(self._store.database.listen(self._woken, trigger_events.TOPIC))
            await asyncio.gather(self._leftovers(), *watched)

    def _woken(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    async def _leftovers(self) -> None:
        """Handle what is stored, now and whenever somebody asks for it."""
        while not self._stop.is_set():
            self._wake.clear()
            wait = LOOK_EVERY_S
            try:
                await self._triggers.handle_waiting()
            except Exception as error:  # the record may be out of reach
                logger.warning("stored events cannot be handled, trying again: %s", error)
                wait = AGAIN_S
            await self._either(self._wake, wait)

    async def _watch(self, name: str, section: FromFiles) -> None:
        """Look at a folder whenever it changes, until stopped."""
        folder, settling, failing = self._base / section.folder, Settling(section.settle), False
        while not self._stop.is_set():
            changed, over = asyncio.Event(), asyncio.Event()
            changes = asyncio.create_task(_tell_of_changes(folder, section, changed, over))
            try:
                while not self._stop.is_set():
                    changed.clear()
                    await self._look(name, section, folder, settling)
                    failing = False
                    if changes.done():
                        changes.result()
                    rests_in = settling.rests_in(time.monotonic())
                    await self._either(changed, LOOK_EVERY_S if rests_in is None else min(rests_in, LOOK_EVERY_S))
            except Exception as error:
                level, failing = logging.DEBUG if failing else logging.WARNING, True
                logger.log(level, "trigger %s cannot look at %s, trying again: %s", name, folder, error)
                await self._either(self._stop, AGAIN_S)
            finally:
                over.set()
                await asyncio.gather(changes, return_exceptions=True)

    async def _look(self, name: str, section: FromFiles, folder: Path, settling: Settling) -> None:
        """Take the files that are complete."""
        if isinstance(section, MailTrigger):
            found = await asyncio.to_thread(folders.present, folder, mail.PATTERNS)
        else:
            seek = partial(folders.present, folder, section.patterns, section.ignore, recursive=section.recursive)
            found = await asyncio.to_thread(seek)
        complete = settling.look(found, time.monotonic())
        if isinstance(section, MailTrigger):
            for place, version in complete.items():
                await self._take_mail(name, section, folder, place, version)
                settling.take(place, version)
            return
        events = {place: folders.event_of(folder, place, version) for place, version in complete.items()}
        keys = [event.key for event in events.values()]
        known = await self._store.aread(partial(trigger_events.known, trigger=name, keys=keys)) if keys else set[str]()
        for place, event in events.items():
            if event.key not in known:
                stored, _ = await self._triggers.receive(name, event)
                await self._triggers.handle(stored)
            settling.take(place, complete[place])

    async def _take_mail(self, name: str, section: MailTrigger, folder: Path, place: str, version: Version) -> None:
        """Store a message, move it away, handle it; a process that dies between is made up for by the next look."""
        file = folder / place
        try:
            if version.size > section.max_bytes:
                raise EventInvalid(f"{place} has {version.size} bytes, more than max_bytes of the trigger")
            content = await asyncio.to_thread(file.read_bytes)
            to = mail.target(folder, place, content)
            event = await asyncio.to_thread(mail.event_of, content, name=place, file=str(to))
        except FileNotFoundError:  # another process was faster
            return
        except EventInvalid as error:
            logger.error("trigger %s: %s; it is in %s", name, error.message, folder / "failed")
            await asyncio.to_thread(mail.move, file, mail.target(folder, place, repr(version).encode(), to="failed"))
            return
        stored, _ = await self._triggers.receive(name, event)
        await asyncio.to_thread(mail.move, file, to)
        await self._triggers.handle(stored)

    async def _either(self, event: asyncio.Event, seconds: float) -> None:
        """Wait for an event, for being stopped, or for a time."""
        waits = [asyncio.create_task(each.wait()) for each in (event, self._stop)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()


async def _tell_of_changes(folder: Path, section: FromFiles, changed: asyncio.Event, over: asyncio.Event) -> None:
    """Set an event once the folder is watched, for what came before that, and whenever something in it changes.

    Args:
        folder: The folder.
        section: Its trigger.
        changed: The event to set.
        over: Ends it.

    Raises:
        FileNotFoundError: The folder is not there.
    """
    import watchfiles

    recursive = isinstance(section, FolderTrigger) and section.recursive
    awatch: Any = watchfiles.awatch  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    options = {"watch_filter": None, "recursive": recursive, "debounce": 200, "stop_event": over}
    is_first = True
    async for changes in awatch(folder, **options, rust_timeout=1000, yield_on_timeout=True):
        if changes or is_first:
            changed.set()
        is_first = False
