"""The scheduler: fires what is due, and sleeps until the next slot. A thread, which no graph can hold up.

Any number may run on one record: who handles a slot is decided there (`checkpoints.slots`). What is left undone while
none runs is made up for by the next, as each schedule says.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from pathlib import Path
from typing import Final

from sqlalchemy import Connection

from everstep.checkpoints import schedules, slots
from everstep.checkpoints.schedule import Schedule
from everstep.checkpoints.slots import Slot
from everstep.checkpoints.store import Store
from everstep.clock import rfc3339
from everstep.counts import counted
from everstep.graphs.policies import FILE_NAME, Policies
from everstep.observability import metric_names
from everstep.observability.measures import NOTHING, Measures

logger = logging.getLogger("everstep.schedules")

LOOK_EVERY_S: Final = 1.0
"""How soon a schedule that another process made or changed is seen, and a clock that was set."""


class Scheduler:
    """Fires schedules until stopped.

    Args:
        store: The record.
        policies: What `everstep.toml` says: what is asked of each graph's jobs.
        measures: What it measures with; whoever made it closes it.
        actor: Who it is in the record.
    """

    def __init__(
        self,
        store: Store,
        policies: Policies | None = None,
        *,
        measures: Measures = NOTHING,
        actor: str = "scheduler",
    ) -> None:
        self._store = store
        self._policies = policies or Policies()
        self._measures = measures
        self._actor = actor
        self._stopping = threading.Event()
        self._seen_at: int | None = None
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="everstep-schedules", daemon=True)

    def take_over(self, config_path: Path) -> list[tuple[str, str]]:
        """Bring the record in line with the schedules of the `everstep.toml` beside a `langgraph.json`.

        Returns:
            Names of schedules, each with what was done; see `schedules.take_over`.
        """
        origin = f"file:{config_path.absolute().with_name(FILE_NAME)}"
        sections = {
            name: (section.owner, section.enabled, section.definition())
            for name, section in self._policies.schedules.items()
        }
        bring = partial(schedules.take_over, sections=sections, origin=origin, now=self._store.clock.now_ms())
        done = self._store.write(bring).result()
        for name, what in done:
            logger.info("schedule %s: %s", name, what)
        return done

    def start(self) -> None:
        """Start firing."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; a slot that is being handled is finished first."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def wait_s(self, now: int) -> float:
        """Seconds until the next slot, or until the next look if that is earlier.

        Args:
            now: UTC milliseconds.
        """
        due = self._store.read(schedules.next_fire)
        return LOOK_EVERY_S if due is None else min(max(due - now, 0) / 1000, LOOK_EVERY_S)

    def look(self) -> list[Slot]:
        """Handle what is due now.

        Returns:
            The slots that this scheduler handled.
        """
        now = self._store.clock.now_ms()
        if self._seen_at is None or now < self._seen_at:
            for schedule in self._store.write(partial(slots.set_back, now=now)).result():
                logger.warning("schedule %s: the clock was set back; it goes on from now", schedule.label)
        self._seen_at = now
        handled: list[Slot] = []
        for schedule in self._store.read(partial(schedules.overdue, before=now)):
            fire = partial(
                slots.fire_due, schedule_id=schedule.id, now=now, actor=self._actor, policy_of=self._policies.of_graph
            )
            done = self._store.write(fire).result()
            self._tell(schedule, done)
            handled += done
        return handled

    def _run(self) -> None:
        wait_s = 0.0
        while not self._stopping.wait(wait_s):
            try:
                self.look()
                wait_s = self.wait_s(self._store.clock.now_ms())
                self._failing = False
            except Exception as error:  # the record may be out of reach, or full; the slots wait
                logger.log(logging.DEBUG if self._failing else logging.WARNING, "schedules wait: %s", error)
                self._failing, wait_s = True, LOOK_EVERY_S

    def _tell(self, schedule: Schedule, handled: list[Slot]) -> None:
        missed = [slot for slot in handled if slot.outcome == "missed"]
        if missed:
            first, last = rfc3339(missed[0].at), rfc3339(missed[-1].at)
            logger.warning(
                "schedule %s: %s missed, from %s to %s", schedule.label, counted(len(missed), "slot"), first, last
            )
        for slot in handled:
            self._measures.add(metric_names.SCHEDULE_SLOTS, 1, slot.outcome)
            if slot.outcome == "missed":
                continue
            self._measures.add(metric_names.SCHEDULE_LATENESS, slot.late_ms / 1000)
            what = f"schedule {schedule.label}, slot {rfc3339(slot.at)}"
            if slot.outcome == "failed":
                logger.error("%s: no job could be made: %s", what, slot.detail["error"]["message"])
            elif slot.outcome == "skipped":
                logger.warning("%s: skipped, as %s", what, slot.detail["because"])
            else:
                logger.info("%s: %s as job %s", what, slot.outcome, slot.job)


def fire(store: Store, given: str, policies: Policies, *, actor: str) -> tuple[Schedule, Slot]:
    """Run a schedule now, by hand.

    Args:
        store: The record.
        given: Its name, or an id of it.
        policies: What is asked of each graph's jobs.
        actor: Who does it.

    Raises:
        ScheduleNotFound: There is no such schedule.
    """
    now = store.clock.now_ms()

    def operation(connection: Connection) -> tuple[Schedule, Slot]:
        schedule = schedules.locked(connection, given)
        slot = slots.fire_now(connection, schedule, now=now, actor=actor, policy_of=policies.of_graph)
        return schedule, slot

    return store.write(operation).result()
