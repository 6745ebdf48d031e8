"""`everstep doctor`: what is in order, what deserves a look, what is wrong, and the advice."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from everstep.checkpoints.health import Health
from everstep.checkpoints.provider_health import ProviderHealth
from everstep.checkpoints.store import Store
from everstep.runtime.advice import Finding, on_health
from everstep.runtime.examination import look_inside
from tests.cli.conftest import GRAPHS, Prepared
from tests.cli.folder import Folder, is_refused
from tests.support.waiting import until


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


def test_names_that_nothing_has_are_told_with_the_nearest(folder: Folder) -> None:
    """A service that is misspelled in everstep.toml is a warning of doctor and of a worker; a graph is wrong."""
    needs = '[graphs.count]\nservices = ["api.openai.com"]\n'
    sections = '[services."api.opnai.com"]\nconcurrency = 2\n[services."something.else"]\nconcurrency = 1\n'
    (folder.path / "everstep.toml").write_text(needs + sections)
    folder.enqueue("count")
    (found,) = [one for one in findings(folder, code=0) if one["check"] == "services"]
    assert found["level"] == "warning"
    assert "api.opnai.com" in found["detail"]
    assert found["advice"] == "did you mean api.openai.com?"
    ran = folder.run("worker", "--until-idle")
    assert ran.code == 0, ran
    assert ran.err.count("did you mean api.openai.com?") == 1
    (folder.path / "everstep.toml").write_text("[graphs.cuont]\nconcurrency = 1\n")
    (found,) = [one for one in findings(folder, code=1) if one["check"] == "everstep.toml"]
    assert found["advice"] == "Did you mean count?"


def test_an_unknown_word_for_traces_is_told(folder: Folder) -> None:
    """EVERSTEP_TRACES knows one word; another is named with what to set, since nothing is recorded."""
    found = findings(folder, code=1, EVERSTEP_TRACES="recrod")
    (wrong,) = [one for one in found if one["level"] == "wrong"]
    assert "EVERSTEP_TRACES=recrod is not known" in wrong["detail"]
    assert "EVERSTEP_TRACES=record" in wrong["advice"]


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
    with Store.open(folder.url) as store:
        until(lambda: (store.job(jobs["hold"]).lease_until or 0) < store.clock.now_ms(), "the end of the lease")
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
    traces = next(one for one in on if one["check"] == "traces")
    assert traces["detail"].startswith("on (LANGFUSE_PUBLIC_KEY")
    assert "canary" not in str(on)


def test_an_endpoint_that_is_no_url_is_wrong(folder: Folder) -> None:
    """Traces and metrics that go nowhere are no tick: the variable is named, with the right form."""
    folder.configure(count="./graphs.py:count")
    found = findings(folder, code=1, OTEL_EXPORTER_OTLP_ENDPOINT="u:canary@127.0.0.1:4318")
    assert levels(found, "traces") == levels(found, "metrics") == ["wrong"]
    traces = next(one for one in found if one["check"] == "traces")
    assert traces["detail"].startswith("OTEL_EXPORTER_OTLP_ENDPOINT=127.0.0.1:4318 is no http://")
    assert "canary" not in str(found)
    keys = {"LANGFUSE_PUBLIC_KEY": "pk", "LANGFUSE_SECRET_KEY": "sk", "LANGFUSE_HOST": "langfuse.example"}
    assert levels(findings(folder, code=1, **keys), "langfuse") == ["wrong"]


def test_what_switched_traces_on_is_named(folder: Folder) -> None:
    """Also when it is no endpoint."""
    folder.configure(count="./graphs.py:count")
    for variable, value in (("OTEL_TRACES_EXPORTER", "otlp,console"), ("EVERSTEP_TRACES", "record")):
        found = findings(folder, code=0, **{variable: value})
        assert [one["detail"] for one in found if one["check"] == "traces"] == [f"on ({variable})"]


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


# ---- health

HEALTHY = Health(
    at=0,
    jobs={"pending": 3, "running": 2, "retry": 0, "review": 0, "done": 9, "failed": 0},
    due=3,
    oldest_due_ms=1_000,
    oldest_due_job="0198",
    busy_workers=1,
    expired_leases=0,
    expired_jobs=(),
    stuck=0,
    stuck_jobs=(),
    unknown_effects=0,
    open_reviews=0,
    oldest_review_ms=None,
    retries_last_hour=100,
    lease_expiries_last_hour=10,
    services={"open": 1, "closed": 0},
    size=1_000_000,
    log_size=256 * 1024 * 1024,
)


UNKNOWN = ProviderHealth({("films", "submission_unknown"): 2}, 1_000, unknown=("01", "02"))
ABANDONED = ProviderHealth({("films", "created"): 1}, 1_000, abandoned=1, abandoned_tasks=("01",))
UNPOLLED = ProviderHealth({("films", "pending"): 4}, 1_000, unpolled=1, unpolled_tasks=("01",))
PARKED = ProviderHealth(parked=3, oldest_parked_ms=2 * 86_400_000)


def warnings(**values: Any) -> list[Finding]:
    """What is warned of in a record that is healthy but for these values."""
    return [finding for finding in on_health(replace(HEALTHY, **values)) if finding.level != "ok"]


def test_up_to_its_thresholds_a_record_is_healthy() -> None:
    """At the documented thresholds nothing is warned of, and everything that is always there is said."""
    assert warnings() == []
    assert [finding.check for finding in on_health(HEALTHY)] == ["jobs", "queue", "wal"]
    assert [finding.check for finding in on_health(replace(HEALTHY, log_size=None))] == ["jobs", "queue"]
    assert warnings(providers=ProviderHealth({("films", "pending"): 9}, 10**9, parked=3, oldest_parked_ms=1)) == []


@pytest.mark.parametrize(
    ("values", "check", "detail", "advice"),
    [
        ({"oldest_due_ms": 900_000}, "queue", "(0198) for 15 min; 1 worker runs other jobs", "more workers"),
        ({"oldest_due_ms": 7_200_000, "busy_workers": 0}, "queue", "for 2 h; nobody runs anything", "everstep worker"),
        ({"expired_leases": 7, "expired_jobs": ("01", "02")}, "leases", "7 running jobs", "everstep worker"),
        ({"stuck": 1, "stuck_jobs": ("01",)}, "stuck", "stored nothing for long: 01", "everstep cancel"),
        ({"log_size": 256 * 1024 * 1024 + 1}, "wal", "268.4 MB", "snapshot"),
        ({"unknown_effects": 2}, "effects", "of 2 effects nobody knows", "everstep review"),
        ({"open_reviews": 1, "oldest_review_ms": 3 * 86_400_000}, "reviews", "oldest question for 3 d", "review"),
        ({"retries_last_hour": 101}, "retries", "101 failures", "--status retry"),
        ({"overdue": ("nightly",), "overdue_ms": 7_200_000}, "schedules", "first 2 h ago: nightly", "everstep worker"),
        ({"lease_expiries_last_hour": 11}, "expiries", "11 jobs", "what ends the workers"),
        ({"providers": UNKNOWN}, "providers", "of 2 paid submissions nobody knows", "everstep provider link"),
        ({"providers": ABANDONED}, "providers", "1 task of an ended job is paid and never", "everstep provider cancel"),
        ({"providers": UNPOLLED}, "providers", "1 provider task for 15 minutes after the time: 01", "everstep.toml"),
        ({"providers": PARKED}, "providers", "3 events of providers found no task, the oldest for 2 d", "events"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_past_a_threshold_there_is_advice(values: dict[str, Any], check: str, detail: str, advice: str) -> None:
    """Each value past its threshold is one warning of its own, with the number and what to do."""
    (found,) = warnings(**values)
    assert (found.check, found.level) == (check, "warning")
    assert detail in found.detail
    assert advice in found.advice


def test_what_a_gate_or_a_limit_holds_is_not_unserved() -> None:
    """Jobs that may not start are told as held, however long they wait; those beside them are judged by themselves."""
    hours = {"due": 3, "oldest_due_ms": 36_000_000, "busy_workers": 0}
    assert warnings(**hours, held=3) == warnings(**hours, held=2, oldest_free_ms=899_999, oldest_free_job="0199") == []
    (unserved,) = warnings(**hours, held=2, oldest_free_ms=900_000, oldest_free_job="0199")
    assert "3 jobs are due, 2 of them held" in unserved.detail
    assert "the oldest of the others (0199) for 15 min; nobody runs anything" in unserved.detail
    (queue,) = (finding for finding in on_health(replace(HEALTHY, **hours, held=3)) if finding.check == "queue")
    assert "3 jobs are due, all of them held by a service that is out or a limit" in queue.detail


def test_limits_are_those_of_the_configuration(folder: Folder) -> None:
    """A job that waits for a place under a limit of everstep.toml is held; without the file it is not."""
    jobs = folder.enqueue("count", "hold")
    with Store.open(folder.url) as store:
        store.write(
            lambda c: c.exec_driver_sql(
                "UPDATE agent_jobs SET status = 'running', leased_by = 'w', lease_until = next_run_at + 3600000,"
                f" graph = 'count' WHERE public_id = '{jobs['hold']}'"
            )
        ).result()
    details: list[str] = []
    for limit in ("concurrency = 1", ""):
        (folder.path / "everstep.toml").write_text(f"[graphs.count]\n{limit}\n")
        details += [finding["detail"] for finding in findings(folder, code=0) if finding["check"] == "queue"]
    assert ["held" in detail for detail in details] == [True, False]


def test_a_big_file_is_not_looked_through_unless_asked(folder: Folder) -> None:
    """Looking at the soundness of a file ends when its time is over, and says that it was not all of it."""
    with Store.open(folder.url) as store:
        insert = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) "
        insert += "INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, channel)"
        insert += " SELECT 't', '', i, 'task', i, 'c' FROM n"
        store.write(lambda c: c.exec_driver_sql(insert)).result()
        with pytest.raises(TimeoutError):
            store.read(lambda c: store.database.problem(c, 0.01))
        assert store.read(lambda c: store.database.problem(c, None)) is None
        assert store.jobs() == []  # the connection is as good as before
    (record, *_) = look_inside(folder.url, folder.path / "langgraph.json", 0.01)
    assert (record.level, "everstep doctor --deep" in record.detail) == ("ok", True)
    assert levels(findings(folder, "--deep", code=0), "record") == ["ok"]


def test_metrics_are_printed_for_a_monitor(prepared: Prepared) -> None:
    """`metrics` prints samples and nothing else; `--json` the same numbers with the ids; neither makes a record."""
    folder = prepared.folder
    text, as_json, none = folder.all(
        ("metrics",), ("metrics", "--json"), ("metrics", "--store", "sqlite:///nowhere.db")
    )
    assert (text.code, text.err) == (0, "")
    lines = text.out.splitlines()
    assert 'everstep_jobs{state="review"} 5' in lines
    assert all(line.startswith(("# HELP everstep_", "# TYPE everstep_", "everstep_")) for line in lines)
    assert as_json.value["jobs"] == {"pending": 1, "running": 1, "retry": 1, "review": 5, "done": 2, "failed": 2}
    assert f"everstep_open_reviews {as_json.value['open_reviews']}" in lines
    is_refused(none, 66, "store_not_found")
    assert not (folder.path / "nowhere.db").exists()


def test_health_is_part_of_the_findings(folder: Folder) -> None:
    """A job that has been due for an hour while nobody works is warned of, and one that holds its lease in silence."""
    jobs = folder.enqueue("count", "ask")
    with closing(sqlite3.connect(folder.path / "everstep.db")) as connection, connection:
        hour = 3_600_000 * 2
        connection.execute("UPDATE agent_jobs SET next_run_at = next_run_at - ?", (hour,))
        running = "UPDATE agent_jobs SET status = 'running', leased_by = 'w', updated_at = updated_at - ?,"
        running += " lease_until = updated_at + 60000 WHERE public_id = ?"
        connection.execute(running, (hour, jobs["ask"]))
    found = findings(folder, code=0)
    assert levels(found, "queue") == levels(found, "stuck") == ["warning"]
    (stuck,) = (finding for finding in found if finding["check"] == "stuck")
    assert jobs["ask"] in stuck["detail"]


def test_credit_that_does_not_add_up_is_wrong(folder: Folder) -> None:
    """Somebody changed a balance by hand: doctor exits 1 and names the owner."""
    folder.run("credits", "grant", "ann", "5", "EUR", "--reason", "x", "--key", "k")
    assert levels(findings(folder, code=0), "credit") == []
    with closing(sqlite3.connect(folder.path / "everstep.db")) as connection, connection:
        connection.execute("UPDATE credit_accounts SET balance = 501")
    (wrong,) = (finding for finding in findings(folder, code=1) if finding["check"] == "credit")
    assert wrong["level"] == "wrong"
    assert "of ann is 501 EUR" in wrong["detail"]
