"""`verify`: an agent's claim that it finished is not completion; a command that passes is."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import Connection, insert

from everstep.checkpoints.claims import fence
from everstep.checkpoints.jobs import loose_digest
from everstep.checkpoints.schema import evidence
from everstep.errors import VerificationFailed
from everstep.nodes.attempt import current

OUTPUT_BYTES = 8192


@dataclass(frozen=True)
class CommandResult:
    """One command's outcome; `seconds` is wall time, `output` its last `OUTPUT_BYTES` of stdout and stderr."""

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
    results: list[CommandResult] = []
    for command in [commands] if isinstance(commands, str) else commands:
        results.append(_run(command, Path(cwd), timeout))
        if results[-1].exit_code != 0:
            break
    passed = all(result.exit_code == 0 for result in results)
    digest = loose_digest([[result.command, result.exit_code, result.output] for result in results])
    outcome = Verification(passed, digest, results)
    _store(outcome)
    if check and not passed:
        failed = results[-1]
        raise VerificationFailed(
            f"{failed.command!r} exited with {failed.exit_code}: {failed.output.strip()[-500:]}",
            next_step="look at the output, mend the work, and verify again",
            command=failed.command,
        )
    return outcome


def _run(command: str, cwd: Path, timeout: float) -> CommandResult:
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
    except OSError as error:
        exit_code, output = 127, str(error).encode()
    else:
        try:
            output, _ = process.communicate(timeout=timeout)
            exit_code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its children too, or they would hold the pipe
            output, _ = process.communicate()
            exit_code, output = 124, output + f"\nstill running after {timeout} s".encode()
    text = output[-OUTPUT_BYTES:].decode(errors="replace")
    return CommandResult(command, exit_code, text, round(time.monotonic() - started, 3))


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
