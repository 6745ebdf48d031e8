"""What can go wrong for the agents that ship: repositories, and models."""

from __future__ import annotations

from everstep.errors.base import EX_CONFIG, EX_NOINPUT, EX_NOPERM, EX_UNAVAILABLE, EverstepError


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
