"""The shipped nightly evaluation: the most telling runs of the day, judged one a step, and a report of them.

    choose -> judge (one run a step) -> write_report -> publish

In `langgraph.json`: `"nightly": "everstep.graphs.nightly_eval:graph"`, with a schedule in `everstep.toml`. What was
judged stays judged: a night that fails goes on at the run it stopped at. The input is told in docs/nightly-eval.md.
"""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, Required
from urllib.parse import quote

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict

from everstep.checkpoints import jobs, telling
from everstep.checkpoints.payload import without_secrets
from everstep.checkpoints.telling import LONGEST_TEXT, Candidate, Chosen, Window
from everstep.clock import rfc3339
from everstep.errors import PayloadInvalid
from everstep.graphs import evaluation
from everstep.nodes import attempt
from everstep.nodes.effect import effect
from everstep.nodes.model import VARIABLE, choose_model
from everstep.observability import langfuse, langfuse_traces
from everstep.observability.identity import trace_id
from everstep.observability.langfuse import Score
from everstep.observability.langfuse_traces import Trace
from everstep.observability.links import Links

SCORE = "nightly"
"""The name of its scores."""
HOUR_MS = 3_600_000
MOST_LEGS = 100
"""Up to here a leg of a job is told from its trace's id."""
MOST = 20
FOLDER_VARIABLE = "EVERSTEP_REPORTS"
"""Environment variable that names the folder reports go to."""
DEFAULT_FOLDER, DEFAULT_REPORT = "reports", "nightly-{day}.md"
OPERATOR = "default"
"""The owner whose evaluation may look at everybody's runs."""


class Night(TypedDict, total=False):
    """What it is told.

    Attributes:
        until: The end of the time that is looked at, RFC 3339 with an offset; now when omitted. A schedule puts its
            slot there (`slot_field = "until"`).
        hours: How long that time is; 24 when omitted.
        most: How many runs are judged at most; 20 when omitted.
        report: The report's file in the folder of reports; `{day}` stands for the day.
        source: `record`, the default, or `langfuse` for the traces that Langfuse has, those of other programs, too;
            only for a job of the owner `default`.
        model: `provider:name` of a chat model that judges; `EVERSTEP_MODEL` when omitted, else the rule.
        content: Whether the model sees inputs and results of the runs, cut and without credentials.
        everybody: Whether the runs of all owners are looked at; only for a job of the owner `default`.
    """

    until: str
    hours: float
    most: int
    report: str
    source: Literal["record", "langfuse"]
    model: str
    content: bool
    everybody: bool


class NightState(Night, total=False):
    """What it knows on the way."""

    owner: Required[str]
    since_ms: Required[int]
    until_ms: Required[int]
    cases: Required[list[dict[str, Any]]]
    report_file: str
    report_sha256: str
    scored: int
    published: int
    mean: float | None


class NightResult(TypedDict, total=False):
    """What came of it."""

    report_file: str
    report_sha256: str
    scored: int
    published: int
    mean: float | None


Graph = StateGraph[NightState, None, Night, NightResult]


def choose(state: NightState) -> dict[str, Any]:
    """Find the most telling runs of the time.

    Raises:
        PayloadInvalid: The input cannot be used, or it does not run as a job.
    """
    running = attempt.current.get()
    if running is None:
        raise PayloadInvalid(
            "the nightly evaluation reads the record of the job it runs as, and runs as none",
            next_step="submit it: everstep submit nightly --input '{}'",
        )
    store = running.store
    until = _moment(state.get("until"), store.clock.now_ms())
    hours, most = state.get("hours", 24), state.get("most", MOST)
    if not 0 < hours <= 24 * 366 or not 1 <= most <= 1000:
        raise PayloadInvalid("hours or most is out of range", next_step="give up to a year, and 1 to 1000 runs")
    job = store.read(partial(jobs.get, job_id=running.job_id))
    if job.owner != OPERATOR and (state.get("everybody") or state.get("source") == "langfuse"):
        raise PayloadInvalid(
            f"the owner {job.owner} may look at their own runs in the record only",
            next_step="leave everybody and source out",
        )
    window = Window(until - int(hours * HOUR_MS), until, None if state.get("everybody") else job.owner, job.id)
    if state.get("source") == "langfuse":
        cases = _of_langfuse(window, most)
    else:
        find = partial(telling.choose, window=window, most=most, with_content=bool(state.get("content")))
        cases = store.read(find)
    _place(state, job.owner)
    return {"owner": job.owner, "since_ms": window.since, "until_ms": until, "cases": cases}


def _place(state: Night, owner: str) -> Path:
    """Where the report goes: within the folder of reports, each owner but the operator in one of their own.

    Raises:
        PayloadInvalid: It would be elsewhere.
    """
    name = Path(state.get("report", DEFAULT_REPORT))
    if name.is_absolute() or ".." in name.parts or not name.name:
        raise PayloadInvalid(
            f"the report {str(name)!r} is not within the folder of reports",
            next_step=f"give a name in it; {FOLDER_VARIABLE} of the worker says which folder that is",
        )
    folder = Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)
    return (folder if owner == OPERATOR else folder / f"owner-{quote(owner, safe='')}") / name


def _of_langfuse(window: Window, most: int) -> list[dict[str, Any]]:
    traces = {
        one.trace_id: one for one in langfuse_traces.read(langfuse.required(), since=window.since, until=window.until)
    }
    candidates = (
        Candidate(one.trace_id, one.name, int(one.failed), one.seconds, one.cost, one.tokens) for one in traces.values()
    )
    return [_case(traces[chosen.candidate.key], chosen) for chosen in telling.pick(candidates, most)]


def _case(trace: Trace, chosen: Chosen) -> dict[str, Any]:
    """A trace as `telling.choose` gives a run of the record; one that is none of ours has the leg 0."""
    job = trace.session or trace.trace_id
    legs = range(1, MOST_LEGS + 1)
    return {
        "job": job,
        "leg": next((leg for leg in legs if trace_id(job, leg) == trace.trace_id), 0),
        "trace_id": trace.trace_id,
        "graph": trace.name,
        "why": chosen.why,
        "status": "failed" if trace.failed else "done",
        "error": {"code": None, "type": None, "message": without_secrets(trace.message)[:LONGEST_TEXT]}
        if trace.failed
        else None,
        "seconds": trace.seconds,
        "typical_seconds": chosen.typical_seconds,
        "cost": trace.cost,
        "typical_cost": chosen.typical_cost,
        "tokens": trace.tokens,
        "attempts": 1,
        "failures": 0,
        "steps": 0,
        "unknown_effects": 0,
        "at_ms": trace.at_ms,
    }


def write_report(state: NightState) -> dict[str, Any]:
    """Write the report."""
    cases, links = state["cases"], Links()
    for case in cases:
        case["url"] = links.to(_trace(case))
    day = datetime.fromtimestamp((state["until_ms"] - 1) / 1000, UTC)
    path = str(_place(state, state["owner"])).replace("{day}", f"{day:%Y-%m-%d}")
    since, until = rfc3339(state["since_ms"]), rfc3339(state["until_ms"])
    text = evaluation.report(cases, since=since or "", until=until or "")
    scores = [case["verdict"]["score"] for case in cases]
    return {
        "report_file": path,
        "report_sha256": save(path, text),
        "scored": len(scores),
        "mean": round(sum(scores) / len(scores), 3) if scores else None,
    }


def publish(state: NightState) -> dict[str, Any]:
    """Write the scores to Langfuse, if it is configured."""
    if langfuse.configured() is None:
        return {"published": 0}
    for case in state["cases"]:
        verdict = case["verdict"]
        send_score(_trace(case), case["job"], case["leg"], verdict["score"], verdict["why"], case["at_ms"])
    return {"published": len(state["cases"])}


def _saved(path: str, text: str) -> str | None:
    """The report's digest, if it is there as it should be."""
    try:
        there = Path(path).read_bytes()
    except OSError:
        return None
    return _digest(there) if there == text.encode() else None


@effect("report.write", probe=_saved)
def save(path: str, text: str) -> str:
    """Write a file, whole or not at all; its SHA-256."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.part")
    with beside.open("wb") as part:
        part.write(text.encode())
        part.flush()
        os.fsync(part.fileno())
    beside.replace(file)
    return _digest(text.encode())


@effect("langfuse.score", idempotent=True)
def send_score(trace: str, job: str, leg: int, value: float, comment: str, at_ms: int) -> str:
    """Score a leg in Langfuse; a score that was there is replaced, so it may be sent again. The score's id."""
    score = Score(
        id=langfuse.score_id(job, leg, SCORE),
        trace_id=trace,
        name=SCORE,
        value=value,
        type="NUMERIC",
        comment=comment,
        at_ms=at_ms,
    )
    langfuse.send(langfuse.required(), score)
    return score.id


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _trace(case: dict[str, Any]) -> str:
    return case.get("trace_id") or trace_id(case["job"], case["leg"])


def _moment(given: str | None, now: int) -> int:
    if given is None:
        return now
    try:
        when = datetime.fromisoformat(given)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise PayloadInvalid(f"until is {given!r}", next_step="give a time with Z or an offset")
    return round((when - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(milliseconds=1))


def _left(state: NightState) -> Literal["judge", "write_report"]:
    return "judge" if any("verdict" not in case for case in state["cases"]) else "write_report"


def _judge(model: BaseChatModel | None) -> Runnable[NightState, dict[str, Any]]:
    """The node that judges the next run, sync and async."""

    def chosen(state: NightState) -> tuple[BaseChatModel | None, str]:
        name = state.get("model") or os.environ.get(VARIABLE, "")
        if model is not None:
            return model, getattr(model, "model_name", None) or type(model).__name__
        return (choose_model(name, otherwise=_nobody), name) if name else (None, evaluation.RULE)

    def judged(state: NightState, verdict: dict[str, Any] | None) -> dict[str, Any]:
        cases = [dict(case) for case in state["cases"]]
        case = next(case for case in cases if "verdict" not in case)
        case["verdict"] = verdict or evaluation.by_rule(case)
        return {"cases": cases}

    def asked(state: NightState) -> list[Any]:
        return evaluation.question(next(case for case in state["cases"] if "verdict" not in case))

    def judge(state: NightState, config: RunnableConfig) -> dict[str, Any]:
        judging, name = chosen(state)
        said = None if judging is None else judging.invoke(asked(state), config)
        return judged(state, said and evaluation.answer(str(said.text), name))

    async def judge_async(state: NightState, config: RunnableConfig) -> dict[str, Any]:
        judging, name = chosen(state)
        said = None if judging is None else await judging.ainvoke(asked(state), config)
        return judged(state, said and evaluation.answer(str(said.text), name))

    return RunnableLambda(judge, judge_async, name="judge")


def _nobody() -> BaseChatModel:
    raise AssertionError("a model was named")


def build_graph(model: BaseChatModel | None = None) -> Graph:
    """The evaluation as a graph to compile.

    Args:
        model: The chat model that judges; when omitted each job chooses: its input, `EVERSTEP_MODEL`, else the rule.
    """
    builder = Graph(NightState, input_schema=Night, output_schema=NightResult)
    builder.add_node("choose", choose)
    builder.add_node("judge", _judge(model))
    builder.add_node("write_report", write_report)
    builder.add_node("publish", publish)
    builder.add_edge(START, "choose")
    builder.add_conditional_edges("choose", _left)
    builder.add_conditional_edges("judge", _left)
    builder.add_edge("write_report", "publish")
    builder.add_edge("publish", END)
    return builder


graph: CompiledStateGraph[NightState, None, Night, NightResult] = build_graph().compile(name="nightly-eval")
"""The evaluation, ready to be run as a job; the runtime brings the checkpointer."""
