"""Where a job's thread stands, and what to feed the graph next.

Feeding the original input a second time doubles the messages; feeding an answer twice answers the next question with
it; feeding nothing loses an answer that was not stored yet, or walks through a breakpoint nobody approved. So, for
every leg of a job:

1. Nothing of the job is committed: the original input. Nothing is committed since its graph, which had finished, was
given something back (`runtime.acceptance`): that. What makes it so and what ends it are one transaction each: the
settlement that stores it, and the first write of the thread.
2. Its last checkpoint is finished: nothing; the job is settled from it.
3. Every unfinished task waits: for an answer nobody gave, or the thread stands before a breakpoint nobody approved:
nothing; review. For a signal or a moment that has not come: nothing; the job is parked, whatever is asked besides.
4. Some answers are given and not used: `Command(resume={interrupt id: answer})` with just those.
5. Otherwise `None`: go on.

An answer is used when the task that asked has stored more answers than it had when it asked; see
`StepSaver.answers_used`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, Send, StateSnapshot

from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Question, Review
from everstep.checkpoints.saver import RESUME, StepSaver
from everstep.checkpoints.waits import INTERRUPT, asks_a_person
from everstep.errors import GraphChanged
from everstep.runtime.results import json_ready

NULL_TASK_ID = "00000000-0000-0000-0000-000000000000"
"""The task under which LangGraph stores what a command writes."""
_NEXT_NODE = "branch:to:"


@dataclass(frozen=True)
class Standing:
    """Where a thread stands.

    Attributes:
        kind: `runnable` (feed `input`), `paused` (ask `questions`), `parked` (until one of `waits` is decided; ask
            `questions`, too) or `finished` (`values` is the result).
        input: What to feed.
        questions: What a person must answer first.
        waits: Keys of the waits it stands at.
        values: The graph's output so far.
        state: All of its state.
        interrupts: What it waits for, by the task that asked.
        checkpoint_id: The last root checkpoint; None before the first.
    """

    kind: Literal["runnable", "paused", "parked", "finished"]
    input: Any = None
    questions: list[Question] = field(default_factory=list[Question])
    waits: tuple[str, ...] = ()
    values: Any = None
    state: Any = None
    checkpoint_id: str | None = None
    interrupts: Mapping[str, Sequence[Interrupt]] = field(default_factory=dict[str, Sequence[Interrupt]])


async def _no_waits() -> Collection[str]:
    return ()


def is_routed(graph: Pregel[Any, Any, Any, Any]) -> bool:
    """Whether code of a graph decides where it begins."""
    return not isinstance(graph, CompiledStateGraph) or START in graph.builder.branches


async def at_end(graph: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> Standing | None:
    """Where a thread stands whose graph has just run and come to a halt, if it has finished."""
    snapshot = await graph.aget_state(config, subgraphs=True)
    return None if snapshot.tasks else _finished(graph, snapshot)


async def standing(
    graph: Pregel[Any, Any, Any, Any],
    config: RunnableConfig,
    job: Job,
    reviews: Sequence[Review],
    saver: StepSaver,
    *,
    has_run: bool,
    command: Mapping[str, Any] | None = None,
    waits: Callable[[], Awaitable[Collection[str]]] = _no_waits,
) -> Standing:
    """Read where the job's thread stands.

    Args:
        graph: The graph, with the saver as its checkpointer.
        config: The run's config, with the thread id.
        job: The job as it is in the record now.
        reviews: Its reviews.
        saver: The saver of the thread.
        has_run: Whether the graph has just run and come to a halt: then it is paused or finished for certain.
        command: What steers it in place of an input: `update` and `goto`.
        waits: Tells which of its waits, by key, are open.

    Raises:
        GraphChanged: The node the thread would run next is no longer in the graph.
    """
    steered = not job.input_applied and job.next_input_json is None and command is not None
    given = None if job.input_applied or steered else job.next_input
    if not (job.input_applied or steered or (given is None and has_run)):
        return Standing("runnable", input=given)
    snapshot = await graph.aget_state(config, subgraphs=True)
    checkpoint_id = _id_of(snapshot)
    if steered and command is not None and _ends(command) and snapshot.tasks:
        await graph.aupdate_state(config, None, as_node=END)
        snapshot = await graph.aget_state(config, subgraphs=True)
        checkpoint_id = _id_of(snapshot)
    elif steered and command is not None and not has_run:  # after it nothing more may have been left to do
        used = await saver.aanswers_used(job.thread_id) if reviews else {}
        answers = _interrupts(snapshot, reviews, used).answers
        return Standing("runnable", input=as_command(command, answers), checkpoint_id=checkpoint_id)
    # Not `snapshot.next`: that leaves out tasks whose writes are stored but not yet part of a checkpoint.
    if not snapshot.tasks:
        if not has_run:  # what has run stands where this graph brought it
            await _refuse_stranded(graph, config, saver)
        return _finished(graph, snapshot)

    used = await saver.aanswers_used(job.thread_id)
    stand = _interrupts(snapshot, reviews, used, await waits() if _are_waits(snapshot) else ())
    answers, questions = stand.answers, stand.questions
    asks = {task.id: asked for task in snapshot.tasks if (asked := _asked(task.interrupts))}
    now: dict[str, Any] = {"values": _output(graph, snapshot.values), "state": snapshot.values, "interrupts": asks}
    if command is not None and not has_run and await _is_steered(saver, config):
        return Standing("runnable", input=Command(resume=answers) if answers else None, checkpoint_id=checkpoint_id)
    stops = (has_run and not stand.woken) or stand.blocked >= len(snapshot.next)
    if stand.waits and not answers and stops:
        keys = tuple(stand.waits)
        return Standing("parked", questions=questions, waits=keys, checkpoint_id=checkpoint_id, **now)
    if questions and not answers and stops:
        return Standing("paused", questions=questions, checkpoint_id=checkpoint_id, **now)
    if not answers and not questions and not stand.waits and not stand.woken and snapshot.next:
        at = [stop async for stop in _breakpoints(graph, graph, snapshot)]
        if has_run and not at:
            at = [(checkpoint_id, list(snapshot.next))]
        asked = _breakpoint(at, reviews)
        if asked is not None:
            return Standing("paused", questions=[asked], checkpoint_id=checkpoint_id, **now)
    return Standing("runnable", input=Command(resume=answers) if answers else None, checkpoint_id=checkpoint_id)


def _are_waits(snapshot: StateSnapshot) -> bool:
    """Whether some node waits for a signal or a moment."""
    return any(not asks_a_person(each.id) for task in snapshot.tasks for each in task.interrupts)


def _ends(command: Mapping[str, Any]) -> bool:
    """Whether it says that the thread is over, as chat pages mark one as resolved; LangGraph goes nowhere then."""
    return not command.get("update") and command.get("goto") in (END, [END])


async def _is_steered(saver: StepSaver, config: RunnableConfig) -> bool:
    """Whether a command is stored with the newest checkpoint that no step has followed yet."""
    saved = await saver.aget_tuple(config)
    return saved is not None and any(
        task_id == NULL_TASK_ID and channel != RESUME for task_id, channel, _ in saved.pending_writes or ()
    )


def as_command(command: Mapping[str, Any], answers: Mapping[str, Any]) -> Command[Any]:
    """A client's command as LangGraph takes it, with the answers to its open questions."""
    goto: Any = command.get("goto") or ()
    places: list[Any] = [goto] if isinstance(goto, str | dict) else list(goto)
    update: Any = command.get("update")
    if isinstance(update, list):  # pairs, where a channel may come twice
        pairs = cast("list[Any]", update)
        update = [tuple(pair) for pair in pairs] if all(isinstance(pair, list) for pair in pairs) else pairs
    sends = [place if isinstance(place, str) else Send(place["node"], place.get("input")) for place in places]
    return Command(update=update, goto=sends, resume=dict(answers) if answers else None)


@dataclass
class _Stand:
    """What the interrupts of a thread come to.

    Attributes:
        answers: Those that wait to be used, by the interrupt's id.
        questions: Those nobody answered.
        waits: Keys of waits that are open.
        blocked: How many tasks can do nothing but wait.
        woken: Whether a wait is decided that its task does not know of yet.
    """

    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    questions: list[Question] = field(default_factory=list[Question])
    waits: list[str] = field(default_factory=list[str])
    blocked: int = 0
    woken: bool = False


def _asked(interrupts: Sequence[Interrupt]) -> list[Interrupt]:
    """Those that ask a person."""
    return [each for each in interrupts if asks_a_person(each.id)]


def _interrupts(
    snapshot: StateSnapshot, reviews: Sequence[Review], used: dict[str, int], open_waits: Collection[str] = ()
) -> _Stand:
    rows = {(review.subject, review.occurrence): review for review in reviews if review.kind == "interrupt"}
    answered = {(review.subject, review.occurrence) for review in rows.values() if review.status == "answered"}
    stand = _Stand()
    for task in snapshot.tasks:
        waits = bool(task.interrupts)
        for interrupt in task.interrupts:
            count = used.get(interrupt.id, 0)
            if not asks_a_person(interrupt.id):
                if (key := interrupt.id.removeprefix(INTERRUPT)) in open_waits:
                    stand.waits.append(key)
                else:
                    stand.woken, waits = True, False
            elif (interrupt.id, count) in answered:
                stand.answers[interrupt.id] = json.loads(rows[interrupt.id, count].resume_json or "null")
                waits = False
            elif any((interrupt.id, earlier) in answered for earlier in range(count)):
                waits = False
            else:
                stand.questions.append(_question(interrupt, count))
        stand.blocked += waits
    return stand


def _breakpoint(stops: list[tuple[str, list[str]]], reviews: Sequence[Review]) -> Question | None:
    """The first breakpoint nobody approved; one that was rejected, of a job that was then retried, is asked again."""
    for checkpoint_id, next_nodes in stops:
        about = [review for review in reviews if review.kind == "breakpoint" and review.subject == checkpoint_id]
        if not any(review.decision == "approve" for review in about):
            value = {"question": "Go on past this breakpoint?", "next": next_nodes, "checkpoint_id": checkpoint_id}
            answered = sum(review.status == "answered" for review in about)
            return Question("breakpoint", checkpoint_id, value, occurrence=answered)
    return None


def _question(interrupt: Interrupt, count: int) -> Question:
    return Question("interrupt", interrupt.id, json_ready(interrupt.value), occurrence=count)


async def _breakpoints(
    root: Pregel[Any, Any, Any, Any], graph: Pregel[Any, Any, Any, Any], snapshot: StateSnapshot
) -> AsyncIterator[tuple[str, list[str]]]:
    """The static breakpoints the thread stands at, in graph and subgraphs: checkpoint id, and what comes next."""
    before, after = graph.interrupt_before_nodes, graph.interrupt_after_nodes
    stop = _names(before, snapshot.next)
    if not stop and after and snapshot.parent_config is not None:
        parent = await root.aget_state(snapshot.parent_config)
        stop = _names(after, parent.next)
    if stop:
        yield str(snapshot.config.get("configurable", {}).get("checkpoint_id")), list(snapshot.next)
    nested = any(isinstance(task.state, StateSnapshot) for task in snapshot.tasks)
    subgraphs = dict(cast("Iterator[tuple[str, Any]]", graph.get_subgraphs())) if nested else {}
    for task in snapshot.tasks:
        subgraph = subgraphs.get(task.name)
        if isinstance(task.state, StateSnapshot) and isinstance(subgraph, Pregel):
            async for found in _breakpoints(root, cast("Pregel[Any, Any, Any, Any]", subgraph), task.state):
                yield found


def _names(stops: Any, nodes: Sequence[str]) -> list[str]:
    return list(nodes) if stops == "*" else [node for node in nodes if node in (stops or ())]


async def _refuse_stranded(graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, saver: StepSaver) -> None:
    """A thread whose next node was renamed or removed looks finished to LangGraph; it is not."""
    saved = await saver.aget_tuple(config)
    missing = [] if saved is None else list(_missing(graph, saved.checkpoint["channel_values"]))
    if missing:
        raise GraphChanged(
            f"the thread would go on with {', '.join(missing)}, which the graph no longer has",
            next_step="bring the node back, then: everstep retry",
            nodes=missing,
        )


def _missing(graph: Pregel[Any, Any, Any, Any], values: dict[str, Any]) -> Iterator[str]:
    for channel in values:
        if channel.startswith(_NEXT_NODE) and channel.removeprefix(_NEXT_NODE) not in graph.nodes:
            yield channel.removeprefix(_NEXT_NODE)


def _id_of(snapshot: StateSnapshot) -> str:
    return str(snapshot.config.get("configurable", {}).get("checkpoint_id"))


def _finished(graph: Pregel[Any, Any, Any, Any], snapshot: StateSnapshot) -> Standing:
    values = _output(graph, snapshot.values)
    return Standing("finished", values=values, state=snapshot.values, checkpoint_id=_id_of(snapshot))


def _output(graph: Pregel[Any, Any, Any, Any], values: Any) -> Any:
    channels = graph.output_channels
    if isinstance(values, dict) and not isinstance(channels, str):
        state = cast("dict[str, Any]", values)
        return {name: state[name] for name in channels if name in state}
    return cast("Any", values)
