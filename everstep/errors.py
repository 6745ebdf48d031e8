"""The catalogue of errors a user can meet: a class, a code, the ids involved and the next step.

Every error Everstep raises on purpose is an `EverstepError`. The class docstring says what it means; `code` is stable
and machine-readable; `next_step` tells what to do; `ids` names the things involved; `exit_code` is what a command exits
with (after BSD `sysexits.h`, since 1 and 2 already tell how a job ended).
"""

from __future__ import annotations

from typing import Any, ClassVar

EX_FAILED = 1
EX_USAGE = 64
EX_DATAERR = 65
EX_NOINPUT = 66
EX_UNAVAILABLE = 69
EX_SOFTWARE = 70
EX_NOPERM = 77
EX_CONFIG = 78


class EverstepError(Exception):
    """Something Everstep can explain.

    Args:
        message: What is wrong and where, in one sentence.
        next_step: What the reader can do about it.
        ids: The ids involved (job, review, effect, path, …); they appear in JSON output.
    """

    code: ClassVar[str] = "everstep_error"
    exit_code: ClassVar[int] = EX_FAILED

    def __init__(self, message: str, *, next_step: str = "", **ids: Any) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step
        self.ids: dict[str, Any] = ids

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.next_step, self.ids))

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]" + (f" Next: {self.next_step}" if self.next_step else "")

    def as_dict(self) -> dict[str, Any]:
        """The error as JSON-ready data: `code`, `message`, `next_step` and the ids."""
        return {"code": self.code, "message": self.message, "next_step": self.next_step, **self.ids}


def _rebuild(kind: type[EverstepError], message: str, next_step: str, ids: dict[str, Any]) -> EverstepError:
    error = kind.__new__(kind)
    EverstepError.__init__(error, message, next_step=next_step, **ids)
    return error


# ---- the record


class StoreUrlInvalid(EverstepError):
    """The store URL cannot be understood or its database is not supported."""

    code = "store_url_invalid"
    exit_code = EX_USAGE


class StoreNotFound(EverstepError):
    """There is no record at this place, and what was asked for does not make one."""

    code = "store_not_found"
    exit_code = EX_NOINPUT


class StoreUnavailable(EverstepError):
    """The database file or its folder is missing, read-only, full or locked for too long."""

    code = "store_unavailable"
    exit_code = EX_UNAVAILABLE


class StoreCorrupt(EverstepError):
    """The file is not a SQLite database, is damaged, or belongs to another program."""

    code = "store_corrupt"
    exit_code = EX_DATAERR


class BackupImpossible(EverstepError):
    """The copy of a record could not be made; there is none, and the record is as it was."""

    code = "backup_impossible"
    exit_code = EX_DATAERR


class StoreTooNew(EverstepError):
    """The record was written by a newer version of Everstep."""

    code = "store_too_new"
    exit_code = EX_DATAERR


# ---- jobs


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


# ---- reviews


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


# ---- services


class ServiceNotFound(EverstepError):
    """No job reported or needs a service of this name."""

    code = "service_not_found"
    exit_code = EX_NOINPUT


class PriceNotFound(EverstepError):
    """Nobody says what this model costs: neither `everstep.toml` nor the table of prices."""

    code = "price_not_found"
    exit_code = EX_NOINPUT


# ---- graphs


class ConfigInvalid(EverstepError):
    """`langgraph.json` is missing, not valid JSON, or holds something Everstep cannot honour."""

    code = "config_invalid"
    exit_code = EX_CONFIG


class GraphNotFound(EverstepError):
    """No graph of this name is configured."""

    code = "graph_not_found"
    exit_code = EX_NOINPUT


class GraphLoadFailed(EverstepError):
    """The graph's module could not be imported, or it does not hold a graph."""

    code = "graph_load_failed"
    exit_code = EX_CONFIG


class GraphChanged(EverstepError):
    """The graph no longer fits the thread of a job that began with an earlier version of it."""

    code = "graph_changed"
    exit_code = EX_DATAERR


class StateNotSerializable(EverstepError):
    """A value in the state cannot be stored, or would come back as something else."""

    code = "state_not_serializable"
    exit_code = EX_DATAERR


# ---- running


class EffectRejected(EverstepError):
    """Raised by an effect's function to say that the outside world surely did not act; the effect may run again."""

    code = "effect_rejected"


class EffectInterrupted(EverstepError):
    """A call was given up before its outcome was known (a time limit in the node, say); the next attempt finds out."""

    code = "effect_interrupted"


class EffectNotRepeated(EverstepError):
    """A replay asks for a new effect where an earlier run asked for another; nothing tells whether it is the same."""

    code = "effect_not_repeated"


class EffectInvalid(EverstepError):
    """An effect was declared or called in a way that cannot be kept safe."""

    code = "effect_invalid"
    exit_code = EX_SOFTWARE


class VerificationFailed(EverstepError):
    """A verification command did not pass."""

    code = "verification_failed"


class Cancelled(EverstepError):
    """The job was cancelled on request."""

    code = "cancelled"


class NodeExited(EverstepError):
    """A node tried to end the process, as `sys.exit()` does."""

    code = "node_exited"


class WorkerEnded(EverstepError):
    """A node ended the worker's process."""

    code = "worker_ended"


class WorkerDied(EverstepError):
    """The worker that ran the job vanished (its lease expired) on the last allowed attempt."""

    code = "worker_died"


# ---- repositories and models


class RepositoryInvalid(EverstepError, ValueError):
    """There is no such repository or branch, or its address or working folder cannot be used."""

    code = "repository_invalid"
    exit_code = EX_NOINPUT


class RemoteUnavailable(EverstepError, ConnectionError):
    """The machine that holds the repository could not be reached, or did not answer in time."""

    code = "remote_unavailable"
    exit_code = EX_UNAVAILABLE


class RemoteDenied(EverstepError, PermissionError):
    """The repository refused access, or refused the push."""

    code = "remote_denied"
    exit_code = EX_NOPERM


class BranchMoved(EverstepError):
    """The branch got other commits while the job ran, so its commit cannot be put on top."""

    code = "branch_moved"


class GitFailed(EverstepError):
    """A git command failed for a reason that tells nothing more."""

    code = "git_failed"


class OperationUnfinished(EverstepError):
    """The agent stopped, but what it was asked to do is not done."""

    code = "operation_unfinished"


class ChangeRejected(EverstepError):
    """A person rejected the change in a review."""

    code = "change_rejected"


class ModelUnavailable(EverstepError):
    """The chat model cannot be made: unknown name, or a package for it is missing."""

    code = "model_unavailable"
    exit_code = EX_CONFIG


# ---- traces


class FileNotWritten(EverstepError):
    """The file that a command was to write could not be written; what was there before is as it was."""

    code = "file_not_written"
    exit_code = EX_UNAVAILABLE


class LangfuseUnusable(EverstepError):
    """Langfuse is not configured, refuses the keys, or its SDK is not installed."""

    code = "langfuse_unusable"
    exit_code = EX_CONFIG


class LangfuseUnavailable(EverstepError):
    """Langfuse cannot be reached, or answered with an error of its own."""

    code = "langfuse_unavailable"
    exit_code = EX_UNAVAILABLE


# ---- asking what an error means


class ExceptionTypeInvalid(EverstepError):
    """The name given is no exception type, or its module cannot be imported."""

    code = "exception_type_invalid"
    exit_code = EX_USAGE


# ---- crash tests


class CrashTestImpossible(EverstepError):
    """The graph cannot be crash-tested: it does not finish when nothing is killed."""

    code = "crash_test_impossible"
    exit_code = EX_DATAERR


# ---- metrics


class MetricsAddressUnavailable(EverstepError):
    """Metrics cannot be served where they should be: the port is taken, or the address is not this machine's."""

    code = "metrics_address_unavailable"
    exit_code = EX_UNAVAILABLE
