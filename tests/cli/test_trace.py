"""`everstep trace`: the drawing in the terminal, and the command around it."""

from __future__ import annotations

import json
import os
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from everstep.cli.trace_screen import HEAD, TAIL, lines, plain, span_of
from everstep.observability.identity import root_span_id
from everstep.runtime.trace.tree import Node, Use
from tests.cli.conftest import Prepared
from tests.cli.folder import is_refused
from tests.support.traces import SECOND, START, leg, step, tree


def drawn(*nodes: Node, everything: bool = False, **about: Any) -> list[str]:
    """A drawing, without colours."""
    return [line.plain for line in lines(tree(*nodes, **about), everything=everything)]


def test_a_run_that_went_well_is_folded() -> None:
    """Of many steps in a row that went well the first and the last are drawn, and how many lie between."""
    steps = [step(number, "agent" if number % 2 else "tools") for number in range(1, 41)]
    told = drawn(leg(1, steps))
    assert len(told) == 9
    assert told[5] == "   ├─ ⋮  34 more, all well: tools ×17, agent ×17  3.4 s  (--all shows them)"
    assert len(drawn(leg(1, steps), everything=True)) == 42


def test_what_failed_is_never_folded() -> None:
    """A failure among many steps is drawn with its message and where it was raised, and with what to do next."""
    steps = [step(number) for number in range(1, 41)]
    stack = 'Traceback:\n  File "/lib/outer.py", line 3, in call\n  File "/app/agent.py", line 7, in push\n'
    steps[19] = step(20, status="error", detail="OSError: no route", resume="everstep retry 01a2", stack=stack)
    told = drawn(leg(1, steps, status="error"))
    place = next(number for number, line in enumerate(told) if "OSError" in line)
    assert told[place].startswith("   ├─ ✗ step 20 work  100 ms  OSError: no route")
    assert [line.strip(" │") for line in told[place + 1 : place + 4]] == [
        "at /app/agent.py:7 push",
        "at /lib/outer.py:3 call",
        "next: everstep retry 01a2",
    ]


def test_the_drawing_is_bounded() -> None:
    """However much failed, the drawing has so many lines: the first, and the last, where the end is."""
    steps = [step(number, status="warning", detail="OSError: again") for number in range(5_000)]
    told = drawn(leg(1, steps))
    assert len(told) == 1 + HEAD + 1 + TAIL
    assert "4,601 lines are left out here" in told[1 + HEAD]
    assert "step 4999" in told[-1]
    assert len(drawn(leg(1, steps), everything=True)) == 5_002


@pytest.mark.parametrize("text", ["\x1b[2J\x1b]0;title\x07", "one\nline\r", "‮drowssap", "\ud800", "\x9b31m"])
def test_text_of_others_cannot_steer_the_terminal(text: str) -> None:
    """Control characters, changes of direction and halves of characters in names and messages are replaced."""
    told = "\n".join(drawn(leg(1, [step(1, text, status="error", detail=text)])))
    assert not any(one in told for one in "\x1b\x07\r\x9b‮\ud800")
    assert told.count("\n") == 2
    assert len(plain("x" * 10_000)) == 300


def test_tokens_cost_waits_and_what_lasts() -> None:
    """The head tells what the job used, a leg what it used; what is still open tells since when."""
    wait = Node("wait", "waits for a person", START + 60 * SECOND, None, "open")
    told = drawn(leg(1, [], use=Use(1200, 34, 5600)), wait, use=Use(1200, 34, 5600), status="review")
    assert told[0].endswith("review at step 40  1,200 tokens in, 34 out, $0.0056")
    assert "1 min 0 s  worker-1  2027-01-15 08:00:00Z  1,200 tokens in, 34 out, $0.0056" in told[1]
    assert told[2] == "└─ … waits for a person  since 1 min 0 s"


def test_durations_are_said_in_words() -> None:
    """From milliseconds to days, to the figures that matter."""
    given = [None, 0, 400_000, 12_000_000, 4_200_000_000, 62 * SECOND, 3_720 * SECOND, 259_200 * SECOND]
    assert [span_of(one) for one in given] == [
        "", "<1 ms", "<1 ms", "12 ms", "4.2 s", "1 min 2 s", "1 h 2 min", "3 d 0 h",
    ]  # fmt: skip


def test_the_command_draws_every_job(prepared: Prepared) -> None:
    """A job in whatever state can be drawn, without any backend and without control codes in what is not a terminal."""
    jobs = [prepared.jobs[graph] for graph in ("count", "ask", "fails", "hold")]
    ran = prepared.folder.all(*(("trace", job) for job in jobs))
    assert [one.code for one in ran] == [0] * len(jobs), ran
    assert all("\x1b" not in one.out and job in one.out for one, job in zip(ran, jobs, strict=True))
    count, ask, fails = (one.out for one in ran[:3])
    assert "└─ leg 1" in count
    assert "next: everstep review show" in ask
    assert f"next: everstep retry {prepared.jobs['fails']}" in fails


def test_the_command_writes_json_page_and_export(prepared: Prepared, tmp_path: Path) -> None:
    """Each form says what failed: JSON for programs, a page for a colleague, OTLP for a backend."""
    job = prepared.jobs["fails"]
    told, page, export, errors = prepared.folder.all(
        ("trace", job, "--json"),
        ("trace", job, "--html", str(tmp_path / "trace.html")),
        ("trace", job, "--otlp", str(tmp_path / "trace.bin")),
        ("trace", job, "--errors", "--leg", "1", "--json"),
    )
    assert [one.code for one in (told, page, export, errors)] == [0] * 4, (told, page, export, errors)
    assert told.value["id"] == job
    assert [node["status"] for node in told.value["nodes"]] == ["ok", "error"]
    assert [node["kind"] for node in errors.value["nodes"]] == ["leg"]
    assert job in (tmp_path / "trace.html").read_text()
    request = ExportTraceServiceRequest.FromString((tmp_path / "trace.bin").read_bytes())
    assert request.resource_spans[0].scope_spans[0].spans[0].span_id.hex() == root_span_id(job, 1)
    assert json.loads(told.out)["legs"][0]["from_spans"] is False


def test_what_the_command_refuses(prepared: Prepared) -> None:
    """Two forms at once, a leg that is not there, and a file that cannot be written are refused with a next step."""
    job = prepared.jobs["count"]
    both, leg_, file = prepared.folder.all(
        ("trace", job, "--json", "--html", "x.html"),
        ("trace", job, "--leg", "7"),
        ("trace", job, "--html", "/nowhere/trace.html"),
    )
    assert both.code == 64
    is_refused(leg_, 66, "leg_not_found")
    assert "has no leg 7: " in leg_.err
    is_refused(file, 69, "file_not_written")


@pytest.mark.parametrize("form", ["--html", "--otlp"])
def test_what_is_no_regular_file_is_written_in_place(form: str, prepared: Prepared, tmp_path: Path) -> None:
    """A pipe stays a pipe; of a link the target is replaced and keeps its mode, and the link stays."""
    job = prepared.jobs["count"]
    pipe, target, link = tmp_path / "pipe", tmp_path / "there" / "target", tmp_path / "link"
    os.mkfifo(pipe)
    target.parent.mkdir()
    target.write_text("before")
    target.chmod(0o640)
    link.symlink_to(target)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert prepared.folder.run("trace", job, form, str(pipe)).code == 0
    reader.join(30)
    assert job.encode() in read[0]
    assert pipe.is_fifo()
    assert prepared.folder.run("trace", job, form, str(link)).code == 0
    assert link.is_symlink()
    assert job.encode() in target.read_bytes()
    assert target.stat().st_mode & 0o777 == 0o640
    assert [one.name for one in target.parent.iterdir()] == ["target"]
    is_refused(prepared.folder.run("trace", job, form, str(target.parent)), 69, "file_not_written")


@pytest.mark.parametrize("form", ["--html", "--otlp"])
def test_a_file_without_a_name_is_wrong_usage(form: str, prepared: Prepared) -> None:
    """An empty name, as of an unset variable, is told at once."""
    ran = prepared.folder.run("trace", prepared.jobs["count"], form, "")
    assert (ran.code, "[usage]" in ran.err) == (64, True)


@pytest.mark.parametrize("form", [(), ("--json",), ("--html", "-"), ("--otlp", "-")], ids=str)
def test_a_stdout_that_takes_nothing(form: tuple[str, ...], prepared: Prepared, tmp_path: Path) -> None:
    """A reader who left ends the command without a word; a stdout that cannot be written is told."""
    job = prepared.jobs["count"]
    reading, writing = os.pipe()
    os.close(reading)
    (tmp_path / "there").touch()
    unwritable = os.open(tmp_path / "there", os.O_RDONLY)
    try:
        left = prepared.folder.run("trace", job, *form, stdout=writing)
        refused = prepared.folder.run("trace", job, *form, stdout=unwritable)
    finally:
        os.close(writing)
        os.close(unwritable)
    assert (left.code, left.err) == (141, "")
    assert refused.code == 69, refused
    assert "stdout cannot be written: Bad file descriptor" in refused.err


def failed(stack: str, whole: str = "") -> Node:
    """A step that failed."""
    return Node(
        "step", "step 1 work", START, START + SECOND, "error", "Outer: out", stack=stack, whole_stack=whole or None
    )


def test_what_led_to_a_failure_is_drawn() -> None:
    """Behind the error stand its places, and each further exception with its own; source lines with --verbose."""
    stack = """Outer: out
  at own.py:3 work
    | raise Outer from error
  sub-exception KeyError: 'part'
    at own.py:1 part
caused by ValueError: in
  at own.py:9 deep"""
    told = drawn(leg(1, [failed(stack, f"{stack}\n  at library.py:7 call")]))
    assert [line.strip(" │") for line in told[-6:]] == [
        "at own.py:3 work",
        "sub-exception KeyError: 'part'",
        "at own.py:1 part",
        "caused by ValueError: in",
        "at own.py:9 deep",
        "(1 more place: --verbose)",
    ]
    assert told[-5].index("sub-") == told[-6].index("at ")
    every = [
        line.plain for line in lines(tree(leg(1, [failed(stack, f"{stack}\n  at library.py:7 call")])), verbose=True)
    ]
    assert every[-1].endswith("  at library.py:7 call")
    assert any("| raise Outer from error" in line for line in every)


def test_many_exceptions_are_drawn_in_part() -> None:
    """Of many further exceptions, and of many places of one, the first are drawn, and how many are left out."""
    links = [
        f"caused by E{number}: x\n" + "\n".join(f"  at own.py:{place} f" for place in range(5)) for number in range(8)
    ]
    told = drawn(leg(1, [failed("Outer: out\n" + "\n".join(links))]))
    assert sum("caused by" in line for line in told) == 5
    assert sum("at own.py" in line for line in told) == 15
    assert told[-1].endswith("(3 more exceptions, 25 more places: --verbose)")


def test_a_traceback_of_an_older_release_is_drawn_by_its_places() -> None:
    """Spans that hold Python's own form show the innermost places, also beside the line that is drawn for a group."""

    def task() -> None:
        raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])

    with pytest.raises(ExceptionGroup) as raised:
        task()
    stack = "".join(traceback.format_exception(raised.value))
    told = drawn(leg(1, [failed(stack)]))
    assert told[-2].endswith(" task")
    assert "test_trace.py:" in told[-2]
    every = [line.plain for line in lines(tree(leg(1, [failed(stack)])), verbose=True)]
    assert any("KeyError: 'b'" in line for line in every)
