"""What can go wrong while one looks at what happened: traces, metrics, crash tests."""

from __future__ import annotations

from everstep.errors.base import EX_CONFIG, EX_DATAERR, EX_NOINPUT, EX_UNAVAILABLE, EX_USAGE, EverstepError


class FileNotWritten(EverstepError):
    """The file that a command was to write could not be written; what was there before is as it was."""

    code = "file_not_written"
    exit_code = EX_UNAVAILABLE


class DestinationNotFound(EverstepError):
    """No span in the record waits for a destination of this name or was sent there."""

    code = "destination_not_found"
    exit_code = EX_NOINPUT


class LangfuseUnusable(EverstepError):
    """Langfuse is not configured, refuses the keys, or its SDK is not installed."""

    code = "langfuse_unusable"
    exit_code = EX_CONFIG


class LangfuseUnavailable(EverstepError):
    """Langfuse cannot be reached, or answered with an error of its own."""

    code = "langfuse_unavailable"
    exit_code = EX_UNAVAILABLE


class ExceptionTypeInvalid(EverstepError):
    """The name given is no exception type, or its module cannot be imported."""

    code = "exception_type_invalid"
    exit_code = EX_USAGE


class CrashTestImpossible(EverstepError):
    """The graph cannot be crash-tested: it does not finish when nothing is killed."""

    code = "crash_test_impossible"
    exit_code = EX_DATAERR


class MetricsAddressUnavailable(EverstepError):
    """Metrics cannot be served where they should be: the port is taken, or the address is not this machine's."""

    code = "metrics_address_unavailable"
    exit_code = EX_UNAVAILABLE
