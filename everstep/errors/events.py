"""What can go wrong with webhooks that are sent, and with events that come in."""

from __future__ import annotations

from everstep.errors.base import EX_CONFIG, EX_DATAERR, EX_NOINPUT, EX_NOPERM, EX_USAGE, EverstepError


class WebhookInvalid(EverstepError):
    """The webhook's address is none, holds credentials, or leads where nothing may be sent."""

    code = "webhook_invalid"
    exit_code = EX_USAGE


class DeliveryNotFound(EverstepError):
    """No message of the outbox has this id."""

    code = "delivery_not_found"
    exit_code = EX_NOINPUT


class TriggerNotFound(EverstepError):
    """`everstep.toml` has no trigger of this name, or none that takes events this way."""

    code = "trigger_not_found"
    exit_code = EX_NOINPUT


class TriggerUnusable(EverstepError):
    """A trigger cannot take events: its secret is not in the environment, or its folder is not there."""

    code = "trigger_unusable"
    exit_code = EX_CONFIG


class EventNotFound(EverstepError):
    """No event of a trigger has this id."""

    code = "event_not_found"
    exit_code = EX_NOINPUT


class EventRefused(EverstepError):
    """An event's signature is missing, wrong or too old; nothing of it was stored."""

    code = "event_refused"
    exit_code = EX_NOPERM


class EventInvalid(EverstepError):
    """An event is not what its trigger takes, or lacks what the trigger makes a job's input of."""

    code = "event_invalid"
    exit_code = EX_DATAERR


class EventTooLarge(EverstepError):
    """An event is larger than its trigger takes; nothing of it was stored."""

    code = "event_too_large"
    exit_code = EX_DATAERR
