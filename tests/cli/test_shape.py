"""`everstep shape`: with flags, for a script, and with a person who is asked."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest

from tests.cli.folder import COMMAND, PATIENCE_S, Folder, environment, is_refused

NIGHT = ("--duration", "1h", "--steps", "40", "--trigger", "cron", "--waiter", "nobody", "--restart-cost", "high")
LONG = ("--duration", "5m", "--steps", "1", "--trigger", "request", "--waiter", "client", "--restart-cost", "low")


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty folder; the advisor needs nothing."""
    return Folder(tmp_path)


def test_flags_give_an_answer_for_scripts(folder: Folder) -> None:
    """Shape, reason, what to use and what to watch, under both names of each metric; exit code 0."""
    ran = folder.run("shape", *NIGHT, "--overlap", "resume", "--json")
    assert (ran.code, ran.value["shape"], ran.value["refused"]) == (0, "scheduled", [])
    assert {"metric": "everstep_overdue_schedules", "otlp": "everstep.overdue_schedules"}.items() <= ran.value[
        "observe"
    ][0].items()
    assert "[schedules.NAME]" in ran.value["use"]


def test_what_is_refused_exits_1(folder: Folder) -> None:
    """With the reason, and the shape that fits; for people and for scripts."""
    refused = folder.run("shape", *LONG, "--shape", "request-response")
    assert (refused.code, "5 min as request-response" in refused.out) == (1, True)
    assert refused.out.startswith("queue:")
    for options in ((*LONG, "--no-dead-letters"), NIGHT, (*NIGHT, "--overlap", "queue", "--every", "10m")):
        ran = folder.run("shape", *options, "--json")
        assert (ran.code, len(ran.value["refused"])) == (1, 1)


def test_without_a_person_to_ask_flags_are_needed(folder: Folder) -> None:
    """What is missing is named; a time that is none is refused."""
    is_refused(folder.run("shape", *NIGHT[:4]), 64, "usage")
    refused = folder.run("shape", *NIGHT[:4], "--json")
    assert "--trigger, --waiter, --restart-cost" in refused.error["message"]
    for wrong in ("soon", "-5s", "0", "1e400h"):
        is_refused(folder.run("shape", "--duration", wrong, *NIGHT[2:]), 64, "usage")


def test_a_person_is_asked_for_what_is_missing(folder: Folder) -> None:
    """At a terminal each answer that is not given is asked for; a wrong one once more."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb") as keyboard, os.fdopen(theirs, "rb") as terminal:
        keyboard.write(b"soon\n1h\n40\ncron\nnobody\nlow\nresume\n")
        keyboard.flush()
        ran = subprocess.run(
            [*COMMAND, "shape"],
            cwd=folder.path,
            env=environment(),
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("scheduled:")
    assert "no length of time" in ran.stderr
    assert "What does it cost" in ran.stderr
