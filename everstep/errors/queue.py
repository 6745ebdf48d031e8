"""What can go wrong with jobs, reviews and services."""

from __future__ import annotations

from everstep.errors.base import EX_DATAERR, EX_NOINPUT, EX_USAGE, EverstepError


class JobNotFound(EverstepError):
    """No job has this id."""

    code = "job_not_found"
    exit_code = EX_NOINPUT


class KeyConflict(EverstepError):
    """The idempotency key already belongs to a job with another payload."""

    code = "key_conflict"
    exit_code = EX_DATAERR


class JobPruned(EverstepError):
    """The key belongs to a job that ended and was deleted by retention; what it did is not done again unasked."""

    code = "job_pruned"
    exit_code = EX_DATAERR


class JobStateConflict(EverstepError):
    """The job is not in a state that allows this."""

    code = "job_state_conflict"
    exit_code = EX_DATAERR


class LegNotFound(EverstepError):
    """The job has no leg of this number; or none at all, because it has not run yet."""

    code = "leg_not_found"
    exit_code = EX_NOINPUT


class PayloadInvalid(EverstepError):
    """The input is not valid JSON, or holds a value that has no exact JSON form."""

    code = "payload_invalid"
    exit_code = EX_USAGE


class SecretInPayload(EverstepError):
    """The input has a key that looks like a credential; credentials never enter the record."""

    code = "secret_in_payload"
    exit_code = EX_USAGE


class ThreadNotFound(EverstepError):
    """There is no thread with this id."""

    code = "thread_not_found"
    exit_code = EX_NOINPUT


class ThreadBusy(EverstepError):
    """Something is under way on the thread, or waits for a person, and what was asked for cannot wait for it."""

    code = "thread_busy"
    exit_code = EX_DATAERR


class RunNotFound(EverstepError):
    """There is no run with this id."""

    code = "run_not_found"
    exit_code = EX_NOINPUT


class ReviewNotFound(EverstepError):
    """No review has this id."""

    code = "review_not_found"
    exit_code = EX_NOINPUT


class ReviewAnswered(EverstepError):
    """The review was answered before; the first answer stands."""

    code = "review_answered"
    exit_code = EX_DATAERR


class ReviewAnswerInvalid(EverstepError):
    """This kind of review does not take this answer."""

    code = "review_answer_invalid"
    exit_code = EX_USAGE


class ReviewChanged(EverstepError):
    """What the review asks has changed since whoever answers saw it."""

    code = "review_changed"
    exit_code = EX_DATAERR


class ConfirmationNeeded(EverstepError):
    """What was asked for is done only when it is confirmed with the number of jobs it is about."""

    code = "confirmation_needed"
    exit_code = EX_USAGE


class ServiceNotFound(EverstepError):
    """No job reported or needs a service of this name."""

    code = "service_not_found"
    exit_code = EX_NOINPUT


class PriceNotFound(EverstepError):
    """Nobody says what this model costs: neither `everstep.toml` nor the table of prices."""

    code = "price_not_found"
    exit_code = EX_NOINPUT


class ScheduleInvalid(EverstepError):
    """A schedule's cron expression, time zone or another part of it cannot be used."""

    code = "schedule_invalid"
    exit_code = EX_USAGE


class ScheduleNotFound(EverstepError):
    """No schedule has this name or id."""

    code = "schedule_not_found"
    exit_code = EX_NOINPUT


class ScheduleExists(EverstepError):
    """There is a schedule of this name already, or it is kept by `everstep.toml`."""

    code = "schedule_exists"
    exit_code = EX_DATAERR
