"""Langfuse through its SDK: what doctor says of the keys, the links that show prints, and scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.checkpoints.store import Store
from everstep.errors import LangfuseUnavailable, LangfuseUnusable, LegNotFound, PayloadInvalid
from everstep.observability import langfuse
from everstep.observability.identity import trace_id
from everstep.observability.links import Links
from everstep.runtime.scores import score_leg
from tests.cli.conftest import Prepared
from tests.cli.folder import is_refused
from tests.support.jobs import chain, run
from tests.support.langfuse import PUBLIC_KEY, SECRET_KEY, Langfuse


@pytest.fixture
def server() -> Iterator[Langfuse]:
    """A Langfuse on this machine."""
    with Langfuse().open() as opened:
        yield opened


@pytest.fixture
def here(server: Langfuse, monkeypatch: pytest.MonkeyPatch) -> Langfuse:
    """It, configured in the environment of the test itself."""
    for name, value in server.variables.items():
        monkeypatch.setenv(name, value)
    return server


def finding(prepared: Prepared, **variables: str) -> dict[str, str]:
    """What doctor says of Langfuse."""
    ran = prepared.folder.run("doctor", "--json", **variables)
    assert SECRET_KEY not in ran.out + ran.err
    (found,) = [one for one in ran.value["findings"] if one["check"] == "langfuse"]
    assert (ran.code == 1) >= (found["level"] == "wrong")
    return found


def test_doctor_asks_whether_the_keys_hold(prepared: Prepared, server: Langfuse) -> None:
    """With the right keys doctor names the project; with wrong ones it says so, and what to do; no key is printed."""
    good = finding(prepared, **server.variables)
    assert (good["level"], "project agents" in good["detail"]) == ("ok", True)
    wrong = finding(prepared, **{**server.variables, "LANGFUSE_SECRET_KEY": "sk-lf-wrong"})
    assert (wrong["level"], "refuses the keys (401)" in wrong["detail"]) == ("wrong", True)
    assert "API keys" in wrong["advice"]
    assert "sk-lf-wrong" not in str(wrong)


def test_doctor_tells_what_is_missing(prepared: Prepared) -> None:
    """With only some of the variables set, doctor names the others; a template for links needs a place for the id."""
    ran = prepared.folder.run("doctor", "--json", LANGFUSE_PUBLIC_KEY="pk", EVERSTEP_TRACE_URL="http://x/traces")
    found = {one["check"]: one for one in ran.value["findings"] if one["level"] == "wrong"}
    assert found["langfuse"]["advice"] == "set LANGFUSE_SECRET_KEY and LANGFUSE_HOST as well"
    assert "{trace_id}" in found["traces"]["advice"]


def test_a_langfuse_that_is_away_is_a_warning(here: Langfuse) -> None:
    """Unreachable, failing, silent, and something else that answers there: each is told apart, without a key."""
    settings = langfuse.required()
    here.status = 503
    with pytest.raises(LangfuseUnavailable, match=r"answers with an error \(503\)"):
        langfuse.project(settings)
    here.status = 302
    with pytest.raises(LangfuseUnavailable, match="not as a Langfuse does"):
        langfuse.project(settings)
    here.status, here.page = None, "<html>a login page</html>"
    with pytest.raises(LangfuseUnavailable, match="not as a Langfuse does"):
        langfuse.project(settings)
    here.page, here.is_silent = None, True
    with pytest.raises(LangfuseUnavailable, match="does not answer within"):
        langfuse.project(settings, timeout_s=0.2)


def test_a_langfuse_that_is_not_there(here: Langfuse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host where nobody listens, and one that is no URL, are errors of the catalogue."""
    monkeypatch.setenv("LANGFUSE_HOST", "http://user:secret-word@127.0.0.1:1")
    with pytest.raises(LangfuseUnavailable, match="cannot be reached") as caught:
        langfuse.project(langfuse.required())
    assert "secret-word" not in str(caught.value)
    monkeypatch.setenv("LANGFUSE_HOST", "no url at all")
    with pytest.raises(LangfuseUnusable, match="LANGFUSE_HOST=no url at all is no http:// or https:// URL"):
        langfuse.project(langfuse.required())


def test_without_the_sdk_a_clear_line(here: Langfuse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Langfuse's SDK is not installed, the error says how to install it, and that spans need none."""
    monkeypatch.setitem(__import__("sys").modules, "langfuse.api", None)
    with pytest.raises(LangfuseUnusable, match="spans are sent without it") as caught:
        langfuse.project(langfuse.required())
    assert caught.value.next_step == "pip install 'everstep[langfuse]'"


def test_show_links_each_leg(prepared: Prepared, server: Langfuse) -> None:
    """With the project known the link is direct; without it Langfuse's own redirect; both have the leg's trace id."""
    job = prepared.jobs["count"]
    leg = trace_id(job, 1)
    shown = prepared.folder.run("show", job, "--json", **server.variables)
    assert [(one["leg"], one["trace_id"], one["outcome"]) for one in shown.value["legs"]] == [(1, leg, "done")]
    assert shown.value["legs"][0]["url"] in (
        f"{server.url}/project/project-7/traces/{leg}",
        f"{server.url}/trace/{leg}",  # on a machine so loaded that the answer came too late
    )
    template = prepared.folder.run("show", job, EVERSTEP_TRACE_URL="http://jaeger.internal/trace/{trace_id}?x={y}")
    assert f"http://jaeger.internal/trace/{leg}?x={{y}}" in template.out
    nothing = prepared.folder.run("show", job)
    assert leg not in nothing.out


def test_a_link_never_waits_long_and_never_fails(here: Langfuse) -> None:
    """With the project it is direct; a Langfuse that is silent or refuses costs the patience once, then links go on."""
    assert Links(patience_s=60).to("ab" * 16) == f"{here.url}/project/project-7/traces/{'ab' * 16}"
    here.status = 401
    assert Links(patience_s=60).to("ab" * 16) == f"{here.url}/trace/{'ab' * 16}"
    here.status, here.is_silent = None, True
    assert Links(patience_s=0.1).to("ab" * 16) == f"{here.url}/trace/{'ab' * 16}"


def test_scores_are_written_once(here: Langfuse, shared: Store) -> None:
    """A score goes to the leg's trace; the same leg and name replace it, another name or leg does not."""
    job = run(shared, chain(lambda state: {"log": [1]}))
    score_leg(shared, job, "correctness", 0.5)
    written = score_leg(shared, job, "correctness", "0.9", comment="one test was skipped")
    score_leg(shared, job, "accepted", True, leg=1)
    score_leg(shared, job, "mood", "calm")
    assert {(one["name"], one["value"], one["dataType"]) for one in here.scores.values()} == {
        ("correctness", 0.9, "NUMERIC"),
        ("accepted", 1.0, "BOOLEAN"),
        ("mood", "calm", "CATEGORICAL"),
    }
    assert {one["traceId"] for one in here.scores.values()} == {trace_id(job.public_id, 1)}
    (mine,) = [one for one in here.scores.values() if one["id"] == written.score.id]
    assert mine["comment"] == "one test was skipped"
    assert here.asked.count(("POST", "/api/public/scores")) == 4


def test_scores_that_cannot_be_written(here: Langfuse, shared: Store) -> None:
    """No such leg, no name, no value or number, wrong keys, a score that Langfuse refuses: each is told."""
    job = run(shared, chain(lambda state: {"log": [1]}))
    with pytest.raises(LegNotFound):
        score_leg(shared, job, "correctness", 1, leg=2)
    for name, value in (
        ("", 1), ("x" * 201, 1), ("mood", ""), ("mood", "x" * 501), ("drift", "nan"), ("drift", "-Infinity"),
    ):  # fmt: skip
        with pytest.raises(PayloadInvalid):
            score_leg(shared, job, name, value)
    here.refusal = "the score's config wants a number"
    with pytest.raises(LangfuseUnusable, match="wants a number"):
        score_leg(shared, job, "mood", "calm")
    here.status = 401
    with pytest.raises(LangfuseUnusable, match="refuses the keys"):
        score_leg(shared, job, "mood", "calm")
    assert here.scores == {}


def test_the_score_command(prepared: Prepared, server: Langfuse, tmp_path: Path) -> None:
    """It scores the newest leg, takes negative numbers, and says what is missing when Langfuse is not configured."""
    job = prepared.jobs["count"]
    ran = prepared.folder.run("score", job, "drift", "-1", "--comment", "worse", "--json", **server.variables)
    assert ran.code == 0, ran
    assert (ran.value["leg"], ran.value["value"], ran.value["trace_id"]) == (1, -1.0, trace_id(job, 1))
    (score,) = server.scores.values()
    assert (score["name"], score["value"], score["comment"]) == ("drift", -1.0, "worse")
    refused = prepared.folder.run("score", job, "drift", "1", LANGFUSE_PUBLIC_KEY=PUBLIC_KEY)
    is_refused(refused, 78, "langfuse_unusable")
    assert "LANGFUSE_SECRET_KEY and LANGFUSE_HOST" in refused.err
