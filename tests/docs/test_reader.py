"""The `everstep` of a reader's shell is as one that was started: exit codes, streams, signals, and its death."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.reader import program
from tests.support.server_process import make_graphs
from tests.support.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def everstep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The program."""
    with program(tmp_path_factory.mktemp("programs")) as folder:
        yield folder / "everstep"


@contextmanager
def server(everstep: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """A server that answers, and where it listens."""
    make_graphs(folder)
    command = [str(everstep), "up", "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            place = urlsplit(json.loads(running.stdout.readline())["url"])
            yield running, (str(place.hostname), int(place.port or 0))
        finally:
            running.kill()


def test_exit_code_and_streams_are_the_commands(everstep: Path, tmp_path: Path) -> None:
    """What is piped in is read, and what is told comes where it belongs."""
    make_graphs(tmp_path)

    def run(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [everstep, *arguments], cwd=tmp_path, input=given, capture_output=True, text=True, timeout=PATIENCE
        )

    submitted = run("submit", "agent", "--input", "-", given='{"n": 1}')
    assert (submitted.returncode, submitted.stderr) == (0, "")
    shown = run("show", submitted.stdout.strip(), "--json")
    assert json.loads(shown.stdout)["status"] == "pending"
    missing = run("show", "ffff")
    assert (missing.returncode, missing.stdout) == (66, "")
    assert "ffff" in missing.stderr


def test_a_signal_reaches_the_command(everstep: Path, tmp_path: Path) -> None:
    """A server ends at SIGTERM as it should."""
    with server(everstep, tmp_path) as (running, _):
        running.send_signal(signal.SIGTERM)
        assert running.wait(PATIENCE) == 0


def test_a_killed_program_takes_its_command_along(everstep: Path, tmp_path: Path) -> None:
    """Nothing listens any more where the server was."""
    with server(everstep, tmp_path) as (running, place):
        running.kill()

        def refused() -> bool:
            with socket.socket() as asking:
                return asking.connect_ex(place) != 0

        until(refused, "the server's end")
