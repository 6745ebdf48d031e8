"""Python's own exception types, and the numbers that tell kinds of one type apart.

Why they stand where they stand:

- `ValueError` and its kin (pydantic's `ValidationError`) say that the input is wrong: failed. Only JSON that does not
  parse goes to review, since it is as often a service's broken answer as the job's input.
- `TypeError`, `KeyError`, `AssertionError` and the like are faults in the graph's code. The input is innocent and the
  checkpoints are good: a person mends the code and lets the job go on, so they wait in review.
- `FileNotFoundError` may be a wrong path in the input or a program that is not installed: in doubt, review.
- A lost or reset connection and a timeout are retried; whether the request had arrived is unknown, which matters only
  inside an effect, and the effects ledger asks for exactly that (`surely_not_sent`).
"""

from __future__ import annotations

import errno
import json
import socket
import ssl
import subprocess
from asyncio import IncompleteReadError

from everstep.runtime.rules.rule import BUSY, CODE, INPUT, LOST, REFUSED, TIMED_OUT, UNTRUSTED, Rule

BUILTINS: dict[type[BaseException], Rule] = {
    ConnectionRefusedError: REFUSED,
    socket.gaierror: REFUSED,
    socket.herror: REFUSED,
    ssl.SSLCertVerificationError: UNTRUSTED,
    ssl.SSLError: LOST,
    ConnectionError: LOST,
    IncompleteReadError: LOST,
    TimeoutError: TIMED_OUT,
    subprocess.TimeoutExpired: TIMED_OUT,
    subprocess.CalledProcessError: Rule("review", "a command failed; what it had done by then is unknown"),
    BlockingIOError: BUSY,
    InterruptedError: BUSY,
    MemoryError: BUSY,
    PermissionError: Rule("review", "access was refused; a person must look at the permissions"),
    FileNotFoundError: Rule("review", "a file or program is missing: a wrong input, or a machine that lacks it"),
    json.JSONDecodeError: Rule("review", "text that should be JSON is not: the input, or a service's broken answer"),
    UnicodeError: CODE,
    ValueError: INPUT,
    TypeError: CODE,
    LookupError: CODE,
    AttributeError: CODE,
    NameError: CODE,
    AssertionError: CODE,
    ArithmeticError: CODE,
    ImportError: CODE,
    NotImplementedError: CODE,
    RecursionError: CODE,
}

TRANSIENT_ERRNOS = frozenset(
    {
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EAGAIN,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EBUSY,
    }
)
"""Numbers of an `OSError` that may pass by themselves: the network is away, the machine is out of something."""

TRANSIENT = Rule("retry", "the network or the machine is short of something; that may pass")

SQLITE_TRANSIENT = frozenset({5, 6, 10, 13, 14, 15})
"""SQLite's primary result codes BUSY, LOCKED, IOERR, FULL, CANTOPEN and PROTOCOL."""
