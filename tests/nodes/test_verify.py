"""`verify`: commands that must pass, what came out of them, and the evidence a job keeps."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from everstep import verify
from everstep.checkpoints.store import Store
from everstep.errors import VerificationFailed
from everstep.nodes.verify import OUTPUT_BYTES, Stopped, run_commands
from tests.support.jobs import chain, run
from tests.support.waiting import until

PYTHON = sys.executable


def python(code: str) -> str:
    """A command that runs Python code."""
    return f"{PYTHON} -c '{code}'"


def test_commands_that_pass(tmp_path: Path) -> None:
    """Each command runs in the folder, and its exit code, output and time are told."""
    passed = verify([python("import os; print(os.getcwd())"), python("print(2)")], cwd=tmp_path)
    assert passed.passed
    assert [(result.exit_code, result.output.strip()) for result in passed.results] == [(0, str(tmp_path)), (0, "2")]
    assert all(0 < result.seconds < 60 for result in passed.results)
    assert len(passed.digest) == 64


def test_a_command_that_fails_raises_with_its_output() -> None:
    """The first failure ends the run: the error names the command, its exit code and what it said, on both streams."""
    with pytest.raises(VerificationFailed, match="exited with 3") as failed:
        verify([python('import sys; print("out"); print("err", file=sys.stderr); sys.exit(3)'), python("print(1)")])
    assert "out" in failed.value.message
    assert "err" in failed.value.message
    assert failed.value.ids["command"].startswith(PYTHON)
    assert failed.value.next_step


def test_without_check_a_failure_is_a_result() -> None:
    """With `check=False` the outcome is returned; commands after the first that failed did not run."""
    outcome = verify([python("exit(1)"), python("print(1)")], check=False)
    assert not outcome.passed
    assert [result.exit_code for result in outcome.results] == [1]


@pytest.mark.parametrize("command", ["no-such-program --x", "/etc/passwd"])
def test_a_program_that_cannot_run_has_failed(command: str) -> None:
    """A missing program, or a file that is none, is a failed verification (127) and not another error."""
    outcome = verify(command, check=False)
    assert [result.exit_code for result in outcome.results] == [127]
    assert outcome.results[0].output


def test_a_folder_that_is_missing_is_a_failed_verification(tmp_path: Path) -> None:
    """A working folder that does not exist cannot pass."""
    assert not verify(python("print(1)"), cwd=tmp_path / "missing", check=False).passed


def test_a_command_that_takes_too_long_has_failed_with_its_children(tmp_path: Path) -> None:
    """Past its time a command is ended together with what it started, and is reported with what it said so far."""
    script = tmp_path / "slow.sh"
    script.write_text("echo begun\nsleep 600 &\necho $! > pid\nwait\n")
    started = time.monotonic()
    outcome = verify(f"sh {script}", cwd=tmp_path, timeout=0.7, check=False)
    assert time.monotonic() - started < 30
    assert outcome.results[0].exit_code == 124
    assert "begun" in outcome.results[0].output
    assert "0.7 s" in outcome.results[0].output
    child = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10
    while _runs(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _runs(child)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_no_shell_is_between() -> None:
    """A command is split like a shell would, but nothing in it is expanded or chained."""
    outcome = verify(f"{PYTHON} -c 'import sys; print(sys.argv[1:])' '$HOME' ; echo *", check=False)
    assert outcome.results[0].output.strip() == "['$HOME', ';', 'echo', '*']"


def test_only_the_end_of_a_long_output_is_kept() -> None:
    """Output is bounded, whatever a command prints, and need not be text."""
    outcome = verify(python('import sys; sys.stdout.buffer.write(b"\\xff" * 100000 + b"end")'))
    assert len(outcome.results[0].output) <= OUTPUT_BYTES
    assert outcome.results[0].output.endswith("end")


def test_the_digest_is_of_what_ran_and_came_out() -> None:
    """The same commands with the same outcome have the same digest, however long they took; another outcome another."""
    same = [verify(python("print(1)")).digest for _ in range(2)]
    assert same[0] == same[1]
    assert verify(python("print(2)")).digest != same[0]
    assert verify(python("print(1);")).digest != same[0]


def test_inside_a_job_the_outcome_is_evidence(store: Store) -> None:
    """What passed is kept with the job, also if the job goes on to fail."""

    def node(_state: object) -> dict[str, list[str]]:
        return {"log": [verify(python("print(1)")).digest]}

    job = run(store, chain(node))
    assert job.status == "done"
    (kept,) = store.evidence(job)
    assert kept["kind"] == "verification"
    assert kept["detail"]["passed"]
    assert kept["detail"]["digest"] == json.loads(job.result_json or "")["log"][0]
    assert kept["detail"]["results"][0]["output"].strip() == "1"


def test_a_verification_that_fails_brings_the_job_to_review(store: Store) -> None:
    """A job whose verification fails waits for a person, with the failed command's output as evidence."""
    job = run(store, chain(lambda _s: {"log": [verify(python('print("broken"); exit(1)')).digest]}))
    assert job.status == "review"
    assert store.reviews()[0].kind == "error"
    assert json.loads(job.error_json or "")["code"] == "verification_failed"
    first, second = store.evidence(job)
    assert (first["kind"], first["detail"]["passed"]) == ("verification", False)
    assert "broken" in first["detail"]["results"][0]["output"]
    assert second["kind"] == "error"


def test_outside_a_job_nothing_is_stored(store: Store) -> None:
    """Without a job a verification is just run."""
    assert verify(python("print(1)")).passed
    assert store.jobs() == []


def test_gits_own_variables_do_not_reach_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker started by a git hook verifies the folder it is told, not the repository of the hook."""
    monkeypatch.setenv("GIT_DIR", "/somewhere/else")
    assert verify(python('import os; print(os.environ.get("GIT_DIR"))')).results[0].output.strip() == "None"


def test_commands_can_be_stopped_from_another_thread(tmp_path: Path) -> None:
    """Told to stop, the command under way is killed with its children, no other begins, and there is no outcome."""
    stop = threading.Event()
    commands = ["sh -c 'sleep 600 & echo $! > pid; wait'", "touch next"]
    with ThreadPoolExecutor(1) as threads:
        work = threads.submit(run_commands, commands, cwd=tmp_path, timeout=600, stop=stop)
        child = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
        stop.set()
        with pytest.raises(Stopped):
            work.result(60)
    until(lambda: not _runs(child), "the end of the child")
    assert not (tmp_path / "next").exists()
    with pytest.raises(Stopped):
        run_commands(["touch next"], cwd=tmp_path, timeout=600, stop=stop)
    assert not (tmp_path / "next").exists()


def test_what_left_the_process_group_does_not_hold_up_the_outcome(tmp_path: Path) -> None:
    """A daemon that holds the pipe of a command that was killed is not waited for without end."""
    outcome = verify(
        "sh -c 'echo begun; setsid sleep 60 & echo $! > pid; sleep 600'", cwd=tmp_path, timeout=0.5, check=False
    )
    assert (outcome.results[0].exit_code, outcome.results[0].output.split()[0]) == (124, "begun")
    os.kill(int((tmp_path / "pid").read_text()), 9)


def test_credentials_are_left_out_of_the_output() -> None:
    """Credentials of an unmistakable form are replaced, also where the cut of a long output would halve one."""
    token = "ghp_" + "a1" * 18
    padding = "x" * (OUTPUT_BYTES - 10)
    outcome = verify(python(f'print("{token} {padding}")'))
    assert "a1a1" not in outcome.results[0].output
    outcome = verify(python(f'print("token {token}")'))
    assert outcome.results[0].output == "token ***\n"
    assert token not in outcome.results[0].command


def test_a_folder_whose_name_cannot_be_is_a_failed_verification() -> None:
    """A folder's name with a NUL byte is a failure like any other that keeps a command from starting."""
    assert verify("true", cwd="a\0b", check=False).results[0].exit_code == 127
