"""Whose frames of a traceback are shown first: the user's own."""

from __future__ import annotations

import json
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool

from everstep.checkpoints.payload import check_payload
from everstep.observability import frames
from everstep.observability.failure import Failure, explained

SECRET = "sk-canary-frames-0123456789abcdef"


@tool
def decode(text: str) -> Any:
    """Decode."""
    return json.loads(text)


def raised(work: Callable[[], object]) -> BaseException:
    """The exception that work ends with."""
    try:
        work()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def functions(error: BaseException) -> list[str]:
    """The functions of its own frames, the innermost first."""
    (own,) = frames.own([frames.frames_of(error)])
    return [frame.name for frame in reversed(own)]


def installed(folder: Path, package: str) -> types.ModuleType:
    """A module that lies where packages are installed."""
    file = folder / "lib" / "site-packages" / package / "work.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("def fail():\n    raise ValueError('within')\n\ndef call(work):\n    return work()\n")
    module = types.ModuleType(package)
    exec(compile(file.read_text(), str(file), "exec"), module.__dict__)
    return module


def test_only_the_user_s_own_frames_are_shown() -> None:
    """A tool that fails within Python, called through LangChain, is told by the tool and by who called it."""
    error = raised(lambda: decode.invoke({"text": "{"}))
    assert len(frames.frames_of(error)) > 6
    assert functions(error) == ["decode", "<lambda>", "raised"]


def test_everstep_s_own_frames_are_no_user_s() -> None:
    """What Everstep raises is told by the user's line that led there."""
    assert functions(raised(lambda: check_payload({"key": SECRET}))) == ["<lambda>", "raised"]


def test_a_graph_that_is_installed_as_a_package(tmp_path: Path) -> None:
    """Without any frame of the user's own those of packages are shown, but LangGraph's and LangChain's; else all."""
    ours, graph = installed(tmp_path, "ours"), installed(tmp_path, "langgraph")
    found = frames.frames_of(raised(lambda: graph.call(lambda: graph.call(ours.fail))))
    within = [frame for frame in found if "site-packages" in frame.filename]
    (shown,) = frames.own([within])
    assert [frame.name for frame in shown] == ["fail"]
    alone = [frame for frame in within if "ours" not in frame.filename]
    assert frames.own([alone]) == [alone]
    assert frames.own([[]]) == [[]]


def test_a_wrapper_without_own_frames_hides_nobody(tmp_path: Path) -> None:
    """Of a chain the user's own frames are shown, in whichever exception they are, and no others."""
    library = installed(tmp_path, "langgraph")

    def work() -> None:
        sys.exit("enough")

    outer, inner = frames.own([frames.frames_of(raised(library.fail))[1:], frames.frames_of(raised(work))])
    assert outer == []
    assert [frame.name for frame in inner] == ["raised", "work"]


def test_a_traceback_too_long_keeps_the_user_s_frames() -> None:
    """One that does not fit is cut in libraries only, and names every exception; one that fits is Python's own."""

    def chained() -> None:
        try:
            decode.invoke({"text": "{"})
        except ValueError as cause:
            raise ExceptionGroup("both", [raised(lambda: json.loads("["))]) from cause  # pyright: ignore[reportArgumentType]

    error = raised(chained)
    whole = "".join(traceback.format_exception(error))
    assert frames.python_s(error, len(whole)) == whole
    told = frames.python_s(error, len(whole) - 1)
    assert told.count("Traceback (most recent call last)") == 3
    for kept in ("direct cause", "in decode\n", "in chained\n", "in raw_decode\n", "ExceptionGroup: both"):
        assert kept in told
    assert whole.count("langchain_core") > told.count("langchain_core")


def test_a_failure_keeps_both_stacks() -> None:
    """The stack on a span has the user's frames; its event has all; a credential is in neither."""

    def work() -> None:
        decode.invoke({"text": f"{{{SECRET}"})

    failure = Failure.of(raised(work))
    assert " work\n" in failure.stack
    assert "    | decode.invoke(" in failure.stack
    assert "langchain_core" not in failure.stack
    assert "langchain_core" in failure.whole_stack
    assert failure.attributes["langfuse.observation.metadata.stacktrace"] == failure.stack
    assert failure.event["exception.stacktrace"] == failure.whole_stack
    secret = Failure.of(raised(lambda: sys.exit(f"refused: {SECRET}")))
    assert SECRET not in str(secret)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("mine.Broken: retry in 3.0 s (no answer)", "Broken: gone (retry in 3.0 s (no answer))"),
        ("somebody said so", "Broken: gone (somebody said so)"),
        ("", "Broken: gone"),
        ("gone", "Broken: gone"),
        (f"see {SECRET}", "Broken: gone (see ***)"),
    ],
)
def test_a_failure_and_what_is_done_about_it(reason: str, said: str) -> None:
    """The message comes first, then the reason without the type, each once, without credentials."""
    assert explained("Broken: gone", "mine.Broken", reason) == said


def test_what_is_done_about_it_is_never_cut_off() -> None:
    """A long message loses its middle; the reason stays."""
    told = explained("Broken: " + "x" * 5000, "mine.Broken", "mine.Broken: mend it")
    assert len(told) <= 2048
    assert told.endswith("(mend it)")
