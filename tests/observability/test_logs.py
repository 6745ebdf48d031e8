"""The log of a process: what a line holds and how it looks, and that nothing written can look like another line."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from typing import Any

import pytest

from everstep.errors import ConfigInvalid
from everstep.observability import log_context, logs
from everstep.observability.identity import root_span_id, trace_id

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
KEY = "sk-abcdefghij0123456789xyz"

SCRIPT = f"""
import logging, sys, threading, warnings
import structlog
from everstep.observability import logs
from everstep.observability.log_context import about_leg

logs.configure(sys.argv[1], "info", fields=["order", "ratio"])
logs.own_process()
log = logging.getLogger("mine")


def raises():
    raise ValueError("first line\\n2026-01-01T00:00:00.000Z [error] forged {KEY}")


with about_leg("job-1", 2, graph="agent", attempt=3, worker="w-1"):
    log.info("plain %s", "words")
    log.debug("not shown")
    log.info("fields", extra={{"order": "A7", "ratio": float("nan"), "customer": "Zoe", "job": "forged", "{KEY}": 1}})
    log.info("allowed values", extra={{"order": "password=hunter22", "ratio": [1]}})
    log.warning("one\\r\\n2026-01-01T00:00:00.000Z [error] forged\\x1b[2K\\x85\\u2028\\u202e\\ud800")
    log.info("key {KEY}")
    log.info("%d is no number", "x")
    try:
        raises()
    except ValueError:
        log.exception("failed")
    structlog.get_logger("theirs").info("structured", order="B8", customer="Zoe")
    try:
        raises()
    except ValueError:
        structlog.get_logger("theirs").exception("failed too")
log.info("outside")
log.info({{"a": "dict"}})
logging.getLogger("httpx").info("a request")
thread = threading.Thread(target=raises, name="lonely")
thread.start()
thread.join()
warnings.warn("careful {KEY}")
raises()
"""


def written(style: str) -> str:
    """What the script above wrote to stderr."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT, style], capture_output=True, timeout=60, check=False)
    assert ran.stdout == b""
    return ran.stderr.decode()


@pytest.fixture(scope="module")
def entries() -> list[dict[str, Any]]:
    """The script's log as JSON; a line that is none fails here."""
    return [json.loads(line) for line in written("json").split("\n")[:-1]]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """The script's log as a terminal shows it, in lines of every kind there is."""
    return written("console").splitlines()


def one(entries: list[dict[str, Any]], message: str) -> dict[str, Any]:
    """The only entry whose message begins so."""
    (entry,) = [entry for entry in entries if entry["message"].startswith(message)]
    return entry


def test_every_line_of_a_leg_says_which(entries: list[dict[str, Any]]) -> None:
    """Job, leg, attempt, graph, worker and the ids of trace and span stand on a line without anybody's doing."""
    entry = one(entries, "plain words")
    assert TIME.fullmatch(entry.pop("time"))
    assert entry == {
        "level": "info",
        "logger": "mine",
        "message": "plain words",
        "job": "job-1",
        "leg": 2,
        "attempt": 3,
        "graph": "agent",
        "worker": "w-1",
        "trace_id": trace_id("job-1", 2),
        "span_id": root_span_id("job-1", 2),
    }
    assert set(one(entries, "outside")) == {"time", "level", "logger", "message"}


def test_only_allowed_fields_are_written(entries: list[dict[str, Any]]) -> None:
    """Of a field nobody allowed, only its type is written; one cannot take the place of Everstep's own."""
    entry = one(entries, "fields")
    assert (entry["order"], entry["ratio"], entry["customer"], entry["job"]) == ("A7", "nan", "<str>", "job-1")
    assert one(entries, "allowed values")["order"] == "password=***"
    assert one(entries, "allowed values")["ratio"] == "<list>"
    assert "Zoe" not in json.dumps(entries)


def test_no_line_holds_a_credential(entries: list[dict[str, Any]], lines: list[str]) -> None:
    """Messages, names of fields, exceptions with their source lines, and warnings are rid of a key of known form."""
    assert KEY not in json.dumps(entries)
    assert KEY not in "\n".join(lines)
    assert one(entries, "key ***")


def test_what_is_written_cannot_look_like_a_line(lines: list[str]) -> None:
    """On a terminal every line begins with its own time or is set in; what moves the cursor or hides is spelt."""
    for line in lines:
        assert TIME.match(line) or line.startswith("    | "), line
    assert not [line for line in lines if TIME.match(line) and "forged" in line]
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202e]", "".join(lines))
    (odd,) = [line for line in lines if "forged\\x1b[2K" in line]
    assert odd.startswith("    | 2026-01-01T00:00:00.000Z [error] forged\\x1b[2K\\x85\\u2028\\u202e?")


def test_json_keeps_the_text(entries: list[dict[str, Any]]) -> None:
    """In JSON a text of several lines is one line and comes back as it was; half a character does not."""
    assert one(entries, "one\r\n")["message"].endswith("forged\x1b[2K\x85\u2028\u202e?")


def test_exceptions_are_told_with_their_place(entries: list[dict[str, Any]], lines: list[str]) -> None:
    """An exception stands in a field of its own, whoever logged it: `logging`, structlog, a thread, or the end."""
    failed = one(entries, "failed too")
    assert failed["exception"].startswith("Traceback (most recent call last):")
    assert failed["exception"].endswith("ValueError: first line\n2026-01-01T00:00:00.000Z [error] forged ***")
    assert one(entries, "lonely ended by an exception")["logger"] == "python"
    assert one(entries, "the process ends by an exception")["level"] == "critical"
    assert sum(line.startswith("    | ValueError: first line") for line in lines) == 4


def test_structlog_goes_the_same_way(entries: list[dict[str, Any]]) -> None:
    """A structlog logger that nobody configured writes the same lines, with the same fields allowed."""
    entry = one(entries, "structured")
    assert (entry["logger"], entry["job"], entry["order"], entry["customer"]) == ("theirs", "job-1", "B8", "<str>")


def test_odd_lines_are_told_too(entries: list[dict[str, Any]]) -> None:
    """Arguments that do not fit, a message that is no text, a warning of Python's: each is a line like any other."""
    assert one(entries, "'%d is no number'")["message"].endswith("(its arguments do not fit: TypeError)")
    assert one(entries, "{'a': 'dict'}")
    assert "careful ***" in next(entry["message"] for entry in entries if entry["logger"] == "py.warnings")


def test_what_is_not_asked_for_is_not_written(entries: list[dict[str, Any]]) -> None:
    """Lines below the level are not written, nor are those of each request of a chatty library."""
    assert not [entry for entry in entries if entry["message"] in ("not shown", "a request")]


def test_a_console_line_is_short(lines: list[str]) -> None:
    """What only programs look for is left out of a line for people."""
    assert lines[0].endswith("Z [info] plain words [mine] job=job-1 leg=2 graph=agent")


@pytest.mark.parametrize("variable", [logs.FORMAT_VARIABLE, logs.LEVEL_VARIABLE])
def test_a_variable_that_says_nothing_known_is_refused(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable and what it may be; the log stays as it was."""
    before = list(logging.getLogger().handlers)
    monkeypatch.setenv(variable, "loud")
    with pytest.raises(ConfigInvalid, match=variable):
        logs.configure()
    assert logging.getLogger().handlers == before


def test_importing_everstep_configures_nothing() -> None:
    """A program that uses Everstep as a library keeps its log as it is."""
    code = (
        "import logging, everstep, everstep.observability.logs, everstep.runtime.worker\n"
        "root = logging.getLogger()\n"
        "assert (root.handlers, root.level) == ([], logging.WARNING), root.handlers\n"
        "assert logging.getLogger('everstep').level == logging.NOTSET\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_the_filter_is_for_a_log_of_ones_own() -> None:
    """`LegFilter` puts the fields on a record; a field that is not known is None, unless the program gave one."""
    record = logging.makeLogRecord({"msg": "x", "node": "theirs"})
    assert log_context.LegFilter().filter(record)
    assert (record.job, record.node) == (None, "theirs")  # type: ignore[attr-defined]
    with log_context.about_leg("job-1", 1, graph="agent", node="plan"):
        log_context.LegFilter().filter(record)
    assert (record.job, record.node) == ("job-1", "plan")  # type: ignore[attr-defined]
