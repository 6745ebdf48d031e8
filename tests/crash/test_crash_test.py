"""`everstep crash-test` holds what is right and finds what is wrong, in graphs whose workers are really killed."""

from __future__ import annotations

import inspect
from pathlib import Path

import psycopg
import pytest

from everstep.errors import CrashTestImpossible, GraphLoadFailed, PayloadInvalid
from tests.crash.conftest import Test
from tests.support import crash_test_graphs
from tests.support.postgres import empty_database


def test_a_right_graph_holds_at_every_point(crash_tested: Test) -> None:
    """Each checkpoint, write, effect, claim and settlement is a point; killed there, nothing differs."""
    report = crash_tested("right")
    assert report.held
    assert [result.outcome for result in report.results] == ["held"] * report.passed
    assert {result.point.kind for result in report.results} == {
        "job.claimed",
        "checkpoint.before_put",
        "checkpoint.after_put",
        "node.finished:pay",
        "node.finished:thank",
        "writes.after_put",
        "effect.intended:ledger.write",
        "effect.touched:ledger.write",
        "effect.called:ledger.write",
        "effect.confirmed:ledger.write",
        "job.before_settle",
        "job.settled",
    }
    assert report.touches == []
    again = {result.point.label: result.ran_again for result in report.results}
    assert again["effect.called:ledger.write@2"] == {"thank": 1}
    assert again["job.settled@1"] == {}
    settled = {result.point.label: [effect.settled_by for effect in result.effects] for result in report.results}
    assert settled["effect.called:ledger.write@1"] == ["probe"]
    assert settled["effect.intended:ledger.write@1"] == ["call"]  # called again, as the probe found nothing
    assert {result.attempts for result in report.results} == {1, 2}


def test_a_node_that_touches_the_world_without_an_effect_is_found(crash_tested: Test) -> None:
    """The wrong graph is told by the line that writes, and by the line that is there twice after a kill."""
    report = crash_tested("wrong", "node.finished", "effect.called")
    assert not report.held
    (touch,) = report.touches
    line = inspect.getsourcelines(crash_test_graphs.write)[1] + 2
    assert (touch.node, touch.kind, touch.what, touch.fails) == ("thank", "file", "open('{run}/ledger', 'a')", True)
    assert f"tests/support/crash_test_graphs.py:{line} in write < " in touch.where
    assert touch.where.endswith(" in thank_node")
    outcomes = {result.point.label: (result.outcome, result.problems) for result in report.results}
    assert outcomes == {
        "effect.called:ledger.write@1": ("held", []),
        "node.finished:pay@1": ("held", []),
        "node.finished:thank@1": ("differs", ["{run}/ledger: once more 'thanked'"]),
    }


def test_a_touch_that_is_allowed_fails_nothing(crash_tested: Test) -> None:
    """`--allow` names node, call or line; a difference in the world still counts."""
    assert crash_tested("wrong", "job.claimed", allow=("node thank",)).held
    assert not crash_tested("wrong", "node.finished:thank", allow=("in write",)).held


def test_an_effect_nobody_can_look_at_asks_a_person(crash_tested: Test) -> None:
    """Without probe or idempotency key an interrupted effect is a review: right, and answered by what was seen."""
    report = crash_tested("blind", "effect.")
    assert report.held
    (half,) = [result for result in report.results if result.notes]
    assert half.point.label == "effect.touched:ledger.write_blindly@1"  # opened, and nothing written: a guess is wrong
    assert half.notes == ["{run}/ledger: missing 'thanked' (an effect's outcome or result had to be guessed)"]
    outcomes = {result.point.label: (result.outcome, result.asked) for result in report.results}
    assert outcomes["effect.intended:ledger.write_blindly@1"] == ("asks", ["ledger.write_blindly"])
    assert outcomes["effect.called:ledger.write_blindly@1"] == ("asks", ["ledger.write_blindly"])
    assert outcomes["effect.confirmed:ledger.write_blindly@1"] == ("held", [])
    assert outcomes["effect.called:ledger.write@1"] == ("held", [])
    assert outcomes["effect.touched:ledger.write_blindly@1"] == ("asks", ["ledger.write_blindly"])
    assert outcomes["effect.touched:ledger.write_blindly@2"] == ("asks", ["ledger.write_blindly"])
    settles = {result.point.kind: result.point.settles for result in report.results}
    assert settles["effect.touched:ledger.write_blindly"] == "person"
    assert settles["effect.touched:ledger.write"] == "probe"


def test_a_probe_that_does_not_see_is_found(crash_tested: Test) -> None:
    """An effect that was done, and is called again because its probe says that it did not happen, fails."""
    where = "ledger.write_misjudged"
    report = crash_tested("misjudged", f"effect.called:{where}", f"effect.touched:{where}")
    opened, written, returned = report.results
    assert (opened.outcome, written.outcome, returned.outcome) == ("held", "differs", "differs")
    for result in (written, returned):
        assert result.problems[0].startswith("effect ledger.write_misjudged happened 2 times: its probe did not see")


def test_a_probe_that_sees_what_is_not_there_is_found(crash_tested: Test) -> None:
    """A probe that lies: what was not begun, or only begun, counts as done, and the world lacks it."""
    report = crash_tested("credulous", "effect.intended:ledger.write_c", "effect.touched:ledger.write_c")
    intended, opened, written = report.results
    assert intended.problems == opened.problems == ["{run}/ledger: missing 'thanked'"]
    assert written.outcome == "held"


def test_a_probe_that_looks_at_half_is_found_by_a_kill_inside(crash_tested: Test) -> None:
    """Between the two things an effect does its worker is killed; before and after it the probe is right."""
    report = crash_tested("half_seen", "effect.intended:ledger.write_b", "effect.t", "effect.called:ledger.write_b")
    outcomes = {result.point.label: result.outcome for result in report.results if "_both" in result.point.label}
    assert outcomes == {
        "effect.intended:ledger.write_both@1": "held",
        "effect.touched:ledger.write_both@1": "held",
        "effect.touched:ledger.write_both@2": "differs",
        "effect.touched:ledger.write_both@3": "differs",
        "effect.touched:ledger.write_both@4": "held",
        "effect.called:ledger.write_both@1": "held",
    }
    (between,) = [result for result in report.results if result.point.label == "effect.touched:ledger.write_both@2"]
    assert between.problems == ["{run}/copies is missing"]
    assert between.point.after.startswith("close of '{run}/ledger'  tests/support/crash_test_graphs.py:")


def test_what_an_effect_does_is_a_crash_point(crash_tested: Test) -> None:
    """Files, renames, processes, sockets and commits, in threads and on the event loop; a kill after each holds."""
    report = crash_tested("doing", "effect.touched", "effect.raised")
    seen = {result.point.label: result.point.after.partition("  ")[0] for result in report.results}
    assert seen == {
        "effect.touched:file.refuse@1": "open('{run}/asked') for writing",
        "effect.raised:file.refuse@1": "",
        "effect.touched:database.add@1": "commit",
        "effect.touched:shop.tell@1": "open('{run}/order.new', 'w')",
        "effect.touched:shop.tell@2": "close of '{run}/order.new'",
        "effect.touched:shop.tell@3": "os.rename('{run}/order.new', '{run}/order')",
        "effect.touched:shop.tell@4": "process ended: ['touch', '{run}/told']",
        "effect.touched:shop.tell@5": "sendall",
        "effect.touched:file.write_by_threads@1": "open('{run}/in-thread', 'w')",
        "effect.touched:file.write_by_threads@2": "close of '{run}/in-thread'",
        "effect.touched:file.write_by_threads@3": "open('{run}/on-loop', 'w')",
        "effect.touched:file.write_by_threads@4": "close of '{run}/on-loop'",
        "effect.touched:file.write_by_threads@5": "process ended",
    }
    assert report.held
    assert report.unseen_inside == []


def test_what_is_done_often_at_one_line_is_two_points(crash_tested: Test) -> None:
    """The first and the last of forty touches; and an effect that may be called again is not told for it."""
    report = crash_tested("often", "effect.touched:ledger.write_often")
    assert [result.point.label.partition("@")[2] for result in report.results] == ["1", "40"]
    assert not any("happened" in problem for result in report.results for problem in result.problems)


def test_questions_are_answered_alike_in_every_run(crash_tested: Test) -> None:
    """Answers by question and by action, given once; a kill asks nothing anew and the state has the answers."""
    answers = {"How many?": 3, "send": {"decision": "edit", "value": {"to": "Grace"}}, "nobody asks": 1}
    report = crash_tested("asking", "job.", "node.finished", answers=answers)
    assert report.held
    assert report.reference.run.state["log"] == [3, "edit", {"to": "Grace"}]
    assert {result.point.worker for result in report.results} == {0, 1, 2}
    assert report.unused_answers == ["nobody asks"]


def test_what_differs_by_itself_is_told_and_not_compared(crash_tested: Test) -> None:
    """Random values and message ids are excluded by their place; the rest of the state is held to."""
    report = crash_tested("differing", "job.claimed")
    assert report.held
    assert report.reference.unstable_state == {"number", "messages[*].id"}


def test_what_agreed_by_chance_is_found_out(crash_tested: Test, tmp_path: Path) -> None:
    """When something differs, another uninterrupted run tells whether it does so by itself."""
    report = crash_tested("early_or_late", "job.claimed", place=str(tmp_path / "runs"), allow=("open",))
    assert report.held
    assert report.reference.unstable_state == {"number"}


def test_state_that_lives_in_memory_is_found(crash_tested: Test) -> None:
    """A node that counts in a module's variable forgets in a restart, and the state shows it."""
    report = crash_tested("remembering", "checkpoint.after_put@3")
    (result,) = report.results
    assert result.outcome == "differs"
    assert result.problems == ["state log[1]: 1 instead of 2", "state log[2]: 2 instead of 3"]


def test_a_backoff_does_not_delay_a_test(crash_tested: Test) -> None:
    """A graph that needs a retry is tested like others, without waiting fifteen seconds in every run."""
    report = crash_tested("refused", "job.settled", allow=("open",))
    assert [result.outcome for result in report.results] == ["held"] * 2
    assert report.reference.run.attempts == 2
    assert report.reference.run.seconds < 10


def test_a_run_that_hangs_is_bounded(crash_tested: Test) -> None:
    """A worker that never ends after a crash is killed when the time is up."""
    (result,) = crash_tested("hanging", "node.finished", allow=("open",), seconds=3.0).results
    said = "it was not over after 3 s; worker 1 was last seen at work"
    assert (result.outcome, result.problems) == ("hung", [said])


def test_a_worker_that_ends_oddly_is_told(crash_tested: Test) -> None:
    """The exit code and the last line it said."""
    (result,) = crash_tested("exiting", "node.finished", allow=("open",)).results
    assert result.problems[0] == "the worker's process ended with code 3: no way"


@pytest.mark.parametrize("graph", ["behaving", "behaving_in_effects"])
def test_what_is_no_touch_is_not_reported(crash_tested: Test, graph: str) -> None:
    """Temporary files, imports, logging, verifications, and whatever an effect or its probe does, in threads too."""
    report = crash_tested(graph, "job.claimed", "effect.intended")
    assert report.touches == []
    assert report.held


@pytest.mark.parametrize(
    ("graph", "seen"),
    [
        ("starting", [("process", "process: git --version", True), ("process", "os.system('true')", True)]),
        (
            "connecting",
            [
                ("network", "connection to 127.0.0.1:9", False),
                ("database", "sqlite3.connect('{run}/data.db')", False),
            ],
        ),
        ("own_thread", [("file", "open('{run}/own', 'w')", True)]),
        ("executor", [("file", "open('{run}/a', 'w')", True), ("file", "open('{run}/b', 'w')", True)]),
    ],
)
def test_touches_are_told_by_their_kind(crash_tested: Test, graph: str, seen: list[tuple[str, str, bool]]) -> None:
    """Processes and files fail the test, connections and databases inform; threads a node starts are seen as well."""
    report = crash_tested(graph, "job.claimed")
    assert [(touch.kind, touch.what, touch.fails) for touch in report.touches] == seen
    assert {touch.node for touch in report.touches} == {"work"}
    assert report.held == (not any(fails for _, _, fails in seen))


def test_a_temporary_file_moved_into_the_world_is_a_touch(crash_tested: Test) -> None:
    """What `tempfile` made is nobody's business, until it is renamed to something that stays."""
    report = crash_tested("replacing", "job.claimed")
    assert [touch.what.partition("(")[0] for touch in report.touches] == ["os.rename", "os.remove"]


def test_a_fixed_place_is_put_back_before_each_run_and_at_the_end(crash_tested: Test, tmp_path: Path) -> None:
    """`--world` is restored and compared, so that runs do not see each other."""
    place = tmp_path / "world"
    place.mkdir()
    (place / "ledger").write_text("before\n")
    report = crash_tested("wrong", "node.finished", place=str(place), world=(place,))
    problems = {result.point.label: result.problems for result in report.results}
    assert problems["node.finished:pay@1"] == []
    assert problems["node.finished:thank@1"] == [f"{place}/ledger: once more 'thanked'"]
    assert [*place.iterdir()] == [place / "ledger"]
    assert (place / "ledger").read_text() == "before\n"


def test_runs_are_kept_when_asked(crash_tested: Test, tmp_path: Path) -> None:
    """`--keep` holds a record a run; a folder that holds something is refused."""
    crash_tested("right", "job.claimed", keep=tmp_path / "kept")
    assert (tmp_path / "kept" / "point-0" / "record.db").exists()
    with pytest.raises(PayloadInvalid, match="not empty"):
        crash_tested("right", keep=tmp_path / "kept")


def test_a_graph_that_does_not_finish_is_refused(crash_tested: Test) -> None:
    """A graph that fails, hangs or cannot be loaded is told as that, not as a difference."""
    with pytest.raises(CrashTestImpossible, match="there is no such branch"):
        crash_tested("failing")
    with pytest.raises(GraphLoadFailed, match="no_such_graph"):
        crash_tested("missing")
    with pytest.raises(PayloadInvalid, match="no crash point that begins with effect"):
        crash_tested("asking", "effect.")


def test_records_may_be_in_postgres(crash_tested: Test) -> None:
    """On PostgreSQL the right graph holds as well, the wrong one is found, and no schema is left behind."""
    with empty_database() as url:
        report = crash_tested("right", "effect.", "checkpoint.after_put", postgres=url)
        assert report.held
        assert len(report.results) >= 8
        assert not crash_tested("wrong", "node.finished", postgres=url).held
        with psycopg.connect(url) as connection:
            left = "SELECT nspname FROM pg_namespace WHERE nspname LIKE 'everstep%'"
            assert connection.execute(left).fetchall() == []
            assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
