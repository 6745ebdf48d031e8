"""A run of the tests that was killed leaves its PostgreSQL server behind; the next one ends it, and no other."""

from __future__ import annotations

import os
import signal
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

from tests.support import leftovers
from tests.support.postgres import own_server
from tests.support.record import CONTEXT
from tests.support.waiting import PATIENCE, until


def _killed(place: str, told: Connection) -> None:
    tempfile.tempdir = place
    with own_server() as server:
        told.send(server.folder)
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_run_left_is_cleared_and_what_lives_is_not() -> None:
    """Its server ends and its folder goes; a server whose owner lives runs on, and a folder without a lock stays."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_killed, args=(tempfile.gettempdir(), theirs))
    process.start()
    theirs.close()
    assert ours.poll(PATIENCE)
    folder: Path = ours.recv()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    server = leftovers.server_of(folder)
    assert server is not None
    foreign = Path(tempfile.mkdtemp(prefix="everstep-pg-"))
    with own_server() as living:
        leftovers.clear()
        assert not folder.exists()
        assert not folder.with_name(folder.name + ".lock").exists()
        until(lambda: not Path(f"/proc/{server}").exists(), "the end of the server")
        assert foreign.exists()
        foreign.rmdir()
        assert leftovers.server_of(living.folder) is not None
