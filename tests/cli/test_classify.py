"""`everstep classify`: what an exception would mean, told for people and for scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.backoff import bounds_ms
from everstep.runtime.classify import classify
from everstep.runtime.specimen import find_exception_type, specimen
from tests.cli.folder import Folder
from tests.runtime.service import CLIENTS, Answer, raised, serving

OWN = """
from everstep import register

class Busy(Exception):
    pass

print("imported")
"""
GRAPHS = """
from typing import TypedDict

from langgraph.graph import START, StateGraph

from everstep import register
from own import Busy

class State(TypedDict):
    x: int

print("graphs loaded")
register(Busy, "retry", surely_not_sent=True)
graph = StateGraph(State).add_node("node", lambda state: state).add_edge(START, "node").compile()
"""


def test_it_tells_in_words(tmp_path: Path) -> None:
    """Kind, wait, what becomes of an effect, the outage and the rule; exit code 0 whatever the verdict."""
    limited, quota, wrapper, failed = Folder(tmp_path).all(
        ("classify", "httpx.HTTPStatusError", "--status", "503", "--retry-after", "70", "--attempt", "1"),
        ("classify", "openai.RateLimitError", "--code", "insufficient_quota"),
        ("classify", "requests.ConnectionError"),
        ("classify", "ValueError"),
    )
    assert [ran.code for ran in (limited, quota, wrapper, failed)] == [0, 0, 0, 0]
    for words in (
        "retry: the service asks to come back later (503)",
        "70 s to 87.5 s (15 s × 2^1, at most 3600 s; the service asks for 70 s",
        "may run again: nothing was done\n",
        "service_unavailable: the service as a whole",
        "rule    status 503",
    ):
        assert words in limited.out
    assert "usage_limit" in quota.out
    assert "provided the client did not retry by itself" in quota.out
    assert "is unknown: its probe looks" in wrapper.out
    assert "that error decides" in wrapper.out
    assert "failed: the input is invalid" in failed.out
    assert "wait" not in failed.out


def test_scripts_get_json(tmp_path: Path) -> None:
    """`--json` gives each part as a field, and nothing else is on stdout."""
    ran = Folder(tmp_path).run("classify", "aiohttp.ClientResponseError", "--status", "429", "--json")
    assert ran.value == {
        "type": "aiohttp.ClientResponseError",
        "status": 429,
        "code": None,
        "kind": "retry",
        "reason": "the service asks for fewer requests (429)",
        "rule": "status 429",
        "surely_not_sent": True,
        "if_first_try": False,
        "depends_on_cause": False,
        "outage": "rate_limited",
        "retry_after_ms": None,
        "attempt": 0,
        "wait_ms": {"least": 15_000, "most": 18_750},
    }


def test_what_a_configuration_registers_counts_only_if_it_is_named(tmp_path: Path) -> None:
    """Graphs are loaded with `--config` only, not by the environment; what code prints is kept off stdout."""
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "graphs.py").write_text(GRAPHS)
    folder = Folder(tmp_path).configure(agent="./graphs.py:graph")
    without, named = folder.all(
        ("classify", "own.Busy", "--json"), ("classify", "own.Busy", "--config", "langgraph.json", "--json")
    )
    assert (without.value["kind"], without.value["rule"]) == ("review", "default")
    assert (named.value["kind"], named.value["surely_not_sent"]) == ("retry", True)
    assert named.value["rule"] == "registered Busy"
    assert "graphs loaded" not in without.err
    assert "graphs loaded" in named.err


def test_a_name_that_is_no_exception_type_is_refused(tmp_path: Path) -> None:
    """An error of the catalogue says what is wrong with the name and what to do."""
    (tmp_path / "broken.py").write_text("import no_such_module_either")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)")
    cases = {
        "no_such_module.Error": "there is no module 'no_such_module'",
        "openai.RateLimitErr": "did you mean openai.RateLimitError?",
        "os.path": "is no exception type",
        "os.getcwd": "is no exception type",
        "NoSuchBuiltin": "has no NoSuchBuiltin",
        "a..b": "is no dotted name",
        "broken.Error": "broken cannot be imported: ModuleNotFoundError",
        "leaves.Error": "leaves cannot be imported: SystemExit",
        "ExceptionGroup": "judged by its members",
    }
    for words, ran in zip(cases.values(), Folder(tmp_path).all(*(("classify", name) for name in cases)), strict=True):
        assert (ran.code, ran.out) == (64, "")
        assert words in ran.err
        assert "[exception_type_invalid]" in ran.err


def test_options_out_of_range_are_refused(tmp_path: Path) -> None:
    """A status or an attempt that cannot be, and a configuration that is not there."""
    status, attempt, missing = Folder(tmp_path).all(
        ("classify", "ValueError", "--status", "99"),
        ("classify", "ValueError", "--attempt", "-1"),
        ("classify", "ValueError", "--config", "none.json"),
    )
    assert (status.code, attempt.code, missing.code) == (64, 64, 78)


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_told_is_what_happens(client: str) -> None:
    """A type with a status and a wait means what the real error of the real client means."""
    for status in (400, 401, 402, 429, 500, 503):
        with serving(Answer(status, {"Retry-After": "7"})) as service:
            real = raised(lambda url=service.url: CLIENTS[client](url))
        name = f"{type(real).__module__}.{type(real).__qualname__}"
        verdict, told = classify(real), classify(specimen(find_exception_type(name), status, "7"))
        parts: tuple[Any, Any] = tuple(
            (one.kind, one.reason, one.outage, one.retry_after_ms, one.rule) for one in (verdict, told)
        )
        assert parts[0] == parts[1], (name, status)


def test_the_wait_is_the_one_of_the_backoff() -> None:
    """The bounds that are told are those of the wait that is drawn."""
    assert bounds_ms(0, None) == (15_000, 18_750)
    assert bounds_ms(8, None) == (3_600_000, 4_500_000)
    assert bounds_ms(0, 7_200_000) == (7_200_000, 9_000_000)
