"""`--json` of commands that run jobs, when nobody reads it, or late, or whoever read it is gone."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Any, TextIO

import pytest

from everstep.checkpoints.store import Store
from everstep.cli.json_lines import JsonLines
from everstep.cli.worker_lines import WorkerLines
from tests.cli.folder import Folder, Worker
from tests.support.waiting import until

SMALLEST = 4096
JOBS = 8

Pipe = tuple[FileIO, TextIO]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    """A small pipe: the end to read from, and the one to write to."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, SMALLEST)
    with os.fdopen(reading, "rb", buffering=0) as source, os.fdopen(writing, "w", encoding="utf-8") as output:
        yield source, output


def rest_of(source: FileIO) -> list[dict[str, Any]]:
    """All lines that can be read until the other end is closed."""
    return [json.loads(line) for line in source.readlines()]


@contextmanager
def waiting_worker(folder: Folder) -> Generator[Worker]:
    """A worker that has done all its jobs, and tells that it waits for somebody who reads its lines."""
    with Store.open(folder.url) as store:
        for number in range(JOBS):
            store.enqueue("count", {"n": number})
    with folder.worker("--until-idle") as worker:
        fcntl.fcntl(worker.process.stdout.fileno(), fcntl.F_SETPIPE_SZ, SMALLEST)
        told(worker, "of --json not taken by the reader yet")
        with Store.open(folder.url) as store:
            assert {job.status for job in store.jobs()} == {"done"}
        yield worker


def told(worker: Worker, what: str) -> None:
    """Read what the worker says on stderr until it says that."""
    assert worker.process.stderr is not None
    while what not in (line := worker.process.stderr.readline()):
        assert line, f"the worker ended and did not say: {what}"


def test_a_reader_that_pauses_at_the_end_gets_every_line(folder: Folder) -> None:
    """Jobs are done though nobody reads; their worker then waits until its reader has all lines, and exits 0."""
    with waiting_worker(folder) as worker:
        events = [json.loads(line)["event"] for line in worker.process.stdout]
        assert worker.process.wait() == 0
    assert sorted(events) == ["claimed"] * JOBS + ["done"] * JOBS


def test_a_worker_does_not_wait_for_a_reader_that_is_gone(folder: Folder) -> None:
    """A reader that ends while the worker waits for it ends the wait; the worker exits 0 and tells what is missing."""
    with waiting_worker(folder) as worker:
        worker.process.stdout.close()
        told(worker, "of --json not written: nobody reads")
        assert worker.process.wait() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_the_wait_for_a_reader(folder: Folder, number: signal.Signals, code: int) -> None:
    """A worker that only waits for a reader has nothing to drain: a signal ends it, with the documented code."""
    with waiting_worker(folder) as worker:
        worker.process.send_signal(number)
        told(worker, "of --json not written: nobody reads")
        assert worker.process.wait() == code


def test_a_process_that_failed_does_not_wait_for_a_reader(pipe: Pipe, caplog: pytest.LogCaptureFixture) -> None:
    """A failure comes out though nobody reads: what supervises the process may have to start it again."""
    lines = JsonLines(pipe[1]).__enter__()
    for number in range(SMALLEST):
        lines.say({"n": number})
    lines.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert "of --json not written" in caplog.text
    pipe[0].close()  # and so the thread that writes ends


def test_a_reader_that_comes_late_is_told_how_many_lines_are_missing(pipe: Pipe) -> None:
    """What had no room is left out, and a line in its place says how many lines that were."""
    source, output = pipe
    got: list[dict[str, Any]] = []
    with JsonLines(output, most_waiting_bytes=SMALLEST) as lines:
        for number in range(1000):
            lines.say({"n": number, "text": "x" * 100})
        until(lambda: got.append(json.loads(source.readline())) or got[-1].get("event"), "how many are missing")
        lines.say({"n": 1000})
    output.close()
    got += rest_of(source)
    place = 0
    for line in got:  # whoever writes may have had room in between, so there may be several gaps
        if line.get("event") == "dropped":
            place += line["lines"]
        else:
            assert line["n"] == place
            place += 1
    assert place == 1001


def test_a_reader_that_reads_gets_every_line(pipe: Pipe) -> None:
    """Lines come whole, in order, and all of them before the process ends."""
    source, output = pipe
    with JsonLines(output) as lines:
        for number in range(20):
            lines.say({"n": number})
    output.close()
    assert [line["n"] for line in rest_of(source)] == list(range(20))


def test_a_reader_that_is_gone_is_no_failure(pipe: Pipe, caplog: pytest.LogCaptureFixture) -> None:
    """A closed pipe costs the lines, not the jobs; the end tells how many were not written."""
    source, output = pipe
    source.close()
    with JsonLines(output) as lines:
        for number in range(3):
            lines.say({"n": number})
    assert "3 lines of --json not written" in caplog.text


def test_what_a_line_is_made_of_is_looked_up_by_the_writing_thread(pipe: Pipe) -> None:
    """A line that has to be looked up holds up nobody who says one, and keeps its place among the others."""
    source, output = pipe
    answered, threads = threading.Event(), list[threading.Thread]()

    def looked_up() -> dict[str, Any]:
        threads.append(threading.current_thread())
        return {"n": 1, "answered": answered.wait(60)}

    with JsonLines(output) as lines:
        lines.say({"n": 0})
        lines.say_later(looked_up, 100)
        lines.say({"n": 2})
        answered.set()  # not before all three are said
    output.close()
    assert rest_of(source) == [{"n": 0}, {"n": 1, "answered": True}, {"n": 2}]
    assert threads != [threading.current_thread()]


def test_a_line_tells_what_its_job_used_though_the_record_does_not_answer(folder: Folder, pipe: Pipe) -> None:
    """A record that fails costs a line the use of the job's children, not the line, and the job nothing."""
    source, output = pipe
    with Store.open(folder.url) as store:
        store.enqueue("count", {"n": 3})
        (job,) = store.jobs()
    with JsonLines(output) as lines:
        WorkerLines(store, lines, "console")("claimed", job)  # whose record is closed
    output.close()
    (line,) = rest_of(source)
    assert (line["event"], line["id"], line["budget"]["used"]["steps"]) == ("claimed", job.public_id, 0)


def test_a_line_that_cannot_be_made_costs_no_other(pipe: Pipe) -> None:
    """Its place is told as one of a missing line, and the lines after it come."""
    source, output = pipe

    def impossible() -> dict[str, Any]:
        raise ValueError("no line")

    with JsonLines(output) as lines:
        lines.say({"n": 0})
        lines.say_later(impossible, 100)
        lines.say({"n": 2})
    output.close()
    assert rest_of(source) == [{"n": 0}, {"event": "dropped", "lines": 1}, {"n": 2}]
