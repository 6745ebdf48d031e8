"""`verify`: an agent's claim that it finished is not completion; a command that passes is."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import Connection, insert

from everstep.checkpoints.claims import fence
from everstep.checkpoints.jobs import loose_digest
from everstep.checkpoints.payload import without_secrets
from everstep.checkpoints.schema import evidence
from everstep.errors import VerificationFailed
from everstep.nodes.attempt import current

OUTPUT_BYTES = 8192
LOOK_EVERY_S = 0.2
"""How often a command that runs is asked whether it has to stop."""
LAST_WORDS_S = 5.0
"""How long the output of a command that was killed is waited for: what left its process group may hold on to it."""


@dataclass(frozen=True)
class CommandResult:
    """One command's outcome; `seconds` is wall time, `output` its last `OUTPUT_BYTES` of stdout and stderr.

    Credentials of an unmistakable form are left out of the output.
    """

    command: str
    exit_code: int
    output: str
    seconds: float


@dataclass(frozen=True)
class Verification:
    """Whether every command passed, and the digest of what ran and came out."""

    passed: bool
    digest: str
    results: list[CommandResult]


class Stopped(Exception):
    """The commands were told to stop before their outcome was known."""


def verify(
    commands: str | Sequence[str], *, cwd: str | Path = ".", timeout: float = 600.0, check: bool = True
) -> Verification:
    """Run commands that must pass; inside a job, the outcome is stored as evidence.

    Args:
        commands: One command or several, run in order until one fails; split like a POSIX shell does, but no shell runs
        them.
        cwd: The folder they run in.
        timeout: Seconds each may take; one that takes longer has failed (exit code 124).
        check: Raise when one fails.

    Raises:
        VerificationFailed: A command failed, and `check` is set.
    """
    outcome = run_commands([commands] if isinstance(commands, str) else commands, cwd=Path(cwd), timeout=timeout)
    _store(outcome)
    if check and not outcome.passed:
        failed = outcome.results[-1]
        raise VerificationFailed(
            f"{failed.command!r} exited with {failed.exit_code}: {failed.output.strip()[-500:]}",
            next_step="look at the output, mend the work, and verify again",
            command=failed.command,
        )
    return outcome


def run_commands(
    commands: Sequence[str], *, cwd: Path, timeout: float, stop: threading.Event | None = None
) -> Verification:
    """Run commands in order until one fails; nothing is stored, and nothing raised if one does.

    Args:
        commands: Split like a POSIX shell does.
        cwd: The folder they run in.
        timeout: Seconds each may take; one that takes longer has failed (exit code 124).
        stop: When it is set, the command under way is killed with its children, and no other begins.

    Raises:
        Stopped: `stop` was set before the outcome was known.
    """
    stop = stop or threading.Event()
    results: list[CommandResult] = []
    for command in commands:
        results.append(_run(command, cwd, timeout, stop))
        if results[-1].exit_code != 0:
            break
    passed = all(result.exit_code == 0 for result in results)
    digest = loose_digest([[result.command, result.exit_code, result.output] for result in results])
    return Verification(passed, digest, results)


def _run(command: str, cwd: Path, timeout: float, stop: threading.Event) -> CommandResult:
    if stop.is_set():
        raise Stopped(command)
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            shlex.split(command),
            cwd=cwd,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # ValueError: quotes without an end, NUL bytes
        exit_code, output = 127, str(error).encode()
    else:
        output = _finish(process, timeout, stop)
        exit_code = process.returncode
        if output is None:
            said = _killed(process)
            if stop.is_set():
                raise Stopped(command)
            exit_code, output = 124, said + f"\nstill running after {timeout} s".encode()
    # The cut comes last: half a credential has no form by which it could be told.
    text = without_secrets(output[-16 * OUTPUT_BYTES :].decode(errors="replace"))[-OUTPUT_BYTES:]
    return CommandResult(without_secrets(command), exit_code, text, round(time.monotonic() - started, 3))


def _finish(process: subprocess.Popen[bytes], timeout: float, stop: threading.Event) -> bytes | None:
    """What the command printed, once it has ended; None if its time was up, or it has to stop."""
    end = time.monotonic() + timeout
    while not stop.is_set() and (left := end - time.monotonic()) > 0:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=min(left, LOOK_EVERY_S))[0]
    return None


def _killed(process: subprocess.Popen[bytes]) -> bytes:
    """Kill a command with its children, which would hold the pipe; returns what it had printed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=LAST_WORDS_S)[0]
    except subprocess.TimeoutExpired as late:
        if process.stdout is not None:
            process.stdout.close()
        return late.output or b""


def _environment() -> dict[str, str]:
    """This process's environment without what points git elsewhere than to `cwd` (set when a git hook started us)."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def _store(outcome: Verification) -> None:
    attempt = current.get()
    if attempt is None:
        return
    detail = json.dumps(asdict(outcome))

    def operation(connection: Connection) -> None:
        fence(connection, attempt.job_id, attempt.claim_no)
        connection.execute(
            insert(evidence).values(
                job_id=attempt.job_id,
                claim_no=attempt.claim_no,
                kind="verification",
                detail_json=detail,
                at=attempt.store.clock.now_ms(),
            )
        )

    attempt.store.write(operation).result()
