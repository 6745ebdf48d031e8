"""What can go wrong with signals, and with nodes that wait for one."""

from __future__ import annotations

from everstep.errors.base import EX_DATAERR, EX_USAGE, EverstepError


class SignalInvalid(EverstepError):
    """A signal's name or payload cannot be one."""

    code = "signal_invalid"
    exit_code = EX_USAGE


class WaitInvalid(EverstepError):
    """A node waits where it cannot, or until a moment that is none."""

    code = "wait_invalid"
    exit_code = EX_DATAERR
