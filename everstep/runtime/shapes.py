"""Which shape a task should have, of the six there are; how to use it, what to watch, and what is refused.

Every shape is the same durable job. What differs is who waits, and for how long: that is what is judged here, and it is
judged by rule, so that the same answers always give the same advice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from everstep.observability import metric_names as names
from everstep.observability.metric_names import Metric

Shape = Literal["request-response", "streaming", "durable", "queue", "event-driven", "scheduled"]
Waiter = Literal["person", "client", "nobody"]
Trigger = Literal["request", "event", "cron"]
Cost = Literal["low", "high"]

REQUEST_S: Final = 30.0
"""The longest a caller waits on an open connection: proxies and clients cut there, and then try again."""
READING_S: Final = 3.0
"""From here on a person wants to see that something happens."""
WATCHING_S: Final = 900.0
"""The longest a person watches."""
STEP_S: Final = 300.0
"""A step of more than this is a lot to do again after a crash."""
MANY_STEPS: Final = 10


@dataclass(frozen=True)
class Task:
    """A task, as its author describes it.

    Attributes:
        duration_s: How long a run takes, the slow ones included, seconds.
        steps: How many steps of its graph that is.
        waiter: Who waits for the result.
        trigger: What starts it.
        restart_cost: What it costs to begin again from nothing: time, money, or things done twice.
        shape: The shape its author has in mind; None: any.
        dead_letters: Whether somebody looks at what failed for good.
        overlap: What a slot of its schedule does while an earlier run is unfinished; None: nobody has said.
        every_s: The time between two slots of its schedule, seconds; None: unknown.
    """

    duration_s: float
    steps: int
    waiter: Waiter
    trigger: Trigger
    restart_cost: Cost
    shape: Shape | None = None
    dead_letters: bool = True
    overlap: Literal["skip", "queue", "resume"] | None = None
    every_s: float | None = None


@dataclass(frozen=True)
class Advice:
    """What to do.

    Attributes:
        shape: The shape that fits.
        why: Why, one sentence.
        use: Commands or code, line by line.
        observe: The metrics to watch, each with what it would tell.
        refused: What of the task as it is described must not be built; empty if nothing.
        cautions: What deserves thought.
    """

    shape: Shape
    why: str
    use: tuple[str, ...]
    observe: tuple[tuple[Metric, str], ...]
    refused: tuple[str, ...]
    cautions: tuple[str, ...]


def advise(task: Task) -> Advice:
    """The shape for a task.

    Args:
        task: The task.
    """
    shape, why = _fitting(task)
    return Advice(
        shape=shape,
        why=why,
        use=USES[shape],
        observe=(*OBSERVED[shape], *ALWAYS),
        refused=tuple(_refused(task, task.shape or shape)),
        cautions=tuple(_cautions(task, shape)),
    )


def _fitting(task: Task) -> tuple[Shape, str]:
    if task.trigger == "cron":
        return "scheduled", "the clock starts it, and nobody is there to start it again"
    if task.trigger == "event":
        return "event-driven", "an event starts it, which comes twice, late, or while nothing runs"
    if task.waiter == "nobody":
        if task.restart_cost == "high" or task.steps >= MANY_STEPS:
            return "durable", "nobody waits, and to begin again from nothing costs too much"
        return "queue", "nobody waits, and a run is short enough to be one of many"
    if task.duration_s > WATCHING_S:
        return "durable", f"nobody waits for {_told(task.duration_s)}: it is started, and looked at later"
    if task.waiter == "client":
        if task.duration_s <= REQUEST_S:
            return "request-response", f"a program waits, and {_told(task.duration_s)} is short enough for a connection"
        if task.restart_cost == "high":
            return "durable", f"{_told(task.duration_s)} is too long for a connection, and a restart costs too much"
        return "queue", f"{_told(task.duration_s)} is too long for a connection: the program is told at the end"
    if task.duration_s <= READING_S:
        return "request-response", f"a person waits, and {_told(task.duration_s)} is soon over"
    return "streaming", f"a person waits for {_told(task.duration_s)}, and wants to see that it goes on"


def _refused(task: Task, shape: Shape) -> Iterator[str]:
    """What must not be built, of the shape that is meant to be used."""
    if shape == "request-response" and task.duration_s > REQUEST_S:
        yield (
            f"{_told(task.duration_s)} as request-response: connections are cut after {_told(REQUEST_S)}, the caller "
            "tries again, and two runs do the work of one"
        )
    if shape in ("request-response", "streaming") and task.waiter == "nobody":
        yield f"{shape} although nobody waits: a connection that nobody reads keeps a run alive or ends it"
    if shape == "streaming" and task.duration_s > WATCHING_S:
        yield f"streaming for {_told(task.duration_s)}: nobody watches so long; start it, and join its stream later"
    if shape in ("queue", "event-driven", "durable", "scheduled") and not task.dead_letters:
        yield f"{WITHOUT[shape]} without dead letters: nobody waits, so what fails for good is lost unseen"
    if shape == "scheduled":
        if task.overlap is None:
            yield "a cron without a rule of overlap: one day a run meets the one before; say skip, queue or resume"
        elif task.overlap == "queue" and task.every_s is not None and task.every_s < task.duration_s:
            yield (
                f"a run of {_told(task.duration_s)} each {_told(task.every_s)}, queued: the queue grows for ever; "
                "say skip or resume, or run it less often"
            )
        if task.overlap == "skip" and task.restart_cost == "high":
            yield "skip although a restart costs too much: a run that failed is begun again from nothing; say resume"
    for needs, trigger in (("scheduled", "cron"), ("event-driven", "event")):
        if (shape == needs) != (task.trigger == trigger):
            yield f"{shape}, though {STARTS[task.trigger]} starts it"


def _cautions(task: Task, shape: Shape) -> Iterator[str]:
    step_s = task.duration_s / task.steps
    if step_s > STEP_S:
        yield f"a step takes {_told(step_s)}, and a crash repeats it whole: cut it into more steps"
    if task.shape not in (None, shape):
        yield f"{shape} fits better than {task.shape}"
    if task.restart_cost == "high":
        yield "what it does to the outside world goes through effect, or a restart does it twice: docs/effects.md"
    if task.waiter == "person" and shape in ("durable", "queue", "scheduled", "event-driven"):
        yield "a person waits: tell them by a webhook, or let them join the stream of the run"


STARTS: Final[Mapping[Trigger, str]] = {"request": "a request", "event": "an event", "cron": "the clock"}

WITHOUT: Final[Mapping[str, str]] = {
    "queue": "a queue",
    "event-driven": "events",
    "durable": "a durable job",
    "scheduled": "a schedule",
}

USES: Final[Mapping[Shape, tuple[str, ...]]] = {
    "request-response": (
        "everstep up",
        'curl -s localhost:2024/runs/wait -d \'{"assistant_id": "GRAPH", "input": {}}\'',
    ),
    "streaming": (
        "everstep up",
        "from langgraph_sdk import get_client",
        'client = get_client(url="http://localhost:2024")',
        'async for part in client.runs.stream(None, "GRAPH", input={}, stream_mode="messages-tuple"): …',
    ),
    "durable": (
        "everstep worker",
        "everstep submit GRAPH --input '{}'",
        "everstep show JOB",
    ),
    "queue": (
        "everstep worker --concurrency 16",
        "everstep submit GRAPH --input '{}' --priority 3",
        "everstep dlq",
    ),
    "event-driven": (
        "# everstep.toml, then everstep up",
        "[triggers.NAME]",
        'graph = "GRAPH"',
        'source = "http"',
        'signature = {kind = "standard-webhooks", secret_env = "NAME_SECRET"}',
        "everstep dlq",
    ),
    "scheduled": (
        "# everstep.toml, then everstep worker",
        "[schedules.NAME]",
        'graph = "GRAPH"',
        'cron = "30 2 * * *"',
        'overlap = "resume"',
        "everstep schedules",
    ),
}
"""How each shape is used."""

ALWAYS: Final[tuple[tuple[Metric, str], ...]] = (
    (names.UNKNOWN_EFFECTS, "somebody must say whether something happened"),
    (names.RECORD_UNWRITABLE, "nothing new starts"),
)

OBSERVED: Final[Mapping[Shape, tuple[tuple[Metric, str], ...]]] = {
    "request-response": (
        (names.LEG_DURATION, "runs come near the time that callers wait"),
        (names.OLDEST_DUE, "requests wait for a free worker"),
        (names.LOOP_LAG, "a node blocks all others"),
    ),
    "streaming": (
        (names.TIME_TO_FIRST_CHUNK, "people look at nothing"),
        (names.STEP_DURATION, "the stream stands still"),
        (names.LOOP_LAG, "a node blocks all others"),
    ),
    "durable": (
        (names.STUCK_JOBS, "a run stores nothing any more"),
        (names.LEASE_EXPIRIES_LAST_HOUR, "workers vanish"),
        (names.OLDEST_REVIEW, "a run waits for a person who does not know"),
        (names.DEAD_LETTERS_LAST_HOUR, "runs fail for good"),
    ),
    "queue": (
        (names.OLDEST_DUE, "there are too few workers"),
        (names.DUE_JOBS, "the queue grows"),
        (names.HELD_JOBS, "a limit or an outage holds it"),
        (names.DEAD_LETTERS_LAST_HOUR, "jobs fail for good"),
        (names.RETRIES_LAST_HOUR, "a service has a bad day"),
    ),
    "event-driven": (
        (names.OLDEST_DUE, "events wait too long for their start"),
        (names.DEAD_LETTERS_LAST_HOUR, "events come to nothing"),
        (names.HELD_JOBS, "a limit or an outage holds them"),
    ),
    "scheduled": (
        (names.OVERDUE_SCHEDULES, "nobody runs schedules"),
        (names.SCHEDULE_SLOTS, "slots are skipped or missed"),
        (names.SCHEDULE_LATENESS, "slots begin late"),
        (names.DEAD_LETTERS_LAST_HOUR, "a run failed"),
    ),
}
"""What to watch in each shape, and what it would tell."""


def _told(seconds: float) -> str:
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"
