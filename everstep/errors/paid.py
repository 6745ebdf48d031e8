"""What can go wrong with paid provider tasks, their events and credit."""

from __future__ import annotations

from everstep.errors.base import EX_DATAERR, EX_NOINPUT, EX_USAGE, EverstepError


class ProviderTaskNotFound(EverstepError):
    """No provider task has this id."""

    code = "provider_task_not_found"
    exit_code = EX_NOINPUT


class ProviderTaskConflict(EverstepError):
    """The provider task is not in a state that allows this, or the provider's id is another task's."""

    code = "provider_task_conflict"
    exit_code = EX_DATAERR


class ProviderEventNotFound(EverstepError):
    """No provider event has this id."""

    code = "provider_event_not_found"
    exit_code = EX_NOINPUT


class SubmissionConflict(EverstepError):
    """The submission key already belongs to another request, or another provider."""

    code = "submission_conflict"
    exit_code = EX_DATAERR


class GenerationRefused(EverstepError):
    """A submission is tried again only when the generation before has failed."""

    code = "generation_refused"
    exit_code = EX_DATAERR


class InsufficientCredit(EverstepError):
    """The owner's credit does not cover the price; nothing was submitted or charged."""

    code = "insufficient_credit"
    exit_code = EX_DATAERR


class CreditInvalid(EverstepError):
    """An amount of credit, its currency or its key is none."""

    code = "credit_invalid"
    exit_code = EX_USAGE


class GrantConflict(EverstepError):
    """The key already belongs to a grant of another amount or currency."""

    code = "grant_conflict"
    exit_code = EX_DATAERR
