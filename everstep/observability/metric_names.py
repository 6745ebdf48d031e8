"""Every metric that Everstep exports, in one place: name, kind, unit, labels, what it tells.

Names and labels are OpenTelemetry's; Prometheus' follow from them by OpenTelemetry's own rule, so that both ways lead
to the same series. `gen_ai.*` metrics follow the GenAI conventions of v1.41 (in development status).
https://opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics/
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter", "histogram"]

_UNITS: Final = {"s": "_seconds", "By": "_bytes"}


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: Its name in OpenTelemetry.
        kind: How its values are put together.
        unit: Unit after UCUM; in braces what is counted.
        help: What it tells, one sentence.
        labels: Names of its labels, in the order of their values.
        buckets: Upper bounds of a histogram's buckets.
        from_record: Whether the record tells it, and so every process the same; otherwise each tells its own.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    from_record: bool = False

    @property
    def prometheus(self) -> str:
        """Its name in Prometheus."""
        total = "_total" if self.kind == "counter" else ""
        return f"{self.name.replace('.', '_')}{_UNITS.get(self.unit, '')}{total}"

    @property
    def prometheus_labels(self) -> tuple[str, ...]:
        """Its labels in Prometheus."""
        return tuple(label.replace(".", "_") for label in self.labels)

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series in Prometheus."""
        if self.kind != "histogram":
            return (self.prometheus,)
        return tuple(f"{self.prometheus}_{part}" for part in ("bucket", "sum", "count"))


GRAPH: Final = "graph"
STATE: Final = "state"
OUTCOME: Final = "outcome"
SERVICE: Final = "service"
SOURCE: Final = "source"
GATE: Final = "gate"
DESTINATION: Final = "destination"
TASK_PROVIDER: Final = "provider"
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
MODEL: Final = "gen_ai.request.model"
TOKEN_TYPE: Final = "gen_ai.token.type"
ERROR_TYPE: Final = "error.type"

OPEN_LABELS: Final = frozenset({GRAPH, SERVICE, DESTINATION, TASK_PROVIDER, PROVIDER, MODEL, ERROR_TYPE})
"""Labels whose values come from outside; all others have a few fixed ones."""


def _record(name: str, unit: str, help_text: str, *labels: str, kind: Kind = "gauge") -> Metric:
    return Metric(name, kind, unit, help_text, labels, from_record=True)


# ---- what the record knows

JOBS: Final = _record("everstep.jobs", "{job}", "Jobs by state.", STATE)
DUE_JOBS: Final = _record("everstep.due_jobs", "{job}", "Jobs that could start now by their time.")
HELD_JOBS: Final = _record("everstep.held_jobs", "{job}", "Those of them that a closed gate or a limit holds.")
OLDEST_DUE: Final = _record(
    "everstep.oldest_due", "s", "How long the job that waits longest has been due, 0 if none is."
)
BUSY_WORKERS: Final = _record("everstep.busy_workers", "{worker}", "Workers that hold a living lease.")
EXPIRED_LEASES: Final = _record("everstep.expired_leases", "{job}", "Running jobs whose worker is gone.")
STUCK_JOBS: Final = _record(
    "everstep.stuck_jobs", "{job}", "Running jobs that stored nothing for an hour or ten leases."
)
EFFECTS: Final = _record("everstep.effects", "{effect}", "Effects of unfinished jobs, by state.", STATE)
UNKNOWN_EFFECTS: Final = _record("everstep.unknown_effects", "{effect}", "Effects nobody knows the outcome of.")
OPEN_REVIEWS: Final = _record("everstep.open_reviews", "{review}", "Questions that wait for a person.")
OLDEST_REVIEW: Final = _record("everstep.oldest_review", "s", "Age of the oldest open question, 0 if none is.")
ATTEMPTS_LAST_HOUR: Final = _record("everstep.attempts_last_hour", "{attempt}", "Jobs started, in the last hour.")
RETRIES_LAST_HOUR: Final = _record(
    "everstep.retries_last_hour", "{retry}", "Failures that are tried again, in the last hour."
)
REVIEWS_LAST_HOUR: Final = _record(
    "everstep.reviews_last_hour", "{job}", "Jobs that stopped for a person, in the last hour."
)
DONE_LAST_HOUR: Final = _record("everstep.done_last_hour", "{job}", "Jobs that were done, in the last hour.")
DEAD_LETTERS_LAST_HOUR: Final = _record(
    "everstep.dead_letters_last_hour", "{job}", "Jobs that failed for good, in the last hour."
)
LEASE_EXPIRIES_LAST_HOUR: Final = _record(
    "everstep.lease_expiries_last_hour", "{job}", "Jobs whose worker vanished, in the last hour."
)
SERVICES: Final = _record("everstep.services", "{service}", "Services by the state of their gate.", GATE)
SERVICE_OUTAGE: Final = _record(
    "everstep.service_outage", "s", "How long the service has been out, 0 if it is not.", SERVICE
)
SPANS_WAITING: Final = _record(
    "everstep.spans_waiting", "{span}", "Spans that wait to be sent to the destination.", DESTINATION
)
SPANS_DELIVERED: Final = _record(
    "everstep.spans_delivered", "{span}", "Spans the destination has taken.", DESTINATION, kind="counter"
)
SPANS_DROPPED: Final = _record(
    "everstep.spans_dropped", "{span}", "Spans given up: they waited too long, or too many did.",
    DESTINATION, kind="counter",
)  # fmt: skip
SPANS_FAILING: Final = _record(
    "everstep.spans_failing", "s", "How long the destination has refused every span, 0 if it does not.", DESTINATION
)
OVERDUE_SCHEDULES: Final = _record(
    "everstep.overdue_schedules", "{schedule}", "Schedules that nobody began a minute after their time, or later."
)
WEBHOOKS: Final = _record("everstep.webhooks", "{message}", "Messages to webhooks that wait or were given up.", STATE)
TRIGGER_EVENTS: Final = _record(
    "everstep.trigger_events_last_hour", "{event}", "Events that came in the last hour, by what came of them.",
    SOURCE, STATE,
)  # fmt: skip
TRIGGER_START_MEAN: Final = _record(
    "everstep.trigger_start_mean_last_hour", "s", "From an event to the start of its job, on average of the last hour.",
    SOURCE,
)  # fmt: skip
TRIGGER_START_LONGEST: Final = _record(
    "everstep.trigger_start_longest_last_hour", "s", "From an event to the start of its job, at most in the last hour.",
    SOURCE,
)  # fmt: skip
PROVIDER_TASKS: Final = _record(
    "everstep.provider_tasks", "{task}", "Unfinished paid provider tasks, by state.", TASK_PROVIDER, STATE
)
OLDEST_PROVIDER_TASK: Final = _record(
    "everstep.oldest_provider_task", "s", "Age of the oldest unfinished provider task, 0 if there is none."
)
UNPOLLED_PROVIDER_TASKS: Final = _record(
    "everstep.unpolled_provider_tasks", "{task}", "Accepted tasks that nobody asked for though it was due 15 minutes"
    " ago.",
)  # fmt: skip
PARKED_PROVIDER_EVENTS: Final = _record(
    "everstep.parked_provider_events", "{event}", "Events of providers that no task answers to."
)
OLDEST_PARKED_EVENT: Final = _record(
    "everstep.oldest_parked_event", "s", "Age of the oldest event that no task answers to, 0 if there is none."
)
RECORD_SIZE: Final = _record("everstep.record", "By", "Size of the record.")
WAL_SIZE: Final = _record("everstep.wal", "By", "Size of SQLite's write-ahead log.")
RECORD_UP: Final = _record(
    "everstep.record_up", "{record}", "1 if the record could be read for this page; if 0, all it knows is missing."
)
RECORD_LOOK: Final = _record("everstep.record_look", "s", "How long reading the record for this page took.")

# ---- what a worker measures

_STEPS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
_LEGS: Final = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0)
_LAGS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_CALLS: Final = tuple(0.01 * 2**power for power in range(14))
_TOKENS: Final = tuple(float(4**power) for power in range(14))

SLOTS: Final = Metric("everstep.slots", "gauge", "{job}", "Jobs this worker may run at once.")
RUNNING_JOBS: Final = Metric("everstep.running_jobs", "gauge", "{job}", "Jobs this worker runs now.")
STEP_DURATION: Final = Metric(
    "everstep.step.duration", "histogram", "s", "Time from one stored step of a job to the next.", (GRAPH,), _STEPS
)
LEG_DURATION: Final = Metric(
    "everstep.leg.duration", "histogram", "s", "How long an attempt ran, by how it ended.", (GRAPH, OUTCOME), _LEGS
)
EFFECT_OUTCOMES: Final = Metric(
    "everstep.effect_outcomes", "counter", "{effect}", "Effects that jobs asked for, by what came of them.", (STATE,)
)
STALE_WRITES: Final = Metric(
    "everstep.stale_writes_refused", "counter", "{write}", "Writes refused because their claim was lost."
)
CHECKPOINT_SIZE: Final = Metric(
    "everstep.checkpoint_written", "counter", "By", "What steps stored: checkpoints, and outputs of tasks.", (GRAPH,)
)
LOOP_LAG: Final = Metric(
    "everstep.event_loop_lag", "histogram", "s", "How late the event loop woke what was due.", (), _LAGS
)
RECORD_UNWRITABLE: Final = Metric(
    "everstep.record_unwritable", "gauge", "{record}", "1 while this worker cannot write the record."
)
SCHEDULE_SLOTS: Final = Metric(
    "everstep.schedule_slots", "counter", "{slot}", "Slots of schedules that this process handled, by what came of"
    " them.", (OUTCOME,),
)  # fmt: skip
SCHEDULE_LATENESS: Final = Metric(
    "everstep.schedule.lateness", "histogram", "s", "How long after its time a slot of a schedule was handled.",
    (), _STEPS,
)  # fmt: skip
SLOW_CLIENT_WAIT: Final = Metric(
    "everstep.slow_client_wait", "counter", "s", "How long agents waited for clients that read slowly.", (GRAPH,)
)
PROVIDER_POLLS: Final = Metric(
    "everstep.provider_polls", "counter", "{poll}", "Questions to providers how a task is, by what came of them.",
    (TASK_PROVIDER, OUTCOME),
)  # fmt: skip
MODEL_DURATION: Final = Metric(
    "gen_ai.client.operation.duration", "histogram", "s", "How long a model call took.",
    (OPERATION, PROVIDER, MODEL, ERROR_TYPE), _CALLS,
)  # fmt: skip
TIME_TO_FIRST_CHUNK: Final = Metric(
    "gen_ai.client.operation.time_to_first_chunk", "histogram", "s", "Time to the first chunk of a streamed answer.",
    (OPERATION, PROVIDER, MODEL), _CALLS,
)  # fmt: skip
TOKENS: Final = Metric(
    "gen_ai.client.token.usage", "histogram", "{token}", "Tokens of a model call.",
    (OPERATION, PROVIDER, MODEL, TOKEN_TYPE), _TOKENS,
)  # fmt: skip
COST: Final = Metric(
    "everstep.model_cost_usd", "counter", "{USD}", "What model calls cost, as far as it is known, US dollars.", (MODEL,)
)

# ---- what a server measures

STREAMS: Final = Metric("everstep.streams", "gauge", "{stream}", "Streams of events that clients have open.")
STREAM_FIRST_EVENT: Final = Metric(
    "everstep.stream.first_event", "histogram", "s", "From when a stream was opened to its first event.", (), _STEPS
)
STREAM_GAP: Final = Metric(
    "everstep.stream.gap", "histogram", "s", "From one event of a stream to the next.", (), _STEPS
)
STREAM_LAG: Final = Metric(
    "everstep.stream.lag", "histogram", "s", "From when an event was written to when its client's connection took it.",
    (), _LAGS,
)  # fmt: skip
STREAM_SENT: Final = Metric("everstep.stream.sent", "counter", "By", "What streams told, bytes.")
PROVIDER_WEBHOOKS: Final = Metric(
    "everstep.provider_webhooks", "counter", "{event}", "Webhooks of providers that came, by what came of them.",
    (TASK_PROVIDER, OUTCOME),
)  # fmt: skip
OF_SERVERS: Final = (STREAMS, STREAM_FIRST_EVENT, STREAM_GAP, STREAM_LAG, STREAM_SENT, PROVIDER_WEBHOOKS)
"""Those that `GET /everstep/metrics` has beside what the record knows."""

METRICS: Final[tuple[Metric, ...]] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All of them."""
MEASURED: Final = tuple(metric for metric in METRICS if not metric.from_record)
"""Those that a process measures."""
BY_NAME: Final = {metric.name: metric for metric in METRICS}
