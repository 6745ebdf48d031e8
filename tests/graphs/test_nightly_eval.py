"""The nightly evaluation as a job: which runs it looks at, what it makes of them, and that a failed night goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from sqlalchemy import update

from everstep.checkpoints import claims, schedules, slots, telling
from everstep.checkpoints.policy import JobPolicy
from everstep.checkpoints.schedule import Definition, JobOptions
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.store import Store
from everstep.checkpoints.telling import Candidate
from everstep.clock import ManualClock, rfc3339
from everstep.graphs import evaluation, nightly_eval
from everstep.observability.identity import trace_id
from everstep.runtime.classify import classify
from everstep.runtime.settle import Outcome
from everstep.runtime.worker import Worker
from tests.support.jobs import work
from tests.support.langfuse import Langfuse
from tests.support.record import settled

HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports go here; no model, and no Langfuse unless a test says so."""
    monkeypatch.chdir(tmp_path)
    for name in ("EVERSTEP_MODEL", "EVERSTEP_REPORTS", "LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY", "LANGFUSE_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def langfuse(monkeypatch: pytest.MonkeyPatch) -> Iterator[Langfuse]:
    """A Langfuse that the environment names."""
    with Langfuse().open() as langfuse:
        for name, value in langfuse.variables.items():
            monkeypatch.setenv(name, value)
        yield langfuse


def ran(store: Store, graph: str = "agent", *, fails: str = "", owner: str = "default", **columns: Any) -> str:
    """A run that ended now: its id."""
    job, _ = store.enqueue(graph, {"n": len(store.jobs()), "note": "of the input"}, owner=owner)
    now = store.clock.now_ms()
    claim = partial(claims.claim, now=now, worker="worker", lease_ms=1000, limit=1, graphs=[graph])
    (claimed,) = store.write(claim).result()
    store.write(lambda c: claims.advance(c, claimed.id, claimed.claim_no, now=now)).result()
    error = ValueError(fails)
    outcome = Outcome("error", error=error, verdict=classify(error)) if fails else Outcome("done", values={"ok": True})
    settled(store, store.job_by_row(claimed.id), outcome)
    if columns:
        values = update(agent_jobs).where(agent_jobs.c.id == claimed.id).values(**columns)
        store.write(lambda c: c.execute(values)).result()
    return job.public_id


def evaluate(store: Store, graph: Any = nightly_eval.graph, owner: str = "default", **given: Any) -> dict[str, Any]:
    """Run the evaluation as a job; its result, which must be one."""
    job, _ = store.enqueue("graph", {"until": rfc3339(store.clock.now_ms() + 1), **given}, owner=owner)
    work(store, graph)
    job = store.job(job.public_id)
    assert job.status == "done", job.error_json
    return json.loads(job.result_json or "")


def rows(result: dict[str, Any]) -> list[list[str]]:
    """The rows of the report, each as its cells."""
    text = Path(result["report_file"]).read_text()
    lines = [line.removesuffix(" |") for line in text.splitlines() if line.startswith(("| 0.", "| 1."))]
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


def test_the_most_telling_runs_are_judged_and_reported(store: Store, clock: ManualClock) -> None:
    """A failed, a slow and a dear run come before ordinary ones; the report has the worst first, and is whole."""
    usual = [ran(store, run_ms=1000, cost_micros=100) for _ in range(5)]
    broken = ran(store, fails="no such branch")
    slow = ran(store, run_ms=60_000, cost_micros=100)
    dear = ran(store, run_ms=1000, cost_micros=9_000_000)
    result = evaluate(store, most=3)
    found = rows(result)
    assert [row[1] for row in found] == [f"`{broken}`", f"`{min(slow, dear)}`", f"`{max(slow, dear)}`"]
    assert found[0][0] == "| 0.00"
    assert "ValueError" in found[0][-1]
    assert {row[3] for row in found} == {"went wrong", "among the slowest", "among the dearest"}
    assert (result["scored"], result["published"], result["mean"]) == (3, 0, pytest.approx(0.533, abs=0.001))
    assert not any(one in Path(result["report_file"]).read_text() for one in usual)
    assert result["report_file"].startswith("reports/nightly-2027-01-15")


def test_only_runs_of_the_time_count(store: Store, clock: ManualClock) -> None:
    """What ended before or after it is another night's, the evaluation itself is none; an empty day is reported."""
    ran(store, fails="long ago")
    clock.advance(25 * HOUR_MS)
    here = ran(store, fails="today")
    until = rfc3339(clock.now_ms() + 1)
    clock.advance(HOUR_MS)
    ran(store, fails="tomorrow")
    assert [row[1] for row in rows(evaluate(store, until=until))] == [f"`{here}`"]
    empty = evaluate(store, until=rfc3339(clock.now_ms() - 500 * HOUR_MS))
    assert (empty["scored"], empty["mean"]) == (0, None)
    assert "No run ended" in Path(empty["report_file"]).read_text()


def test_an_owner_sees_their_own_runs(store: Store) -> None:
    """The evaluation of an owner looks at that owner's runs; that of the operator at everybody's, if asked."""
    hers, his = ran(store, fails="a", owner="anna"), ran(store, fails="b", owner="bert")
    of_anna = evaluate(store, owner="anna")
    assert [row[1] for row in rows(of_anna)] == [f"`{hers}`"]
    assert of_anna["report_file"].startswith("reports/owner-anna/")
    everybody = evaluate(store, everybody=True)
    assert {row[1] for row in rows(everybody)} == {f"`{hers}`", f"`{his}`"}
    for given in ({"everybody": True}, {"source": "langfuse"}):
        refused, _ = store.enqueue("graph", given, owner="anna")
        work(store, nightly_eval.graph)
        assert json.loads(store.job(refused.public_id).error_json or "")["type"].endswith("PayloadInvalid")


class Failing(FakeListChatModel):
    """A model that answers, and fails at one call."""

    fails_at: int = -1
    calls: list[str] = []

    def _call(self, messages: Any, *args: Any, **kwargs: Any) -> str:
        self.calls.append(str(messages[-1].content))
        if len(self.calls) - 1 == self.fails_at:
            raise ValueError("the provider refuses")
        return super()._call(messages, *args, **kwargs)


def test_a_failed_night_goes_on_where_it_stopped(store: Store, clock: ManualClock) -> None:
    """The next slot resumes a night that failed at the third run: two are not judged again, and its day stays."""
    judged = [ran(store, fails=f"error {number}") for number in range(5)]
    model = Failing(responses=['{"score": 0.25, "why": "as it is"}'], fails_at=2, calls=[])
    graph = nightly_eval.build_graph(model).compile()
    definition = Definition("graph", "0 9 * * *", "resume", job=JobOptions(slot_field="until"))
    make = partial(schedules.create, definition=definition, now=clock.now_ms(), origin="command", name="nightly")
    schedule = store.write(make).result()

    def night() -> tuple[str, str]:
        clock.advance((store.read(schedules.next_fire) or 0) - clock.now_ms())
        fire = partial(slots.fire_due, schedule_id=schedule.id, now=clock.now_ms(), actor="test")
        (slot,) = store.write(partial(fire, policy_of=lambda _graph: JobPolicy())).result()
        Worker(store, {"graph": graph}).run(until_idle=True)
        return slot.outcome, store.job(slot.job or "").status

    assert night() == ("fired", "failed")
    assert len(model.calls) == 3
    assert night() == ("resumed", "done")
    asked = [json.loads(call)["job"] for call in model.calls]
    assert len(asked) == 6
    assert sorted(set(asked)) == sorted(judged)
    assert asked[2] == asked[3]
    result = json.loads(store.jobs()[0].result_json or "")
    assert result["report_file"] == "reports/nightly-2027-01-15.md"


def test_a_model_judges_if_one_is_named(store: Store) -> None:
    """Its scores and reasons are in the report, made harmless; an answer that cannot be read leaves it to the rule."""
    ran(store, fails="a")
    ran(store, fails="b")
    answers = ['Well: {"score": 0.7, "why": "odd | <b>words</b>"}', "I cannot say."]
    graph = nightly_eval.build_graph(FakeListChatModel(responses=answers)).compile()
    found = rows(evaluate(store, graph))
    assert [row[0] for row in found] == ["| 0.00", "| 0.70"]
    assert found[1][-1].startswith("odd \\| \\<b\\>words")


def test_content_is_shown_only_if_asked_for(store: Store) -> None:
    """Inputs and results of runs reach a model with `content` alone."""
    ran(store, fails="a")
    for content, there in ((False, False), (True, True)):
        model = Failing(responses=['{"score": 1, "why": ""}'], calls=[])
        evaluate(store, nightly_eval.build_graph(model).compile(), content=content)
        assert ("of the input" in model.calls[0]) is there


def test_scores_go_to_langfuse(store: Store, langfuse: Langfuse) -> None:
    """Each run's last leg is scored once under the name `nightly`, and the report links to its trace."""
    broken = ran(store, fails="a")
    result = evaluate(store)
    assert result["published"] == 1
    (score,) = langfuse.scores.values()
    assert (score["traceId"], score["name"], score["value"]) == (trace_id(broken, 1), "nightly", 0.0)
    assert f"/traces/{trace_id(broken, 1)}" in Path(result["report_file"]).read_text()


def test_a_langfuse_that_is_away_costs_no_report(store: Store, langfuse: Langfuse, clock: ManualClock) -> None:
    """The report is written before scores are sent; once Langfuse is back each is sent, and nothing is judged again."""
    ran(store, fails="a")
    langfuse.status = 500
    job, _ = store.enqueue("graph", {"until": rfc3339(clock.now_ms() + 1)})

    def on(event: str, _job: Any) -> None:
        if event == "retry":
            assert list(Path("reports").iterdir())
            langfuse.status = None

    work(store, nightly_eval.graph, listener=on)
    assert store.job(job.public_id).status == "done"
    assert len(langfuse.scores) == 1


def test_traces_of_langfuse_are_judged_if_asked_for(store: Store, langfuse: Langfuse, clock: ManualClock) -> None:
    """Errors, slowest and dearest of what Langfuse has, with what their model calls cost; scored where they are."""
    job = "01a31865-77c0-7f0f-8d8e-3a6e5f446fa3"
    began = clock.now_ms() - HOUR_MS

    def root(trace: str, **more: Any) -> dict[str, Any]:
        times = {"startTime": rfc3339(began), "endTime": rfc3339(began + more.pop("ms", 1000))}
        known = {"id": trace[:16], "traceId": trace, "type": "SPAN", "projectId": "p", "name": "agent", **times}
        return {**known, "parentObservationId": None, "isRootObservation": True, "level": "DEFAULT", **more}

    ours, slow, dear = trace_id(job, 2), "b" * 32, "c" * 32
    langfuse.roots = [
        root(ours, sessionId=job, level="ERROR", statusMessage="it broke"),
        root(slow, ms=90_000),
        root(dear),
        *(root(f"{number:032x}") for number in range(4)),
    ]
    langfuse.generations = [
        {
            **root(dear),
            "type": "GENERATION",
            "totalCost": 2.5,
            "usageDetails": {"total": 900},
            "isRootObservation": False,
        }
    ]
    result = evaluate(store, source="langfuse", most=3)
    found = {row[1].split("]")[0].strip("[`"): row for row in rows(result)}
    assert set(found) == {job, slow, dear}
    assert "($0.0000)" in found[dear][6]
    assert found[dear][6].startswith("$2.5000")
    assert {score["traceId"]: score["value"] for score in langfuse.scores.values()}[ours] == 0.0
    assert result["published"] == 3


@pytest.mark.parametrize(
    "given",
    [
        {"report": "/etc/report"},
        {"report": "../report"},
        {"report": ""},
        {"until": "yesterday"},
        {"until": "2027-01-01T00:00:00"},
        {"hours": 0},
        {"hours": 1e9},
        {"most": 0},
    ],
    ids=str,
)
def test_an_input_that_cannot_be_used_fails_the_job(store: Store, given: dict[str, Any]) -> None:
    """A time without an offset, no hours, no runs, a report outside the folder of reports."""
    job, _ = store.enqueue("graph", given)
    work(store, nightly_eval.graph)
    job = store.job(job.public_id)
    assert (job.status, json.loads(job.error_json or "")["type"].endswith("PayloadInvalid")) == ("failed", True)


def test_outside_a_job_it_says_so() -> None:
    """There is no record to read then."""
    with pytest.raises(Exception, match="submit it"):
        nightly_eval.graph.invoke({})


# ---- the parts


def test_the_three_kinds_take_turns() -> None:
    """Errors, slowest, dearest, one of each in turn; a run that is several of them counts once, for the first."""
    runs = [
        Candidate("both", "g", 3, 9.0, 9.0, 0),
        Candidate("wrong", "g", 1, 1.0, 0.0, 0),
        Candidate("slow", "g", 0, 8.0, 0.0, 0),
        Candidate("dear", "g", 0, 1.0, 5.0, 0),
        Candidate("usual", "h", 0, 0.5, 0.0, 7),
    ]
    picked = [(one.candidate.key, one.why) for one in telling.pick(runs, 4)]
    assert picked == [("both", "error"), ("wrong", "error"), ("slow", "slow"), ("dear", "dear")]
    assert [one.candidate.key for one in telling.pick(runs, 9)][4:] == ["usual"]
    assert telling.pick([], 9) == []


@pytest.mark.parametrize(
    ("change", "score", "why"),
    [
        ({}, 1.0, "nothing unusual"),
        ({"status": "failed"}, 0.0, "failed"),
        ({"status": "review"}, 0.5, "waits for a person"),
        ({"unknown_effects": 1}, 0.7, "nobody knows"),
        ({"failures": 2}, 0.8, "2 failures"),
        ({"seconds": 31.0}, 0.8, "slower"),
        ({"cost": 0.31}, 0.8, "dearer"),
        (
            {"status": "review", "unknown_effects": 1, "failures": 9, "seconds": 99.0, "cost": 9.0},
            0.0,
            "person; nobody",
        ),
    ],
    ids=str,
)
def test_the_rule(change: dict[str, Any], score: float, why: str) -> None:
    """What ended badly, what is unsure, and what took more than three times what is typical lowers the score."""
    usual = {"status": "done", "error": None, "unknown_effects": 0, "failures": 0}
    figures = {"seconds": 10.0, "typical_seconds": 10.0, "cost": 0.1, "typical_cost": 0.1}
    verdict = evaluation.by_rule({**usual, **figures, **change})
    assert verdict["score"] == pytest.approx(score)
    assert why in verdict["why"]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"score": 0.5, "why": "x"}', 0.5),
        ('```json\n{"score": 1}\n```', 1.0),
        ('{"score": 7, "why": "x"}', 1.0),
        ('{"score": true}', None),
        ('{"score": NaN}', None),
        ('{"why": "x"}', None),
        ("[0.5]", None),
        ("", None),
    ],
)
def test_what_a_model_says_is_read_or_left(text: str, score: float | None) -> None:
    """One JSON object with a number, whatever stands around it."""
    verdict = evaluation.answer(text, "model")
    assert (verdict and verdict["score"]) == score
