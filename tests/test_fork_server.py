"""The one fork server of a process of the tests has everything loaded that its forks need."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.record import CONTEXT

HERE = Path(__file__)


def test_only_one_list_says_what_it_loads() -> None:
    """Python keeps the last list of modules it was given, so a second one would take the first one's place unseen."""
    naming = [path.name for path in HERE.parent.rglob("*.py") if "set_forkserver_preload" in path.read_text()]
    assert sorted(naming) == ["record.py", HERE.name]


def _says(loaded: Path) -> None:
    loaded.write_text("\n".join(sys.modules))


def test_what_is_forked_has_everything_loaded(tmp_path: Path) -> None:
    """A process finds the commands, both databases and the graphs of the tests imported when it begins."""
    process = CONTEXT.Process(target=_says, args=(tmp_path / "loaded",))
    process.start()
    process.join()
    assert set((tmp_path / "loaded").read_text().split()) >= {
        "everstep.cli.main",
        "everstep.checkpoints.postgres_saver",
        "tests.support.kill_graphs",
        "tests.support.agent_process",
    }
