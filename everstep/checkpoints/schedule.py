"""`Schedule`: a row of `schedules`, and `Definition`, what it is to do; what changes one is in `schedules`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

from sqlalchemy import RowMapping

from everstep.checkpoints import cron as times
from everstep.checkpoints import jobs, payload
from everstep.checkpoints.canonical import canonical_json
from everstep.errors import ScheduleInvalid

Overlap = Literal["skip", "queue", "resume"]
Missed = Literal["skip", "latest", "all"]
Off = Literal["paused", "file", "removed"]
"""Why a schedule is off: a person paused it, its file says so, or its file has it no more."""

MOST_JITTER_S = 86_400
_LOOKED_AT = 50
"""How many slots the jitter is compared with; what comes closer later is fired later, not lost."""


@dataclass(frozen=True)
class JobOptions:
    """What the jobs of a schedule are like.

    Attributes:
        priority: 0 (can wait) to 10 (urgent).
        max_attempts: Failures in a row, without progress between them, after which a job has failed.
        workflow_version: Kept with the jobs.
        slot_field: The field of the input that the slot's time is put into, as RFC 3339; None: none.
    """

    priority: int = jobs.DEFAULT_PRIORITY
    max_attempts: int = jobs.DEFAULT_MAX_ATTEMPTS
    workflow_version: str = "1"
    slot_field: str | None = None


@dataclass(frozen=True)
class Definition:
    """What a schedule is to do.

    Attributes:
        graph: Name of the graph that runs.
        cron: When: five fields.
        timezone: Where its hours are, a name of the IANA database.
        overlap: What a slot does while an earlier run is unfinished: `skip` runs nothing, `queue` a new run behind it,
            `resume` lets the unfinished run go on.
        input: What the graph starts with; JSON data.
        missed: What becomes of slots at which nobody was there: none runs, the `latest`, or `all` (the last hundred).
        jitter_s: Each run begins up to so many seconds after its slot.
        ends_at: Slots after this moment are none; UTC milliseconds.
        job: What its jobs are like.
        metadata: What its maker keeps with it.
        assistant_id: The assistant whose runs it makes; None: it makes plain jobs.
        thread_id: The thread its runs are on; None: each has its own.
        run: What its runs are like, as `runs` takes it.
    """

    graph: str
    cron: str
    overlap: Overlap
    timezone: str = "UTC"
    input: Any = field(default_factory=dict[str, Any])
    missed: Missed = "latest"
    jitter_s: int = 0
    ends_at: int | None = None
    job: JobOptions = field(default_factory=JobOptions)
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    assistant_id: str | None = None
    thread_id: str | None = None
    run: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def check(self, *, allow_secret_keys: bool = False) -> None:
        """Refuse what cannot be used.

        Args:
            allow_secret_keys: Accept keys of the input that look like credentials.

        Raises:
            ScheduleInvalid: The expression, the time zone, or a number is wrong.
            PayloadInvalid: The input has no exact JSON form.
            SecretInPayload: The input has a key that looks like a credential.
        """
        times.check(self.cron, self.timezone)
        for name, value, allowed in (
            ("overlap", self.overlap, get_args(Overlap)),
            ("missed", self.missed, get_args(Missed)),
        ):
            if value not in allowed:
                raise ScheduleInvalid(f"{name} is {value!r}", next_step=f"give one of: {', '.join(allowed)}")
        limits = {"jitter": (self.jitter_s, 0, MOST_JITTER_S), "priority": (self.job.priority, 0, 10)}
        limits["max_attempts"] = (self.job.max_attempts, 1, 1000)
        for name, (number, least, most) in limits.items():
            if not least <= number <= most:
                raise ScheduleInvalid(f"{name} is {number}", next_step=f"give a number from {least} to {most}")
        if self.assistant_id is None:
            payload.check_input(self.input, allow_secret_keys)
        canonical_json(self.input)
        if self.job.slot_field is not None and not isinstance(self.input, dict):
            raise ScheduleInvalid("the slot's time needs an input that is an object", next_step='give {"…": …}')
        following = times.following(self.cron, self.timezone, after=times.SOME_DAY, count=_LOOKED_AT)
        closest = min((later - slot for slot, later in pairwise(following)), default=MOST_JITTER_S * 1000)
        if self.jitter_s * 1000 >= closest and self.jitter_s:
            raise ScheduleInvalid(
                f"a jitter of {self.jitter_s} s is no shorter than the {closest // 1000} s from one slot to the next",
                next_step="give fewer seconds",
            )


@dataclass(frozen=True)
class Schedule:
    """A row of `schedules`. Times are UTC milliseconds.

    Attributes:
        id: Row id.
        public_id: Its id for others.
        name: Its name; None for what the LangGraph API makes.
        origin: Who keeps it: `command`, `api`, `langgraph`, or `file:` and the path of an `everstep.toml`.
        owner: Whose jobs it makes.
        definition: What it is to do.
        enabled: Whether its slots run.
        off: Why not, if not.
        next_slot_at: The next slot; None while it is off, or when it is over.
        next_fire_at: When that begins.
        created_at: When it was made.
        updated_at: When it was changed, or a slot of it handled.
    """

    id: int
    public_id: str
    name: str | None
    origin: str
    owner: str
    definition: Definition
    enabled: bool
    off: Off | None
    next_slot_at: int | None
    next_fire_at: int | None
    created_at: int
    updated_at: int

    @property
    def label(self) -> str:
        """What people call it."""
        return self.name or self.public_id


def of_row(row: RowMapping) -> Schedule:
    """The schedule of a row."""
    options = json.loads(row["options_json"])
    definition = Definition(
        graph=row["graph"],
        cron=row["cron"],
        overlap=row["overlap"],
        timezone=row["timezone"],
        input=json.loads(row["input_json"]),
        missed=row["missed"],
        jitter_s=row["jitter_s"],
        ends_at=row["ends_at"],
        job=JobOptions(**options.get("job", {})),
        metadata=json.loads(row["metadata_json"]),
        assistant_id=row["assistant_id"],
        thread_id=row["thread_id"],
        run=options.get("run", {}),
    )
    names = ("id", "public_id", "name", "origin", "owner", "next_slot_at", "next_fire_at", "created_at", "updated_at")
    kept: dict[str, Any] = {name: row[name] for name in names}
    return Schedule(definition=definition, enabled=bool(row["enabled"]), off=options.get("off"), **kept)
