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

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("everstep.errors."):  # where it is named, imported and shown from
            cls.__module__ = "everstep.errors"

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
