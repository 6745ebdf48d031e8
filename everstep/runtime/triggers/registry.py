"""The triggers of `everstep.toml`: an event is stored in one transaction and handled in the next.

What dies between the two leaves the event stored; whoever serves the trigger handles it then. Handling makes the job
and marks the event in one transaction, so neither is without the other, and the job's key makes it one job however
often that is done.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from sqlalchemy import Connection

from everstep import crash
from everstep.checkpoints import submission, trigger_events
from everstep.checkpoints.store import Store
from everstep.checkpoints.trigger_events import Event
from everstep.clock import uuid7
from everstep.errors import EventInvalid, EverstepError, StoreUnavailable, TriggerNotFound
from everstep.graphs.event_sections import OverHttp, Trigger
from everstep.graphs.policies import Policies
from everstep.runtime.triggers import incoming, rules, signatures
from everstep.runtime.triggers.incoming import Incoming

logger = logging.getLogger("everstep.triggers")


class Triggers:
    """Takes events.

    Args:
        store: The record.
        policies: What `everstep.toml` says.
    """

    def __init__(self, store: Store, policies: Policies) -> None:
        self.store = store
        self._clock = store.clock
        self.sections: Mapping[str, Trigger] = policies.triggers
        self._policies = policies

    def section(self, name: str) -> Trigger:
        """What is said of a trigger.

        Raises:
            TriggerNotFound: Nothing is.
        """
        if name not in self.sections:
            known = ", ".join(self.sections) or "none"
            raise TriggerNotFound(
                f"there is no trigger {name!r}", next_step=f"everstep.toml has: {known}", trigger=name
            )
        return self.sections[name]

    async def receive(self, name: str, event: Incoming) -> tuple[Event, bool]:
        """Store an event; or find the one it repeats.

        Returns:
            The event, and whether it is new.
        """
        trigger, now = self.section(name), self._clock.now_ms()
        kept = {"key": event.key, "headers": event.headers, "body": event.body, "occurred_at": event.occurred_at}
        store = partial(trigger_events.store, trigger=name, source=trigger.source, **kept, now=now)
        stored, created = await self.store.awrite(store)
        crash.point("trigger.stored", name)
        return stored, created

    async def handle(self, event: Event) -> Event:
        """Start a stored event's job, or note why it starts none; one that was handled stays as it is."""
        return await self._tried(event, partial(self._start, event=event))

    async def replay(self, event: Event, *, again: bool = False) -> Event:
        """Handle an event with what `everstep.toml` says now.

        Args:
            event: The event.
            again: Start another job of one that started a job; without it that job is what comes of it.
        """
        return await self._tried(event, partial(self._replay, event=event, again=again))

    async def handle_waiting(self) -> int:
        """Handle what is stored and was not handled, because whoever stored it died or could not; how many."""
        number = 0
        while waiting := await self.store.aread(partial(trigger_events.unhandled, triggers=list(self.sections))):
            for event in waiting:
                await self.handle(event)
            number += len(waiting)
        return number

    async def _tried(self, event: Event, operation: Any) -> Event:
        try:
            handled = await self.store.awrite(operation)
        except StoreUnavailable:
            raise  # it stays stored
        except EverstepError as error:
            handled = await self.store.awrite(
                partial(_fail, event=event, error=error.as_dict(), now=self._clock.now_ms())
            )
        except Exception as error:
            logger.exception("event %s of trigger %s could not be handled", event.public_id, event.trigger)
            told = {"code": "internal_error", "message": type(error).__name__}
            handled = await self.store.awrite(partial(_fail, event=event, error=told, now=self._clock.now_ms()))
        if handled.state == "failed":
            problem = json.loads(handled.error_json or "{}")
            logger.error(
                "event %s of trigger %s starts no job: %s [%s]; next: everstep triggers show %s",
                handled.public_id, handled.trigger, problem.get("message"), problem.get("code"), handled.public_id,
            )  # fmt: skip
        crash.point("trigger.handled", event.trigger)
        return handled

    def _replay(self, connection: Connection, event: Event, again: bool) -> Event:
        event = trigger_events.lock(connection, event)
        if event.state == "started" and not again:
            return event
        return self._start(connection, trigger_events.set_stored(connection, event), again=again)

    def _start(self, connection: Connection, event: Event, again: bool = False) -> Event:
        event, now = trigger_events.lock(connection, event), self._clock.now_ms()
        if event.state != "stored":
            return event
        trigger, document = self.section(event.trigger), event.document()
        if not incoming.is_wanted(trigger, document):
            return trigger_events.filtered(connection, event, now=now)
        value = _input_of(trigger, document)
        key = _job_key(event.trigger, trigger, document)
        job, _ = submission.enqueue(
            connection,
            now=now,
            graph=trigger.graph,
            payload_json=json.dumps(value),
            payload_digest=submission.same_payload(trigger.graph, value),
            key=f"{key}:again:{uuid7(now)}" if again else key,
            workflow_version="1",
            priority=trigger.priority,
            max_attempts=trigger.max_attempts,
            owner=trigger.owner,
            policy=self._policies.of_graph(trigger.graph),
            webhook=trigger.webhook,
        )
        return trigger_events.started(connection, event, job.id, claim_no=job.claim_no, now=now)


def dry_run(name: str, trigger: Trigger, event: Incoming, *, now: int) -> dict[str, Any]:
    """What would come of an event, with nothing stored.

    Args:
        name: The trigger's name.
        trigger: The trigger.
        event: The event.
        now: UTC milliseconds.

    Raises:
        EventInvalid: It lacks what the mapping asks for.
    """
    document = Event(
        id=0,
        public_id=uuid7(now),
        trigger=name,
        source=trigger.source,
        event_key=event.key,
        headers_json=json.dumps(trigger_events.redacted(dict(event.headers))),
        body=json.dumps(trigger_events.redacted(event.body)),
        state="stored",
        job=None,
        error_json=None,
        occurred_at=event.occurred_at,
        received_at=now,
        handled_at=None,
    ).document()
    wanted = incoming.is_wanted(trigger, document)
    would = {"trigger": name, "source": trigger.source, "graph": trigger.graph, "wanted": wanted}
    if wanted:
        would |= {"input": _input_of(trigger, document), "key": _job_key(name, trigger, document)}
    return {**would, "event": document}


def view(name: str, trigger: Trigger, events: dict[str, int]) -> dict[str, Any]:
    """A trigger as JSON data; where its secret is, and not what it is."""
    over_http = isinstance(trigger, OverHttp)
    return {
        "name": name,
        "source": trigger.source,
        "graph": trigger.graph,
        "owner": trigger.owner,
        "priority": trigger.priority,
        "enabled": trigger.enabled,
        "path": f"/everstep/triggers/{name}" if over_http else None,
        "signed": signatures.is_signed(trigger) if over_http else None,
        "folder": None if over_http else trigger.folder,
        "events": {state: events.get(state, 0) for state in ("stored", "started", "filtered", "failed")},
    }


def _fail(connection: Connection, event: Event, error: Mapping[str, Any], now: int) -> Event:
    """Note why no job came of an event; the transaction that tried left nothing."""
    tried, event = event, trigger_events.lock(connection, event)
    if event.state != tried.state:  # another process, with another everstep.toml perhaps, handled it meanwhile
        return event
    return trigger_events.failed(connection, event, error, now=now)


def _input_of(trigger: Trigger, document: Mapping[str, Any]) -> Any:
    value = rules.input_of(trigger, document)
    if value is None:
        raise EventInvalid("the job's input would be null, from which no graph starts", next_step="map another place")
    return value


def _job_key(name: str, trigger: Trigger, document: Mapping[str, Any]) -> str:
    return f"trigger:{name}:{incoming.shortened(rules.key_of(trigger, document))}"
