"""`everstep dlq`: which jobs it lists, what it shows of one, and what running again and deleting do."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from everstep.checkpoints.store import Store
from everstep.cli.dlq import moment
from everstep.errors import PayloadInvalid
from tests.cli.conftest import Prepared
from tests.cli.folder import Folder, is_refused
from tests.cli.test_jobs import has_shape
from tests.support.paid import PRICE, entries, task_of

HOUR_MS = 3_600_000
LETTER = {
    "id": str,
    "graph": str,
    "status": str,
    "step": int,
    "node": str | None,
    "attempts": int,
    "idempotency_key": str,
    "ended_by": str,
    "error": dict,
    "failed_at": str,
    "announced_at": str | None,
}


@pytest.fixture
def ended(copied: Prepared) -> Prepared:
    """A record with two dead letters (`fails`, `garbled`), a job that was cancelled and one that was rejected."""
    asked = {review["job"]: review["id"] for review in copied.folder.json("review")}
    copied.folder.all_json(
        ("cancel", copied.jobs["slow"]), ("review", "reject", asked[copied.jobs["broken"]], "--reason", "no")
    )
    return copied


def graphs(letters: list[dict[str, Any]]) -> list[str]:
    """Of which graphs the letters are."""
    return sorted(letter["graph"] for letter in letters)


def test_it_lists_what_failed_by_itself(ended: Prepared) -> None:
    """The list has jobs that failed, newest first, and with --all those a person ended, told apart."""
    letters = ended.folder.json("dlq")
    assert graphs(letters) == ["fails", "garbled"]
    assert [letter["failed_at"] for letter in letters] == sorted((one["failed_at"] for one in letters), reverse=True)
    for letter in letters:
        has_shape(letter, LETTER)
        assert (letter["ended_by"], letter["error"]["type"]) == ("error", "ValueError")
    everything = {letter["graph"]: letter["ended_by"] for letter in ended.folder.json("dlq", "list", "--all")}
    assert everything == {"fails": "error", "garbled": "error", "slow": "cancelled", "broken": "rejected"}
    said = ended.folder.run("dlq", "list")
    assert (said.code, len(said.out.splitlines())) == (0, 2)
    assert f"{ended.jobs['fails']}  fails at step 0  ValueError: there is no such branch" in said.out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--graph", "fails"), ["fails"]),
        (("--graph", "count"), []),
        (("--code", "unhandled_exception"), ["fails", "garbled"]),
        (("--code", "ValueError"), ["fails", "garbled"]),
        (("--code", "KeyError"), []),
        (("--code", "KeyError", "--all"), []),
        (("--code", "cancelled", "--all"), ["slow"]),
        (("--since", "24h"), ["fails", "garbled"]),
        (("--since", "2100-01-01T00:00:00Z"), []),
        (("--limit", "1", "--graph", "garbled"), ["garbled"]),
    ],
    ids=" ".join,
)
def test_filters(options: tuple[str, ...], expected: list[str], ended: Prepared) -> None:
    """By graph, by error code or type, and by time; an empty list is said on stderr."""
    assert graphs(ended.folder.json("dlq", "list", *options)) == expected
    if not expected:
        said = ended.folder.run("dlq", "list", *options)
        assert (said.code, said.out) == (0, "")
        assert "no dead letters" in said.err


def test_what_a_dead_letter_never_submitted_can_be_had_back(ended: Prepared) -> None:
    """`show` and `dlq show` name the command that gives the charge back beside the one that goes on; a purge does."""
    job = ended.jobs["fails"]
    with Store.open(ended.folder.url) as store:
        task = task_of(store, to="created", job=job)
        told = f"everstep provider cancel {task.public_id}"
        assert told in ended.folder.json("show", job)["next_action"]
        assert f"everstep retry {job}" in ended.folder.json("show", job)["next_action"]
        assert any(told in one for one in ended.folder.json("dlq", "show", job)["next_actions"])
        assert ended.folder.run("dlq", "purge", job, "--yes").code == 0
        assert entries(store, task) == [("charge", -PRICE), ("refund", PRICE)]


def test_a_moment_has_one_meaning() -> None:
    """A span counts back from now; a time needs `Z` or an offset, since without one it could be any hour."""
    now = int(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp() * 1000)
    for given, hours in (("90m", 1.5), ("24h", 24), ("7d", 168), ("0.5h", 0.5), ("3600s", 1)):
        assert moment(given, now) == now - hours * HOUR_MS
    assert moment("999999999999999d", now) == 0
    assert moment("2026-11-30T11:00:00Z", now) == moment("2026-11-30T12:00:00+01:00", now) == now - HOUR_MS
    for wrong in ("2026-11-30T11:00:00", "yesterday", "", "-3h", "24", "7 days"):
        with pytest.raises(PayloadInvalid):
            moment(wrong, now)


def test_show_tells_all_that_is_known(ended: Prepared) -> None:
    """The exceptions, last steps, effects, reviews, evidence, events, traces, and the commands that come next."""
    job = ended.jobs["fails"]
    view = ended.folder.json("dlq", "show", job)
    assert [(link["type"], link["message"]) for link in view["chain"]] == [("ValueError", "there is no such branch")]
    assert "graphs.py" in view["chain"][0]["where"]
    assert [step["step"] for step in view["steps"]] == [0, -1]
    assert [(row["kind"], row["claim_no"]) for row in view["evidence"]] == [("error", 1)]
    assert view["events"][-1]["to"] == "failed"
    assert (view["effects"], view["reviews"]) == ([], [])
    assert [trace["leg"] for trace in view["traces"]] == [1]
    assert len(view["traces"][0]["trace_id"]) == 32
    assert any(f"everstep dlq redrive {job}" in action for action in view["next_actions"])
    said, whole = (ended.folder.run("dlq", "show", job, *more) for more in ((), ("--verbose",)))
    for command in ("show", "trace"):
        assert "langgraph/" not in ended.folder.run(command, job).out
        assert "langgraph/" in ended.folder.run(command, job, "--verbose").out
    assert "langgraph/" not in said.out
    assert "more places: --verbose)" in said.out
    assert "langgraph/" in whole.out
    for part in (
        "what went wrong",
        "ValueError: there is no such branch",
        "graphs.py",
        "last steps",
        "evidence",
        "next",
    ):
        assert part in said.out


def test_show_has_what_verification_wrote(folder: Folder) -> None:
    """The output of a verification command that failed is shown line by line."""
    folder.write(
        checks="from everstep import verify\nfrom langgraph.graph import END, START, StateGraph\n\n\n"
        "def work(state):\n    verify('sh -c \"echo first; echo second; exit 3\"', check=False)\n"
        "    raise ValueError('no')\n\n\n"
        "checks = StateGraph(dict).add_node('work', work).add_edge(START, 'work').add_edge('work', END)\n"
    ).configure(checks="./checks.py:checks")
    job = folder.submit("checks")
    assert folder.run("worker", "--until-idle").code == 0
    (kept,) = [row for row in folder.json("dlq", "show", job)["evidence"] if "results" in row["detail"]]
    assert kept["detail"]["results"][0]["exit_code"] == 3
    said = folder.run("dlq", "show", job).out.splitlines()
    first = said.index("      first")
    assert said[first + 1] == "      second"
    assert "(exit code 3)" in said[first - 1]


def test_only_failed_jobs_are_dead_letters(ended: Prepared) -> None:
    """Jobs in other states are refused by each subcommand and nothing changes; unknown ones are not found."""
    before = ended.folder.json("jobs")
    for graph in ("count", "ask", "away", "hold"):
        for command in (("show",), ("redrive",), ("purge", "--yes")):
            is_refused(ended.folder.run("dlq", *command, ended.jobs[graph]), 65, "job_state_conflict")
    is_refused(ended.folder.run("dlq", "redrive", ended.jobs["fails"], "f00", "--yes"), 66, "job_not_found")
    assert ended.folder.json("jobs") == before


# ---- redrive


def test_redrive_one(ended: Prepared) -> None:
    """One job runs again without a question, also one that was cancelled; a second time it is a conflict."""
    for graph in ("fails", "slow"):
        (result,) = ended.folder.json("dlq", "redrive", ended.jobs[graph])
        assert result == {"id": ended.jobs[graph], "redriven": True, "status": "pending", "error": None}
        is_refused(ended.folder.run("dlq", "redrive", ended.jobs[graph]), 65, "job_state_conflict")
    assert graphs(ended.folder.json("dlq")) == ["garbled"]


def test_redrive_many_by_name(ended: Prepared) -> None:
    """Several named jobs need --yes where nobody can be asked; each is reported."""
    names = (ended.jobs["fails"], ended.jobs["garbled"])
    is_refused(ended.folder.run("dlq", "redrive", *names), 64, "usage")
    assert graphs(ended.folder.json("dlq")) == ["fails", "garbled"]
    said = ended.folder.run("dlq", "redrive", *names, "--yes")
    assert (said.code, sorted(said.out.splitlines())) == (0, sorted(f"{name} pending" for name in names))


def test_redrive_all_that_fit(ended: Prepared) -> None:
    """With --all those run again that the filters leave, and none that a person ended."""
    assert ended.folder.json("dlq", "redrive", "--all", "--graph", "garbled") != []
    assert graphs(ended.folder.json("dlq", "list", "--all")) == ["broken", "fails", "slow"]
    assert ended.folder.json("dlq", "redrive", "--all", "--code", "KeyError") == []
    assert [one["id"] for one in ended.folder.json("dlq", "redrive", "--all")] == [ended.jobs["fails"]]
    for arguments in ((), ("--graph", "fails"), (ended.jobs["fails"], "--all"), (ended.jobs["fails"], "--code", "x")):
        is_refused(ended.folder.run("dlq", "redrive", *arguments), 64, "usage")


def test_two_people_start_a_job_once(ended: Prepared) -> None:
    """Of several who redrive the same job at once one starts it; it has one more event."""
    job = ended.jobs["fails"]
    ran = ended.folder.all(*[("dlq", "redrive", job)] * 4)
    assert sorted(one.code for one in ran) == [0, 65, 65, 65]
    assert [event["to"] for event in ended.folder.json("show", job)["events"]][-2:] == ["failed", "pending"]


# ---- purge


def test_purge_deletes_and_keeps_the_key(ended: Prepared) -> None:
    """A purged job is gone; its key is known, so that the same submission does nothing again."""
    job = ended.jobs["fails"]
    is_refused(ended.folder.run("dlq", "purge", job), 64, "usage")
    assert ended.folder.json("dlq", "purge", job, "--yes") == [{"id": job, "purged": True, "reason": None}]
    is_refused(ended.folder.run("show", job), 66, "job_not_found")
    again = ended.folder.run("submit", "fails", "--input", "{}", "--json")
    assert (again.code, again.error["code"], again.error["job"]) == (65, "job_pruned", job)
    assert graphs(ended.folder.json("dlq", "list", "--all")) == ["broken", "garbled", "slow"]


def test_purge_by_age_and_all(ended: Prepared) -> None:
    """By age only what is older goes; --all takes every dead letter and none that a person ended."""
    assert ended.folder.json("dlq", "purge", "--older-than", "1", "--yes") == []
    with Store.open(ended.folder.url) as store:
        job = store.job(ended.jobs["garbled"])
        store.write(
            lambda c: c.exec_driver_sql(f"UPDATE agent_jobs SET updated_at = updated_at - 86400001 WHERE id = {job.id}")
        ).result()
    assert [one["id"] for one in ended.folder.json("dlq", "purge", "--older-than", "1", "--yes")] == [job.public_id]
    assert [one["id"] for one in ended.folder.json("dlq", "purge", "--all", "--yes")] == [ended.jobs["fails"]]
    assert graphs(ended.folder.json("dlq", "list", "--all")) == ["broken", "slow"]


def test_a_family_stays_together(ended: Prepared) -> None:
    """A dead letter whose child has not ended is kept, and the command says so by exit code."""
    with Store.open(ended.folder.url) as store:
        parent, child = store.job(ended.jobs["fails"]), store.job(ended.jobs["ask"])
        store.write(
            lambda c: c.exec_driver_sql(f"UPDATE agent_jobs SET parent_id = {parent.id} WHERE id = {child.id}")
        ).result()
    ran = ended.folder.run("dlq", "purge", parent.public_id, "--yes", "--json")
    assert ran.code == 65
    assert json.loads(ran.out)[0]["purged"] is False
    assert "child" in json.loads(ran.out)[0]["reason"]
    assert ended.folder.json("show", parent.public_id)["status"] == "failed"
