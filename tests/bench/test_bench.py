"""The benchmarks run, and count right; never how fast. On the smallest scale, without peers or a PostgreSQL server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import __main__ as command
from bench import page
from bench.contenders import FUSED, SQLITE_LOOP, SQLITE_ROWS, WORKER
from bench.figures import Figure, both_orders, quantile, ratio
from bench.processes import OWN, Child, ChildFailed
from bench.processes import run as in_process
from bench.run import TINY
from bench.scenarios import NAMES, throughput
from bench.tables import Section, Table, Target


def results(folder: Path, *names: str) -> dict[str, dict[str, object]]:
    """Every section of a run of these scenarios on the smallest scale, by name."""
    file = folder / "results.json"
    systems = [part for name in (FUSED, WORKER, SQLITE_LOOP, SQLITE_ROWS) for part in ("--system", name)]
    chosen = ["--scale", "tiny", "--no-peers", *systems, "--only", ",".join(names)]
    assert command.main([*chosen, "--folder", str(folder), "--results", str(file)]) == 0
    sections = json.loads(file.read_text())["sections"]
    assert [section["name"] for section in sections] == list(names)
    assert not [failure for section in sections for failure in section["failures"] if "--isolate" not in failure]
    return {section["name"]: section for section in sections}


def test_every_job_that_was_enqueued_is_done_once(tmp_path: Path) -> None:
    """Each row of the throughput, with one worker and with two, stands for as many jobs done as were enqueued."""
    raw = results(tmp_path, "enqueue", "throughput")["throughput"]["raw"]
    for workers in ("1 workers", "2 workers"):
        assert {name: each["jobs"] for name, each in raw[workers].items()} == {
            FUSED: [TINY.jobs],
            WORKER: [TINY.jobs / 4],
            SQLITE_LOOP: [TINY.jobs],
            SQLITE_ROWS: [TINY.jobs],
        }


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([([0, 1], 1), ([2], 1)], "1 are left"),
        ([([0, 1], 0), ([1], 0)], "2 of them different"),
        ([([0, 1], 0)], "2 ran"),
    ],
)
def test_jobs_that_are_left_or_ran_twice_are_noticed(answers: list[tuple[list[int], int]], why: str) -> None:
    """A throughput of which a job is not done, did not run or ran twice is no figure but a failure."""
    said = [{"begin": 0.0, "end": 1.0, "ran": ran, "left": left} for ran, left in answers]
    with pytest.raises(ChildFailed, match=why):
        throughput.took(said, 3)


def test_a_throughput_lasts_from_the_first_that_began_to_the_last_that_ended() -> None:
    """A worker that ends earlier sees jobs another still runs; the last look counts."""
    said = [{"begin": 1.0, "end": 2.0, "ran": [0, 2], "left": 1}, {"begin": 1.5, "end": 4.0, "ran": [1], "left": 0}]
    assert throughput.took(said, 3) == 3.0


def test_agents_and_steps_are_counted(tmp_path: Path) -> None:
    """The scenarios of agents run every saver, and count at least a commit for each superstep of a lone agent."""
    sections = results(tmp_path, "many_agents", "step_cost")
    assert len(sections["many_agents"]["tables"][0]["rows"]) == 5
    for name, figures in sections["step_cost"]["raw"][f"{TINY.steps[0]} steps"].items():
        assert (figures["commits_per_step"][0] >= 1) == (name != "no checkpointer")


def test_waiting_starting_and_a_large_record(tmp_path: Path) -> None:
    """The other scenarios without a server complete, with a row for each thing they look at."""
    sections = results(tmp_path, "pick_up", "start_up", "large_record", "isolate")
    assert {row[0] for row in sections["pick_up"]["tables"][0]["rows"]} == {FUSED, WORKER, SQLITE_LOOP}
    assert len(sections["start_up"]["tables"][0]["rows"]) == 4
    assert len(sections["large_record"]["tables"][0]["rows"]) == 5


def test_a_server_answers_and_streams(tmp_path: Path) -> None:
    """Each server answers every kind of request, tells every token, and keeps its idle streams open."""
    section = results(tmp_path, "server")["server"]
    raw = section["raw"]
    assert [len(table["rows"]) for table in section["tables"]] == [len(raw)] * 4 == [2] * 4
    assert all(value > 0 for each in raw.values() for name, (value,) in each.items() if name != "idle_cpu")


def test_what_traces_cost_is_measured_by_turns(tmp_path: Path) -> None:
    """Each kind of tracing is run as often as the others, and spans are stored where they are on."""
    raw = results(tmp_path, "telemetry")["telemetry"]["raw"]
    assert [len(each["ms_per_step"]) for each in raw.values()] == [TINY.turns * TINY.runs] * 3
    off, on, hole = (each["kilobytes_per_step"][0] for each in raw.values())
    assert off < min(on, hole)
    assert all(each["commits_per_step"][0] >= 1 for each in raw.values())


def test_a_child_that_ends_says_why() -> None:
    """A process that breaks off is a failure with its last words, not an endless wait."""
    with pytest.raises(ChildFailed, match="ModuleNotFoundError"):
        in_process(OWN, "bench.nowhere:run")
    nowhere = Child(OWN, "bench.queue_child:left", module="nowhere", place=".", options={})
    with nowhere as child, pytest.raises(ChildFailed, match="nowhere"):
        child.wait_until_ready()


def test_figures() -> None:
    """Medians with their range, nearest-rank quantiles, ratios, and the order that turns from run to run."""
    assert Figure((3.0, 1.0, 2.0)).text() == "2 (1–3)"
    assert Figure((1.26,)).text(1) == "1.3"
    assert [quantile([4, 1, 3, 2], share) for share in (0.5, 0.99)] == [2, 4]
    assert quantile(list(range(1, 101)), 0.99) == 99
    assert [ratio(1, 4), ratio(5, 2), ratio(90, 3), ratio(1, 0)] == ["0.25 ×", "2.5 ×", "30 ×", "–"]
    assert both_orders(["a", "b"], 0) == ["a", "b"]
    assert both_orders(["a", "b"], 1) == ["b", "a"]


def test_the_page_takes_results_between_its_marks(tmp_path: Path) -> None:
    """What is written by hand stays; the rest is the machine, the targets with what is behind, and the tables."""
    written = tmp_path / "page.md"
    written.write_text(page.PAGE.read_text())
    section = Section("enqueue", "Enqueue", tables=[Table("", ["system", "a second"], [["huey", "1"]])])
    section.targets = [Target("Faster", "≥ 1 ×", "0.5 ×", False)]
    page.write([("machine", "this one")], [section], written)
    text = written.read_text()
    assert text.startswith("# Benchmarks\n")
    assert "| machine | this one |" in text
    assert "| Faster | ≥ 1 × | 0.5 × | **behind** |" in text
    assert "| huey | 1 |" in text
    page.write([("machine", "another")], [section], written)
    assert "this one" not in written.read_text()


def test_only_what_is_whole_goes_onto_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """A short run, a run without peers or of some scenarios cannot write the page; an unknown scenario is told."""
    for given in (["--write", "--scale", "quick"], ["--write", "--no-peers"], ["--write", "--only", "enqueue"]):
        with pytest.raises(SystemExit):
            command.main(given)
    with pytest.raises(SystemExit):
        command.main(["--no-peers", "--only", "nothing"])
    assert ", ".join(NAMES) in " ".join(capsys.readouterr().err.split())
