"""`StepSaver`: LangGraph's own saver, joined to the record's transaction and fenced by the claim.

The stock saver of the database does all checkpoint SQL. Its cursor is replaced: what it writes is recorded in the
caller's thread (so values are serialised before anything can change them) and then run by the record's single writer,
in one transaction with the check that the claim still holds and with the job's progress. What it reads uses a
connection of its own. So a write by a worker that lost its claim changes nothing. Long lists are stored by their growth
(`history`); threads without one can be read by a stock `SqliteSaver` or `PostgresSaver`, which refuses the others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_id,
)
from sqlalchemy import Connection

from everstep import crash
from everstep.checkpoints import loop_bridge, serialization
from everstep.checkpoints.advances import Advances
from everstep.checkpoints.change_warnings import NEXT_NODE, ChangeWarnings
from everstep.checkpoints.delta_history import DeltaHistory
from everstep.checkpoints.fence import Fence
from everstep.checkpoints.foreknown import Foreknown, as_read
from everstep.checkpoints.history import HistoryGone
from everstep.checkpoints.long_lists import LongLists, Shortened
from everstep.checkpoints.recorder import Place, Recorder, Statement, place_of, size_of
from everstep.checkpoints.redaction import without_configuration, without_secrets
from everstep.checkpoints.step_serializer import StepSerializer
from everstep.checkpoints.step_write import StepWrite, Unwritten
from everstep.checkpoints.task_writes import Row, TaskWrites
from everstep.checkpoints.thread_operations import INTERRUPT, RESUME
from everstep.observability import metric_names

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store

ERROR = "__error__"
CONTROL = frozenset({INTERRUPT, RESUME, ERROR, "__error_source_node__"})
"""Channels that tell what happened to a task, not what it produced."""


class StepSaver(DeltaHistory):
    """A checkpoint saver whose every write is one operation of the record's writer. Made for the store's database.

    Args:
        store: The record.
        fence: The claim to write under; without one (tools, tests, other threads of work) writes are not fenced.
        full_lists: Store every list whole in each checkpoint, as a stock saver does, which can read them then.
    """

    def __new__(cls, store: Store, fence: Fence | None = None, *, full_lists: bool = False) -> StepSaver:
        """The saver of the store's database; of a subclass, one that is both."""
        ours = store.saver_class
        if cls is StepSaver:
            return object.__new__(ours)
        return object.__new__(cls if issubclass(cls, ours) else type(cls.__name__, (cls, ours), {}))

    recorder_class = Recorder
    stores_what_changed = False
    """Whether the stock saver stores the values of those channels alone whose version is new."""

    def __init__(self, store: Store, fence: Fence | None = None, *, full_lists: bool = False) -> None:
        self.serde = StepSerializer()
        self._lists = LongLists(self)
        self._writes = TaskWrites(self)
        self._full_lists = full_lists
        self._store = store
        self._fence = fence
        self._advances = None if fence is None else Advances(fence)
        self._recording = threading.local()
        self._warnings = ChangeWarnings()
        self._unwritten: Unwritten = {}
        self._foreknown = Foreknown()

    def recorder(self) -> Recorder:
        """What stands in for the cursor in the write that is under way in this thread."""
        return self._recording.recorder

    def begin_empty(self, thread_id: str, *, routed: bool = True) -> None:
        """A thread has no checkpoint, and nobody but this saver writes to it: nothing need be looked for before.

        What comes before any code of its graph (with `routed` that decides where it begins) is committed with what is
        written next, or in a moment: nothing but the input is in it, from which the next leg would begin as well.
        """
        self._foreknown.begin_empty(thread_id, routed=routed)

    # ---- writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; returns after the commit.

        Raises:
            LostClaim: The claim is no longer the job's; nothing was written.
            StateNotSerializable: A channel holds a value that cannot be stored.
        """
        saved, shortened, future = self._put(config, checkpoint, metadata, new_versions)
        try:
            future.result()
        except HistoryGone:  # what it went on from was deleted; nothing is known of that any more, so now it is whole
            saved, shortened, future = self._put(config, checkpoint, metadata, new_versions)
            future.result()
        self._lists.stored(place_of(saved), shortened)
        return self._committed(saved, shortened)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `put`."""
        bridge = loop_bridge.of_running_loop()
        begins = self._foreknown.is_beginning(config, checkpoint) and not crash.armed("checkpoint.")
        saved, shortened, future = self._put(config, checkpoint, metadata, new_versions, patient=begins, held=True)
        if begins:
            self._lists.stored(place_of(saved), shortened)  # whatever goes on from it is written after it
            bridge.here(future).add_done_callback(lambda done: self._begun(done, saved, shortened))
            return saved
        bridge.after_this_turn(id(self._store), self._store.commit_held)  # with those of all who step as well
        last = None if self._fence is None or shortened.lists else as_read(self.serde, saved, checkpoint, metadata)
        try:
            await bridge.wait(future)
        except HistoryGone:
            saved, shortened, future = self._put(config, checkpoint, metadata, new_versions)
            await bridge.wait(future)
        self._lists.stored(place_of(saved), shortened)
        self._foreknown.keep_newest(last)
        return self._committed(saved, shortened)

    def _begun(self, written: asyncio.Future[None], saved: RunnableConfig, shortened: Shortened) -> None:
        if not written.cancelled() and written.exception() is None:  # else the next write of the thread says so
            self._committed(saved, shortened)

    def _committed(self, saved: RunnableConfig, shortened: Shortened) -> RunnableConfig:
        crash.point("checkpoint.after_put")
        if self._fence is not None:
            self._fence.committed(shortened.checkpoint["id"], place_of(saved)[1])
        return saved

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        *,
        patient: bool = False,
        held: bool = False,
    ) -> tuple[RunnableConfig, Shortened, Future[None]]:
        crash.point("checkpoint.before_put")
        self._foreknown.written()
        values = checkpoint["channel_values"]
        self._warnings.look_at_first(self.serde, {name: values[name] for name in new_versions if name in values})
        progress: dict[str, Any] = {}
        if not config.get("configurable", {}).get("checkpoint_ns"):
            updated = checkpoint.get("updated_channels") or ()
            nodes = [name.removeprefix(NEXT_NODE) for name in updated if name.startswith(NEXT_NODE)]
            progress = {"step": max(metadata.get("step", 0), 0), "node": ", ".join(nodes) or None}

        def write() -> tuple[RunnableConfig, Shortened]:
            shortened = self._shorten(config, checkpoint, new_versions)
            plain = config if self._fence is None else without_configuration(config)
            return super(StepSaver, self).put(plain, shortened.checkpoint, metadata, new_versions), shortened

        (saved, shortened), statements = self._record(write, values)
        rewritten, chunks = self._writes.shorten(place_of(config), get_checkpoint_id(config), shortened.chunks)
        statements += [*rewritten, *(self.storing(place_of(config), chunk) for chunk in chunks)]
        future = self._submit(
            statements,
            progress,
            place=place_of(config),
            check=shortened.check,
            is_step=True,
            patient=patient,
            held=held,
        )
        return saved, shortened, future

    def _shorten(self, config: RunnableConfig, checkpoint: Checkpoint, new_versions: ChannelVersions) -> Shortened:
        if not self._shortens:
            return Shortened(checkpoint)
        values = checkpoint["channel_values"]
        stored = [name for name in values if name in new_versions] if self.stores_what_changed else list(values)
        return self._lists.shorten(self.serde, config, checkpoint, stored)

    @property
    def _shortens(self) -> bool:
        return not self._full_lists and isinstance(self.serde, StepSerializer)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote.

        What it produced is on its way when this returns: it is committed with the checkpoint that follows, or soon.
        Whoever reads by a saver of the same store sees it. If it cannot be stored, the next write of its namespace
        fails. What happened to a task (an interrupt, an answer, an error) is committed when this returns.

        Raises:
            LostClaim: The claim is no longer the job's; nothing was written.
            StateNotSerializable: A value cannot be stored.
        """
        future = self._put_writes(config, writes, task_id, task_path)
        if future is not None:
            future.result()
        crash.point("writes.after_put")

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As `put_writes`."""
        future = self._put_writes(config, writes, task_id, task_path)
        if future is not None:
            await loop_bridge.of_running_loop().wait(future)
        crash.point("writes.after_put")

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Future[None] | None:
        """Submit it; the future is what its caller has to wait for."""
        self._foreknown.written()
        self._warnings.look_at(self.serde, writes)
        writes = [(channel, without_secrets(value) if channel == ERROR else value) for channel, value in writes]
        if self._fence is not None and not all(channel in CONTROL for channel, _ in writes):
            self._fence.end_task(task_id)
        if any(channel == ERROR for channel, _ in writes):
            # LangGraph takes a task with any output for finished, also one that failed, or was cancelled, between its
            # output and its routing: resumed, it would go on without the routing. So a failed task keeps no output.
            writes = [write for write in writes if write[0] in CONTROL]
        _, statements = self._record(
            lambda: super(StepSaver, self).put_writes(config, writes, task_id, task_path), dict(writes)
        )
        if self._shortens:
            plain = self._lists.plain_channels(config)
            statements = [(sql, self._writes.to_store([Row(*row) for row in rows], plain)) for sql, rows in statements]
        patient = not any(channel in CONTROL for channel, _ in writes) and not crash.armed("writes.after_put")
        progress = {"progressed": any(channel not in CONTROL for channel, _ in writes)}
        future = self._submit(statements, progress, place=place_of(config), task_id=task_id, patient=patient)
        return None if patient else future

    def _record(self, write: Callable[[], Any], values: Mapping[str, Any]) -> tuple[Any, list[Statement]]:
        if self._fence is not None and self._fence.blocked is not None:
            self._fence.refused(self._fence.blocked)
            raise self._fence.blocked
        recorder = self._recording.recorder = self.recorder_class()
        try:
            return write(), recorder.statements
        except (TypeError, ValueError, OverflowError) as error:
            for name, value in values.items():
                try:
                    self.serde.dumps_typed(value)
                except Exception as reason:
                    raise serialization.refuse(self.serde, name, value, reason) from error
            raise

    def _submit(
        self,
        statements: list[Statement],
        progress: dict[str, Any] | None,
        *,
        place: Place | None = None,
        check: Callable[[Connection], None] | None = None,
        is_step: bool = False,
        task_id: str | None = None,
        patient: bool = False,
        held: bool = False,
    ) -> Future[None]:
        fence, now = self._fence, self._store.clock.now_ms()
        if fence is not None and fence.measures.is_on:
            fence.measures.add(metric_names.CHECKPOINT_SIZE, size_of(statements), fence.graph)
        operation = StepWrite(
            self._store.database,
            self._advances,
            self._unwritten,
            statements,
            now=now,
            progress=progress,
            place=place,
            check=check,
            is_step=is_step,
            patient=patient,
        )
        if fence is None:
            future = self._store.write(operation, patient=patient or held)
        else:
            graph_ns = place[1] if is_step and place is not None else None
            future = fence.write(operation, patient=patient or held, task_id=task_id, graph_ns=graph_ns)
        future.add_done_callback(operation.told)
        if self._advances is not None:
            self._advances.submitted(operation.advance, future)
        return future

    # ---- reading

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """List checkpoints, newest first; read to the end before the first is yielded, so that no read stays open.

        But the long lists of each when it is its turn: one after the other is in memory, and should the thread be
        deleted or pruned meanwhile, `StoreCorrupt` is raised there.
        """
        self._store.flush()
        found = [*super().list(config, filter=filter, before=before, limit=limit)][::-1]
        return (self._lists.restore(self.serde, found.pop()) for _ in range(len(found)))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As `list`."""
        found = await self._store.in_thread(lambda: self.list(config, filter=filter, before=before, limit=limit))
        while (each := await self._store.in_thread(lambda: next(found, None))) is not None:
            yield each

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that the config names, or the newest, with what is stored of its tasks."""
        if self._foreknown.is_empty(config):
            return None
        self._store.flush()
        found = super().get_tuple(config)
        if found is not None:
            self._lists.restore(self.serde, found, remember=True)
            self._warnings.known(found.checkpoint["channel_values"])
        return found

    def as_stored(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`, with what stands for long lists in place of them."""
        self._store.flush()
        return super().get_tuple(config)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `get_tuple`."""
        known, found = self._foreknown.take(config)
        return found if known else await self._store.in_thread(self.get_tuple, config)

    def knows(self, config: RunnableConfig) -> bool:
        """Whether `aget_tuple` of this config need not read."""
        return self._foreknown.knows(config)

    def read_ahead(self, config: RunnableConfig) -> None:
        """On a thread that reads anyhow: what `aget_tuple` of this config gives next, if nothing is written before."""
        self._foreknown.keep(config, self.get_tuple(config))
