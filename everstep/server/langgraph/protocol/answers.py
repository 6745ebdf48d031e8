"""What a command is answered: success or the protocol's error, in the body of a 200."""

from __future__ import annotations

import logging
from typing import Any

from starlette.exceptions import HTTPException

from everstep import errors
from everstep.errors import EverstepError
from everstep.server import failures

logger = logging.getLogger("everstep.server")

_CODES: dict[type[EverstepError], str] = {
    errors.ThreadNotFound: "no_such_run",
    errors.RunNotFound: "no_such_run",
    errors.JobStateConflict: "no_such_interrupt",
    errors.ReviewAnswered: "no_such_interrupt",
    errors.CheckpointNotFound: "no_such_checkpoint",
    errors.NotPermitted: "permission_denied",
    errors.Unauthenticated: "permission_denied",
}


class Refused(Exception):
    """A command is answered with an error of the protocol.

    Args:
        code: The protocol's code.
        message: What is wrong, and what to do.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def success(command_id: int, result: dict[str, Any], applied: int) -> dict[str, Any]:
    """The answer to a command that was carried out.

    Args:
        command_id: The command's id.
        result: What it gives.
        applied: The number up to which events are older than what it did.
    """
    return {"type": "success", "id": command_id, "result": result, "meta": {"applied_through_seq": applied}}


def refusal(command_id: int | None, error: Exception) -> dict[str, Any]:
    """The answer to a command that was not."""
    code, message = _told(error)
    return {"type": "error", "id": command_id, "error": code, "message": message}


def _told(error: Exception) -> tuple[str, str]:
    if isinstance(error, Refused):
        return error.code, str(error)
    if isinstance(error, HTTPException):
        denied = error.status_code in (401, 403)
        return "permission_denied" if denied else "invalid_argument", str(error.detail)
    if isinstance(error, EverstepError) and (status := failures.status_of(error)) < 500:
        by_kind = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), None)
        told = error.as_dict()["message"]
        advice = error.as_dict().get("next_step")
        code = by_kind or ("permission_denied" if status == 403 else "invalid_argument")
        return code, f"{told}; {advice}" if advice else str(told)
    logger.error("a command failed", exc_info=error)
    return "unknown_error", "the server failed; its log tells why"
