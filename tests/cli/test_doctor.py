"""`everstep doctor`: what is in order, what deserves a look, what is wrong, and the advice."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.conftest import GRAPHS, Prepared
from tests.cli.folder import Folder


def findings(folder: Folder, *options: str, code: int, **variables: str) -> list[dict[str, Any]]:
    """What `doctor --json` found; it exits with the code, and `ok` says the same."""
    ran = folder.run("doctor", "--json", *options, **variables)
    assert ran.code == code, ran
    assert set(ran.value) == {"ok", "findings"}
    assert ran.value["ok"] is (code == 0)
    for finding in ran.value["findings"]:
        assert set(finding) == {"check", "level", "detail", "advice"}
        assert all(isinstance(text, str) for text in finding.values())
        assert finding["level"] in ("ok", "warning", "wrong")
        assert finding["advice"] or finding["level"] != "wrong"
    return ran.value["findings"]


def levels(found: list[dict[str, Any]], check: str) -> list[str]:
    """The levels of the findings of one check."""
    return [finding["level"] for finding in found if finding["check"] == check]


@pytest.fixture(scope="module")
def examined(prepared: Prepared) -> list[dict[str, Any]]:
    """What `doctor` finds in the prepared folder."""
    return findings(prepared.folder, code=0)


def test_a_set_up_without_a_record_is_in_order(folder: Folder) -> None:
    """Before the first job everything is ok, exit 0, each graph is named with its nodes, and no record is made."""
    found = findings(folder, code=0)
    assert {finding["level"] for finding in found} == {"ok"}
    assert found[-1]["detail"].startswith("off")
    assert [finding["check"] for finding in found] == [
        "environment",
        "sqlite",
        "record",
        *["graph"] * len(GRAPHS),
        "traces",
    ]
    assert "count: builder ./graphs.py:count, nodes work" in [finding["detail"] for finding in found]
    assert not (folder.path / "everstep.db").exists()


def test_jobs_that_wait_are_no_fault(examined: list[dict[str, Any]]) -> None:
    """Jobs are counted by state; those that wait for a person are worth a warning with the command to type, exit 0."""
    (jobs,) = (finding for finding in examined if finding["check"] == "jobs")
    assert jobs["detail"] == "2 done, 2 failed, 1 pending, 1 retry, 5 review, 1 running"
    (reviews,) = (finding for finding in examined if finding["check"] == "reviews")
    assert (reviews["level"], reviews["advice"]) == ("warning", "everstep review")
    (record,) = (finding for finding in examined if finding["check"] == "record")
    assert "sound" in record["detail"]


def test_expired_leases_and_foreign_jobs_are_warned_of(folder: Folder) -> None:
    """A running job whose lease ended, and a job whose graph the configuration does not name, are warnings, exit 0."""
    jobs = folder.enqueue("hold", "count")
    with folder.worker("--lease", "0.1") as worker:
        worker.until_claimed(jobs["hold"])
        worker.until_settled(jobs["count"])
    folder.enqueue("mail")
    folder.configure(count="./graphs.py:count")
    found = findings(folder, code=0)
    assert levels(found, "leases") == ["warning"]
    assert jobs["hold"] in next(finding["detail"] for finding in found if finding["check"] == "leases")
    (foreign,) = (finding for finding in found if finding["check"] == "graphs")
    assert foreign["level"] == "warning"
    assert "hold, mail" in foreign["detail"]


def test_a_graph_with_its_own_checkpointer_is_warned_of(folder: Folder) -> None:
    """A graph that brings its own checkpointer works, and its author is told that it is not used."""
    folder.write(
        own="from langgraph.checkpoint.memory import InMemorySaver\nfrom graphs import count\n"
        "graph = count.compile(checkpointer=InMemorySaver())\n"
    ).configure(own="./own.py:graph")
    found = findings(folder, code=0)
    assert levels(found, "graph") == ["ok", "warning"]
    assert any("checkpointer" in finding["detail"] for finding in found if finding["level"] == "warning")


def test_traces_are_told_without_their_secrets(folder: Folder) -> None:
    """`doctor` says whether traces are exported and by which variables, and shows none of their values."""
    folder.configure(count="./graphs.py:count")
    on = findings(
        folder,
        code=0,
        LANGFUSE_PUBLIC_KEY="pk-lf-canary",
        LANGFUSE_SECRET_KEY="sk-lf-canary",
        LANGFUSE_HOST="http://127.0.0.1:9",
    )
    assert on[-1]["detail"].startswith("on (LANGFUSE_PUBLIC_KEY")
    assert "canary" not in str(on)


def test_findings_are_lines_for_people(folder: Folder) -> None:
    """Without --json each finding is a marked line, and what is wrong is followed by the next step; exit 1."""
    folder.configure(count="./graphs.py:count", gone="./gone.py:graph")
    ran = folder.run("doctor")
    assert (ran.code, ran.err) == (1, "")
    lines = ran.out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("✗ graph "))
    assert "gone.py" in lines[at]
    assert lines[at + 1].lstrip().startswith("next: ")
    assert all(line[0] in "✓✗! " for line in lines)
