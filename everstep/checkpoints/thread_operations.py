"""What a saver does with whole threads: delete, copy, prune, count answers, store long lists as a stock saver does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from everstep.checkpoints.history import Grown, Line, NewChunk
from everstep.checkpoints.long_lists import LongLists
from everstep.checkpoints.recorder import Place, Statement, place_of
from everstep.checkpoints.task_writes import Row, apart

if TYPE_CHECKING:
    from everstep.checkpoints.store import Store


INTERRUPT, RESUME = "__interrupt__", "__resume__"


class ThreadOperations(BaseCheckpointSaver[str]):
    """See `StepSaver`, which says how a write is recorded and submitted."""

    _store: Store
    _lists: LongLists

    def _record(self, write: Callable[[], Any], values: Mapping[str, Any]) -> tuple[Any, list[Statement]]:
        raise NotImplementedError

    def _submit(self, statements: list[Statement], progress: dict[str, Any] | None) -> Future[None]:
        raise NotImplementedError

    # ---- what differs between databases

    def chunks_of(self, place: Place, line: Line, first: int = 0) -> Sequence[tuple[str, bytes]]:
        """See `ChunkTable`."""
        raise NotImplementedError

    def storing(self, place: Place, new: NewChunk) -> Statement:
        """See `ChunkTable`."""
        raise NotImplementedError

    def counting(self, place: Place, chunks: Sequence[Line]) -> Statement:
        """See `ChunkTable`."""
        raise NotImplementedError

    def rewriting(self, row: Row, kind: str, value: bytes) -> Statement:
        """See `RewritingTable`."""
        raise NotImplementedError

    def _answers(self, thread_id: str) -> Sequence[tuple[str, str, str, str, str, bytes]]:
        """The writes to the channels of interrupts and answers: namespace, checkpoint, task, channel, type, value."""
        raise NotImplementedError

    def _deletion_of_runs(self, run_ids: Sequence[str]) -> list[Statement]:
        raise NotImplementedError

    def _copying(self, source_thread_id: str, target_thread_id: str) -> list[Statement]:
        raise NotImplementedError

    def _pruning(self, thread_id: str) -> list[Statement]:
        raise NotImplementedError

    def _deletion_of_lines(self, place: Place, left: Sequence[CheckpointTuple]) -> Statement:
        """Delete a place's chunks but those that these need; none, if there are others, or if they need more by now."""
        raise NotImplementedError

    def _together(self, thread_id: str) -> list[Row]:
        """What tasks of a thread wrote, of which a row is not as LangGraph would have stored it."""
        raise NotImplementedError

    def _stored_together(self, place: Place) -> list[str]:
        """Of the rows that are several of LangGraph's: each combination of channels."""
        raise NotImplementedError

    def _replacing(self, row: Row, rows: Sequence[Row]) -> list[Statement]:
        """Put rows in the place of one."""
        raise NotImplementedError

    def _freeing(self, place: Place, versions: Mapping[str, Any]) -> list[Statement]:
        """Make room for other values of these versions of channels, where values are kept by version."""
        raise NotImplementedError

    def _deletion_of_chunks(self, thread_id: str) -> Statement:
        raise NotImplementedError

    # ----

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread's checkpoints and writes."""
        _, statements = self._record(lambda: super(ThreadOperations, self).delete_thread(thread_id), {})
        # Chunks first, which are under the writes: whoever puts a checkpoint that needs them is waited for, and then
        # the checkpoint is seen, and goes too.
        self._submit(statements[::-1], None).result()

    async def adelete_thread(self, thread_id: str) -> None:
        """As `delete_thread`."""
        await self._store.in_thread(self.delete_thread, thread_id)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata name one of these runs, and their writes, in every namespace.

        As LangGraph warns: a `DeltaChannel` of a thread that goes on is rebuilt from its ancestors' writes, so do not
        delete runs in the middle of a live thread that has one.
        """
        self._submit(self._deletion_of_runs(run_ids), None).result()

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `delete_for_runs`."""
        await self._store.in_thread(self.delete_for_runs, run_ids)

    def _left(self, place: Place, run_ids: Sequence[str]) -> list[CheckpointTuple]:
        """The checkpoints of a place that are of none of these runs."""
        root: RunnableConfig = {"configurable": {"thread_id": place[0], "checkpoint_ns": place[1]}}
        return [each for each in super().list(root) if each.metadata.get("run_id") not in run_ids]

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread: every checkpoint and write, in every namespace."""
        self._submit(self._copying(source_thread_id, target_thread_id), None).result()

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `copy_thread`."""
        await self._store.in_thread(self.copy_thread, source_thread_id, target_thread_id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Drop old checkpoints.

        Args:
            thread_ids: The threads.
            strategy: `keep_latest` keeps the newest checkpoint of each namespace, and those ancestors a `DeltaChannel`
                in it is rebuilt from; `delete` drops everything.

        Raises:
            ValueError: Another strategy.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"unknown prune strategy {strategy!r}; use keep_latest or delete")
        for thread_id in thread_ids:
            if strategy == "delete":
                self.delete_thread(thread_id)
            else:
                self._submit(self._pruning(thread_id), None).result()

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As `prune`."""
        await self._store.in_thread(lambda: self.prune(thread_ids, strategy=strategy))

    def store_whole(self, thread_id: str) -> None:
        """Store the lists of a thread's checkpoints whole in each, and what tasks wrote, for a stock saver to read.

        That is what a stock saver stores: of a long conversation very much. `prune` it before to keep its newest state
        alone. Nobody should work on the thread meanwhile.
        """
        self._store.flush()
        stored = [*super().list({"configurable": {"thread_id": thread_id}})]
        while stored:
            found = stored.pop()  # so that one after the other is in memory
            values, place = found.checkpoint["channel_values"], place_of(found.config)
            versions = {
                name: found.checkpoint["channel_versions"][name]
                for name, value in values.items()
                if isinstance(value, Grown)
            }
            if versions:
                self._lists.restore(self.serde, found)
                root: RunnableConfig = {"configurable": {"thread_id": place[0], "checkpoint_ns": place[1]}}
                parent, put = found.parent_config or root, super().put
                write = functools.partial(put, parent, found.checkpoint, found.metadata, versions)
                _, statements = self._record(write, values)
                self._submit([*self._freeing(place, versions), *statements], None).result()
        for row in sorted(self._together(thread_id), key=attrgetter("kind")):  # a whole task's last: it takes most away
            place = row.thread_id, row.namespace
            rows = apart(row, functools.partial(self._lists.chunk_of, place))
            self._submit(self._replacing(row, rows), None).result()
        self._submit([self._deletion_of_chunks(thread_id)], None).result()

    def answers_used(self, thread_id: str) -> dict[str, int]:
        """For each interrupt a thread ever raised, by id: how many answers its task has stored.

        A node that fails after it used an answer keeps the answer but not its place; the number tells an answer that
        was used from one that still waits.
        """
        self._store.flush()
        tasks: dict[tuple[str, str, str], dict[str, Any]] = {}
        for namespace, checkpoint_id, task_id, channel, kind, value in self._answers(thread_id):
            tasks.setdefault((namespace, checkpoint_id, task_id), {})[channel] = self.serde.loads_typed((kind, value))
        used: dict[str, int] = {}
        for channels in tasks.values():
            for interrupt in channels.get(INTERRUPT, ()):
                used[interrupt.id] = max(used.get(interrupt.id, 0), len(channels.get(RESUME, ())))
        return used

    async def aanswers_used(self, thread_id: str) -> dict[str, int]:
        """As `answers_used`."""
        return await self._store.in_thread(self.answers_used, thread_id)
