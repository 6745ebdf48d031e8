"""`everstep submit`: jobs that are there once, inputs of every form, and waiting for a job beside a real worker."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.cli import forked
from tests.cli.conftest import Prepared
from tests.cli.folder import Folder, environment, is_refused


def test_the_id_alone_is_on_stdout(folder: Folder) -> None:
    """Without --json stdout is the id and nothing else, so that a shell can keep it."""
    ran = folder.run("submit", "count", "--input", "{}")
    assert (ran.code, ran.err) == (0, "")
    assert str(uuid.UUID(ran.out.rstrip("\n"))) + "\n" == ran.out


def test_the_same_input_is_the_same_job(folder: Folder) -> None:
    """`submit --json` tells id, created and status; the same graph and input again are the same job, not created."""
    first = folder.json("submit", "count", "--input", '{"n": 1, "seen": []}')
    again = folder.json("submit", "count", "--input", '{ "seen": [ ], "n": 1.0 }')
    assert first == {"id": first["id"], "created": True, "status": "pending"}
    assert again == {"id": first["id"], "created": False, "status": "pending"}
    newer = folder.json("submit", "count", "--input", '{"n": 1, "seen": []}', "--workflow-version", "2")
    other = folder.json("submit", "mail", "--input", '{"n": 1, "seen": []}')
    assert len({first["id"], newer["id"], other["id"]}) == 3
    said = folder.run("submit", "count", "--input", '{"n": 1, "seen": []}')
    assert (said.code, said.out) == (0, first["id"] + "\n")
    assert "already submitted" in said.err


def test_a_key_belongs_to_one_input(folder: Folder) -> None:
    """The same --key with another input or graph is a conflict that shows the first job; nothing is added."""
    first = folder.json("submit", "count", "--input", '{"n": 1}', "--key", "ticket 7")
    assert folder.json("submit", "count", "--input", '{"n": 1}', "--key", "ticket 7")["id"] == first["id"]
    for ran in folder.all(
        ("submit", "count", "--input", '{"n": 2}', "--key", "ticket 7"),
        ("submit", "mail", "--input", '{"n": 1}', "--key", "ticket 7"),
    ):
        is_refused(ran, 65, "key_conflict")
        assert f"everstep show {first['id']}" in ran.err
    error = folder.run("submit", "count", "--input", '{"n": 2}', "--key", "ticket 7", "--json").error
    assert (error["code"], error["job"], error["status"]) == ("key_conflict", first["id"], "pending")
    assert [job["idempotency_key"] for job in folder.json("jobs")] == ["ticket 7"]


def test_an_empty_key_is_a_mistake(folder: Folder) -> None:
    """An empty --key, as an unset shell variable makes it, is refused instead of standing for no key."""
    is_refused(folder.run("submit", "count", "--input", "{}", "--key", " "), 64, "payload_invalid")


def test_processes_that_submit_at_once_make_one_job(folder: Folder) -> None:
    """Of several processes that submit the same job at once, into a record that is not there yet, one creates it."""
    ran = folder.all(*[("submit", "count", "--input", "{}", "--json")] * 4)
    assert [one.code for one in ran] == [0] * 4
    assert sorted(one.value["created"] for one in ran) == [False, False, False, True]
    assert len({one.value["id"] for one in ran}) == 1


def test_input_comes_as_text_file_or_stdin(folder: Folder) -> None:
    """--input takes JSON text, the name of a file of it, with or without a byte order mark, or - for standard input."""
    text = '{"n": "Å", "seen": [1, null]}'
    (folder.path / "in put").write_text(text, encoding="utf-8")
    (folder.path / "marked.json").write_text(text, encoding="utf-8-sig")
    ids = {folder.submit("count", given=given) for given in (text, f" \n{text}", "in put", "marked.json")}
    ids.add(folder.run("submit", "count", "--input", "-", given=text).out.strip())
    assert len(ids) == 1
    assert folder.json("jobs")[0]["input"] == json.loads(text)


def test_every_option_is_kept_with_the_job(folder: Folder) -> None:
    """Key, priority, attempts, version and owner of a job are what its options said."""
    options = ("--key", "k", "--priority", "10", "--max-attempts", "7", "--workflow-version", "2", "--owner", "ops")
    folder.submit("count", *options)
    (job,) = folder.json("jobs")
    kept = [job[name] for name in ("idempotency_key", "priority", "max_attempts", "workflow_version", "owner")]
    assert kept == ["k", 10, 7, "2", "ops"]
    assert folder.run("submit", "count", "--input", "{}", "--priority", "0").code == 0


def test_the_urgent_job_runs_first(folder: Folder) -> None:
    """A worker takes jobs by --priority, and among equals in the order they came."""
    names = ("low", "first", "second", "high")
    for name, priority in zip(names, ("0", "5", "5", "10"), strict=True):
        folder.submit("count", "--key", name, "--priority", priority)
    with folder.worker("--concurrency", "1", "--until-idle") as worker:
        worker.until(lambda events: len(events) == 8)
    order = [event["idempotency_key"] for event in worker.events if event["event"] == "claimed"]
    assert order == ["high", "first", "second", "low"]


def test_waiting_tells_how_the_job_ended(folder: Folder) -> None:
    """--wait shows progress on stderr, leaves stdout alone, and exits 0 for done, 2 for review, 1 for failed."""
    wanted = {"count": (0, "done"), "ask": (2, "review"), "fails": (1, "failed")}
    waiting = {
        (graph, options): forked.Started(
            ["submit", graph, "--input", "{}", "--wait", *options],
            folder=folder.path,
            environment=environment(),
            with_errors=True,
        )
        for graph in wanted
        for options in (((), ("--json", "--key", "k")) if graph == "count" else ((),))
    }
    with folder.worker():
        for (graph, options), process in waiting.items():
            out, err = process.communicate()
            process.close()
            code, status = wanted[graph]
            assert process.returncode == code, err
            assert "Traceback" not in err
            assert err.splitlines()[-2].startswith(f"{status}  step ")
            said = {"done": "result: ", "review": "next: answer: everstep review show ", "failed": "next: mend"}[status]
            assert err.splitlines()[-1].startswith(said)
            if options:
                answer = json.loads(out)
                assert answer == {"id": answer["id"], "created": True, "status": status}
            else:
                uuid.UUID(out.strip())


def test_waiting_for_a_job_that_ended_is_over_at_once(copied: Prepared) -> None:
    """--wait for a job that was there already, and has ended or waits for a person, needs no worker."""
    wanted = {"count": 0, "ask": 2, "fails": 1}
    commands = [("submit", graph, "--input", "{}", "--wait", "--json") for graph in wanted]
    for (graph, code), ran in zip(wanted.items(), copied.folder.all(*commands), strict=True):
        assert (ran.code, ran.value["id"], ran.value["created"]) == (code, copied.jobs[graph], False)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--priority", "11"), ("--priority", "-1"), ("--priority", "high"), ("--max-attempts", "0")],
)
def test_numbers_out_of_range_are_wrong_usage(option: str, value: str, folder: Folder) -> None:
    """A number that an option does not take is refused with 64, and no record is made."""
    ran = folder.run("submit", "count", "--input", "{}", option, value)
    is_refused(ran, 64, "usage")
    assert option in ran.err
    assert not (folder.path / "everstep.db").exists()


def test_the_installed_script_is_the_command(folder: Folder) -> None:
    """`everstep` beside the interpreter does what `python -m everstep` does."""
    job = folder.enqueue("count")["count"]
    script = Path(sys.executable).with_name("everstep")
    ran = subprocess.run(
        [script, "jobs", "--json"], cwd=folder.path, env=environment(), capture_output=True, check=True
    )
    assert [listed["id"] for listed in json.loads(ran.stdout)] == [job]
