"""What can go wrong with providers of paid work, and with nodes that ask for it."""

from __future__ import annotations

from everstep.errors.base import EX_CONFIG, EX_DATAERR, EX_NOINPUT, EX_SOFTWARE, EX_UNAVAILABLE, EverstepError


class ProviderNotFound(EverstepError):
    """`everstep.toml` has no provider of this name."""

    code = "provider_not_found"
    exit_code = EX_NOINPUT


class ProviderUnusable(EverstepError):
    """A provider cannot be used: its key or secret is not in the environment, or its class cannot be loaded."""

    code = "provider_unusable"
    exit_code = EX_CONFIG


class ProviderRefused(EverstepError):
    """The provider refused a request for good: it did not take it, and would not take it a second time either."""

    code = "provider_refused"
    exit_code = EX_DATAERR


class ProviderConflict(EverstepError):
    """The provider answered a submission with 409: it may have taken it before, or be at it."""

    code = "provider_conflict"
    exit_code = EX_UNAVAILABLE


class ProviderAnswerInvalid(EverstepError):
    """A provider's answer is too large, no JSON, or lacks what its description says is there."""

    code = "provider_answer_invalid"
    exit_code = EX_UNAVAILABLE


class ProviderTaskMissing(EverstepError):
    """The provider says that it has no such task."""

    code = "provider_task_missing"
    exit_code = EX_UNAVAILABLE


class QueryUnsupported(EverstepError):
    """The provider cannot be asked for a task by the key it was submitted with."""

    code = "query_unsupported"
    exit_code = EX_SOFTWARE


class CancelUnsupported(EverstepError):
    """The provider cannot cancel a task."""

    code = "cancel_unsupported"
    exit_code = EX_SOFTWARE


class OutsideJob(EverstepError):
    """A node's function that needs the record was called where no job runs."""

    code = "outside_job"
    exit_code = EX_SOFTWARE
