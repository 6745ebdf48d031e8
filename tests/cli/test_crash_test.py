"""`everstep crash-test` as a command: exit codes, what it shows, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from everstep.checkpoints import wake_ups
from tests.cli.folder import COMMAND, PATIENCE_S, Folder, environment, is_refused

PAGE = Path(__file__).parents[2] / "docs" / "crash-test.md"
GIVEN = '{"ledger": "{run}/ledger.txt", "order": "A17"}'


@pytest.fixture
def shop(tmp_path: Path) -> Folder:
    """The page's own example, and a graph of it that cannot be loaded."""
    code = PAGE.read_text(encoding="utf-8").split("```python file=shop.py\n")[1].split("```")[0]
    graphs = {"right": "./shop.py:right", "wrong": "./shop.py:wrong", "lost": "./shop.py:lost"}
    (tmp_path / "temporary").mkdir()
    return Folder(tmp_path).write(shop=code).configure(**graphs)


def test_a_difference_exits_1_and_is_shown(shop: Folder) -> None:
    """The page's wrong graph says what the page says: where the world is touched, and what a kill made of it."""
    ran = shop.run("crash-test", "wrong", "--input", GIVEN, "--only", "node.finished", "--seed", "7")
    assert (ran.code, ran.err) == (1, "")
    shown = PAGE.read_text(encoding="utf-8").split("says:\n\n```\n")[1].split("```")[0]
    for line in shown.strip().splitlines():
        assert line.strip() in ran.out
    assert "--seed 7" in ran.out
    assert not (shop.path / "everstep.db").exists()


def test_json_holds_everything_and_0_says_that_all_held(shop: Folder) -> None:
    """`--json` is JSON alone; a sample is drawn by the seed."""
    arguments = ("crash-test", "right", "--input", GIVEN, "--sample", "2", "--seed", "7", "--json")
    first, second = shop.all_json(*[arguments[:-1]] * 2)
    assert first["held"] is True
    assert (first["seed"], first["points_tested"], first["points_passed"]) == (7, 2, 26)
    assert {point["point"] for point in first["points"]} == {point["point"] for point in second["points"]}
    assert first["uninterrupted"]["nodes"] == {"pay": 1, "thank": 1}
    assert {effect["state"] for effect in first["uninterrupted"]["effects"]} == {"confirmed"}
    documented = PAGE.read_text(encoding="utf-8").split("## For scripts")[1]
    for name in [*first, *first["points"][0], *first["uninterrupted"]]:
        assert name in documented, name


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("nothing", "--input", "{}"), 66, "graph_not_found"),
        (("right", "--input", "{"), 64, "payload_invalid"),
        (("right", "--input", GIVEN, "--answers", "[1"), 64, "payload_invalid"),
        (("right", "--input", GIVEN, "--answers", "no such file"), 64, "payload_invalid"),
        (("right", "--input", GIVEN, "--answers", "langgraph.json", "--world", "."), 64, "payload_invalid"),
        (("right", "--input", GIVEN, "--keep", "temporary/.."), 64, "payload_invalid"),
        (("lost", "--input", GIVEN), 78, "graph_load_failed"),
        (("right", "--input", "{}"), 65, "crash_test_impossible"),
    ],
)
def test_bad_input_is_refused(shop: Folder, arguments: tuple[str, ...], code: int, error: str) -> None:
    """Each with the exit code that other commands use, the error's code and the next step."""
    is_refused(shop.run("crash-test", *arguments), code, error)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopping_it_leaves_nothing_behind(shop: Folder, number: signal.Signals, code: int) -> None:
    """Ctrl-C and SIGTERM end every process, remove the temporary folder and put the world back."""
    (shop.path / "ledger.txt").write_text("before\n")
    given = json.dumps({"ledger": "ledger.txt", "order": "A17"})
    variables = environment(TMPDIR=str(shop.path / "temporary"), EVERSTEP_CRASH_TEST_OF_TESTS=str(shop.path))
    process = subprocess.Popen(
        [*COMMAND, "crash-test", "wrong", "--input", given, "--world", "ledger.txt"],
        cwd=shop.path,
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while not [*shop.path.glob("temporary/*/point-2")]:
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == code
    finally:
        process.kill()
        process.wait()
    left = {path.name for path in (shop.path / "temporary").iterdir()}
    assert left <= {wake_ups.folder().name}  # the user's own, for the sockets of all workers; it stays
    assert (shop.path / "ledger.txt").read_text() == "before\n"
    assert running_with(f"EVERSTEP_CRASH_TEST_OF_TESTS={shop.path}") == []


def running_with(variable: str) -> list[int]:
    """The processes that have this environment variable; none where there is no /proc."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]
