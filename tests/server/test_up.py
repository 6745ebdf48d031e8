"""`everstep up` and `everstep server` as real processes: what they start, how they stop, what a kill costs."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from everstep.checkpoints.store import Store
from everstep.server.serving import listen
from tests.cli.folder import Folder
from tests.support.server_process import Start, make_graphs, starting
from tests.support.waiting import PATIENCE, until


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with graphs and their configuration."""
    make_graphs(tmp_path)
    return tmp_path


@pytest.fixture
def record(folder: Path) -> Iterator[Store]:
    """The record that the servers of the folder are on."""
    with Store.open(f"sqlite:///{folder / 'everstep.db'}") as store:
        yield store


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts servers in the folder."""
    with starting(folder) as start:
        yield start


def submit(client: httpx.Client, graph: str = "agent", **given: Any) -> str:
    """Submit a job; its id."""
    answer = client.post("/everstep/jobs", json={"graph": graph, "input": given})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def is_done(client: httpx.Client, job: str) -> Any:
    """The job, once it is done."""
    found = client.get(f"/everstep/jobs/{job}").json()
    return found if found["status"] == "done" else None


def test_it_serves_and_runs_jobs(start: Start, folder: Path) -> None:
    """One command on one file: requests are answered, jobs run; a signal ends it with exit code 0."""
    server = start()
    assert server.ready["graphs"] == ["agent", "blocking", "calling"]
    assert {"http", "worker", "schedules"} <= set(server.ready["parts"])
    with server.client() as client:
        assert client.get("/ok").json() == {"ok": True}
        job = submit(client, n=1)
        assert until(lambda: is_done(client, job), "the job's end")["result"] == {"n": 2}
    assert server.end() == 0
    assert (folder / "everstep.db").exists()


def test_a_graph_that_blocks_stalls_no_request(start: Start, folder: Path) -> None:
    """A node that blocks its event loop holds up other jobs of the loop, but no request."""
    server = start()
    with server.client() as client:
        job = submit(client, "blocking", folder=str(folder))
        until((folder / "stands").exists, "the node")
        for _ in range(20):
            assert client.get("/ok").status_code == 200
            assert client.get(f"/everstep/jobs/{job}").json()["status"] == "running"
        (folder / "go").touch()
        until(lambda: is_done(client, job), "the job's end")
    assert server.end(signal.SIGINT) == 0


def test_a_second_signal_ends_it_at_once(start: Start, folder: Path, record: Store) -> None:
    """The first waits for the step that runs; the second does not, and the job's lease will bring it back."""
    server = start()
    with server.client() as client:
        job = submit(client, "blocking", folder=str(folder))
        until((folder / "stands").exists, "the node")
        server.running.send_signal(signal.SIGTERM)
        until(lambda: _refuses(server.url), "the end of accepting")
    assert server.running.poll() is None
    assert server.end() == 128 + signal.SIGTERM
    assert record.job(job).status == "running"


def _refuses(url: str) -> bool:
    host, _, port = url.removeprefix("http://").partition(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_kill_under_load_loses_no_accepted_job(start: Start, record: Store) -> None:
    """SIGKILL while many clients submit: every job that was answered with 200 is in the record, and runs."""
    server = start("--lease", "3")
    accepted: list[str] = []
    enough = threading.Event()

    def load(number: int) -> None:
        with server.client() as client:
            for turn in range(10_000):
                body = {"graph": "agent", "input": {"n": number * 10_000 + turn}}
                try:
                    answer = client.post("/everstep/jobs", json=body)
                except httpx.TransportError:
                    return
                assert answer.status_code == 200
                accepted.append(answer.json()["id"])
                if len(accepted) >= 100:
                    enough.set()

    with ThreadPoolExecutor(8) as clients:
        loads = [clients.submit(load, number) for number in range(8)]
        assert enough.wait(PATIENCE)
        server.end(signal.SIGKILL)
        for each in loads:
            each.result(PATIENCE)
    known = {job.public_id for job in record.jobs(limit=1_000_000)}
    assert set(accepted) <= known
    again = start("--lease", "3")
    with again.client() as client:
        until(lambda: all(job.status == "done" for job in record.jobs(limit=1_000_000)), "the end of all jobs")
        assert client.get(f"/everstep/jobs/{accepted[-1]}").json()["status"] == "done"


def test_the_http_part_alone_runs_nothing(start: Start, folder: Path) -> None:
    """`everstep server` takes jobs that workers elsewhere run."""
    server = start(command="server")
    assert server.ready["parts"] == ["http"]
    with server.client() as client:
        job = submit(client, n=1)
        assert client.get(f"/everstep/jobs/{job}").json()["status"] == "pending"
        assert Folder(folder).run("worker", "--until-idle").code == 0
        assert is_done(client, job)


def test_a_graph_calls_its_own_server(start: Start, record: Store) -> None:
    """`get_client()` without an address, made when the node runs, asks this server, for the owner of the node's job."""
    server = start()
    job = record.enqueue("calling", {}, owner="anna").job
    until(lambda: record.job(job.public_id).status in ("done", "review", "failed"), "the job's end")
    ended = record.job(job.public_id)
    assert (ended.status, json.loads(ended.result_json or "{}")) == ("done", {"owner": "anna"}), ended.error_json
    assert {each.owner for each in record.jobs()} == {"anna"}
    assert server.end() == 0


def test_other_machines_are_not_let_in_unguarded(start: Start, folder: Path) -> None:
    """Listening elsewhere without a key is refused before anything listens, with the next step; with a key it works."""
    run = Folder(folder).run
    refused = run("up", "--host", "0.0.0.0", "--port", "0", "--json")
    error = refused.error
    assert (refused.code, error["code"]) == (78, "server_unguarded")
    assert "everstep keys create" in error["next_step"]
    key = run("keys", "create", "laptop", "--json").value["key"]
    server = start("--host", "0.0.0.0")
    with server.client() as client:
        assert client.get("/info").status_code == 401
        assert client.get("/info", headers={"x-api-key": key}).status_code == 200
        (listed,) = run("keys", "list", "--json").value
        assert key not in json.dumps(listed)
        assert run("keys", "revoke", listed["id"][:13]).code == 0
        until(lambda: client.get("/info", headers={"x-api-key": key}).status_code == 401, "the revocation")


def test_a_graph_whose_file_is_missing_is_told_at_the_start(
    start: Start, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The server starts, as its other graphs work, and the log names the graph and the file."""
    configuration = json.loads((folder / "langgraph.json").read_text())
    configuration["graphs"]["lost"] = "./lost.py:graph"
    (folder / "langgraph.json").write_text(json.dumps(configuration))
    assert start("--no-worker").end() == 0
    log = capfd.readouterr().err
    assert f"graph lost: there is no file {folder / 'lost.py'}" in log
    assert log.count("there is no file") == 1


def test_a_server_that_stops_cancels_nothing(
    start: Start, folder: Path, record: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    """Streams are cut when it stops, as it should; clients have not left: `on_disconnect: cancel` cancels no run."""
    server = start("--no-worker")
    asked = {"assistant_id": "agent", "input": {"n": 1}, "on_disconnect": "cancel"}
    with server.client() as client, client.stream("POST", "/runs/stream", json=asked) as stream:
        parts = stream.iter_raw()
        until(record.jobs, "the run's job")
        server.running.send_signal(signal.SIGTERM)
        with suppress(httpx.TransportError):
            assert b"event: end" not in b"".join(parts)
    assert server.running.wait(PATIENCE) == 0
    (job,) = record.jobs()
    assert (job.status, job.cancel_requested_at) == ("pending", None)
    log = capfd.readouterr().err
    assert "stopping" in log
    assert "[error]" not in log
    assert "Traceback" not in log


def test_answers_wait_for_no_acknowledgement() -> None:
    """What listens names its protocol: only then does asyncio switch off what would delay each answer by 40 ms."""
    with listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP
