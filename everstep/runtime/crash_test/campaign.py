"""A whole crash test: two uninterrupted runs, then a run a crash point, several at once, and the report of it all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Review
from everstep.errors import CrashTestImpossible, GraphLoadFailed, PayloadInvalid
from everstep.runtime.crash_test import points
from everstep.runtime.crash_test.answers import Answer, Replay, Script
from everstep.runtime.crash_test.fork_client import ForkServer
from everstep.runtime.crash_test.judgement import PointResult, Reference, Witness, judge
from everstep.runtime.crash_test.one_run import Run, Setting, carry_out
from everstep.runtime.crash_test.points import Point
from everstep.runtime.crash_test.records import InFiles, InSchemas
from everstep.runtime.crash_test.report import Report, touches
from everstep.runtime.crash_test.world import Snapshot

QUESTIONS = ("interrupt", "breakpoint")
"""Kinds of reviews an uninterrupted run may open; any other means that it does not finish by itself."""

PATIENCE_S, PATIENCE = 60.0, 10
"""A run with a crash hangs if it takes so many seconds more than so many times an uninterrupted one."""


@dataclass(frozen=True)
class Plan:
    """What is asked.

    Attributes:
        config: The user's `langgraph.json`.
        graph: The graph's name.
        input: Its input; JSON data.
        seed: Decides the draw and the hash seeds.
        sample: How many points to test, at random; None: all.
        only: Beginnings of labels of points; empty: all.
        answers: What a person answers; see `answers`.
        world: Files and folders to put back before each run and to compare after it.
        allow: Texts of touches that are fine.
        jobs: How many runs at once; with `world` it is one.
        seconds: How long a run may take at most.
        keep: Folder for records and logs of all runs; None: they are removed.
        postgres: URL of a database in which each run gets a schema; None: each gets a file.
        credit: Currencies in which the job's owner has plenty, in each run's record.
    """

    config: Path
    graph: str
    input: Any
    seed: int
    sample: int | None = None
    only: tuple[str, ...] = ()
    answers: Any = None
    world: tuple[Path, ...] = ()
    allow: tuple[str, ...] = ()
    jobs: int = 2
    seconds: float = 300.0
    keep: Path | None = None
    postgres: str | None = None
    credit: tuple[str, ...] = ()


@dataclass
class Listener:
    """Told how far the test is."""

    begun: Callable[[str], None] = field(default=lambda words: None)
    chosen: Callable[[int, int], None] = field(default=lambda tested, passed: None)
    judged: Callable[[PointResult], None] = field(default=lambda result: None)


def crash_test(plan: Plan, listener: Listener | None = None, *, servers: Sequence[ForkServer] | None = None) -> Report:
    """Carry out a crash test. Whatever ends it, its processes are ended, and the world is put back.

    Args:
        plan: What is asked.
        listener: Told how far it is.
        servers: Where workers come from, with different hash seeds; started and ended here when omitted.

    Raises:
        CrashTestImpossible: The graph does not finish when nothing is killed.
        GraphLoadFailed: The graph cannot be loaded.
        PayloadInvalid: The input, the answers or a place of the world cannot be used.
        ReviewAnswerInvalid: An answer does not fit its question.
        WorkerEnded: The process that starts the workers is gone.
    """
    tell = listener or Listener()
    script = Script(plan.answers)
    with _folder(plan.keep) as folder, ExitStack() as stack:
        snapshot = Snapshot(plan.world, folder / "world")
        stack.callback(snapshot.restore)
        records = InFiles(folder) if plan.postgres is None else InSchemas(plan.postgres)
        tell.begun("starting workers")
        if servers is None:
            servers = [stack.enter_context(ForkServer(1 + 2 * plan.seed + number)) for number in range(2)]
        setting = Setting(plan.config, plan.graph, plan.input, records, servers, snapshot, plan.seconds, plan.credit)
        reference = _reference(setting, script, folder, tell)
        passed = points.passed(reference.run.traces)
        chosen = points.choose(passed, number=plan.sample, seed=plan.seed, only=plan.only)
        if not chosen:
            raise PayloadInvalid(
                f"the graph passes no crash point that begins with {' or '.join(plan.only)}",
                next_step=f"it passes: {', '.join(dict.fromkeys(point.kind for point in passed))}",
            )
        tell.chosen(len(chosen), len(passed))
        longest = max(run.seconds for run in (reference.run, *reference.again))
        bounded = replace(setting, seconds=min(plan.seconds, PATIENCE_S + PATIENCE * longest))
        kills = _kill(plan, bounded, reference, script, chosen, folder, tell)
        if any(kill.differing for kill in kills):
            # The first two may have agreed by chance, such as on the second of the day.
            reference.again.append(_once_more(setting, script, folder / "uninterrupted-3", tell))
            for kill in kills:
                if kill.differing is not None:
                    kill.result = judge(reference, kill.differing, kill.result.point)
        return Report(
            graph=plan.graph,
            seed=plan.seed,
            sample=plan.sample,
            passed=len(passed),
            reference=reference,
            results=[kill.result for kill in kills],
            touches=touches(
                [event for run in (reference.run, *reference.again) for event in run.touches()]
                + [event for kill in kills for event in kill.touches],
                plan.allow,
            ),
            unused_answers=script.unused(),
        )


@dataclass
class _Kill:
    """One run with a crash: what it came to, what it touched, and the run itself where it differed."""

    result: PointResult
    touches: list[dict[str, Any]]
    differing: Run | None


def _reference(setting: Setting, script: Script, folder: Path, tell: Listener) -> Reference:
    def answer(review: Review, job: Job, run: Run) -> tuple[Answer, bool]:
        if review.kind not in QUESTIONS:
            raise _does_not_finish(review.kind, review.value)
        return script.first(review, job, str(run.place)), False

    tell.begun("running it uninterrupted")
    first = carry_out(setting, folder / "uninterrupted-1", answer)
    _require_done(first)
    second = _once_more(setting, script, folder / "uninterrupted-2", tell)
    return Reference(first, [second])


def _once_more(setting: Setting, script: Script, folder: Path, tell: Listener) -> Run:
    """Another uninterrupted run, whose first worker has the other hash seed."""
    tell.begun("running it uninterrupted once more")
    replay = Replay(script)
    run = carry_out(setting, folder, lambda review, job, run: (replay.answer(review, str(run.place)), False), first=1)
    _require_done(run)
    return run


def _kill(
    plan: Plan,
    setting: Setting,
    reference: Reference,
    script: Script,
    chosen: Sequence[Point],
    folder: Path,
    tell: Listener,
) -> list[_Kill]:
    """One run a point, in the order of the points."""

    def one(number: int, point: Point) -> _Kill:
        run = carry_out(setting, folder / f"point-{number}", Witness(reference, Replay(script)), point)
        result = judge(reference, run, point)
        if plan.keep is None:
            shutil.rmtree(run.folder, ignore_errors=True)
        return _Kill(result, run.touches(), run if result.problems else None)

    threads = ThreadPoolExecutor(1 if plan.world else plan.jobs, thread_name_prefix="crash-test")
    try:
        futures = [threads.submit(one, number, point) for number, point in enumerate(chosen)]
        for future in as_completed(futures):
            tell.judged(future.result().result)
        return [future.result() for future in futures]
    except BaseException:
        threads.shutdown(wait=False, cancel_futures=True)
        for server in setting.servers:
            server.close()  # ends the runs that are under way
        raise
    finally:
        threads.shutdown(wait=True)


@contextmanager
def _folder(keep: Path | None) -> Generator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="everstep-crash-test-", ignore_cleanup_errors=True) as made:
            yield Path(made).resolve()
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise PayloadInvalid(f"--keep {keep} is there already, and not empty", next_step="name a folder that is not")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.resolve()


def _require_done(run: Run) -> None:
    error = run.error or {}
    if error.get("code") == "graph_load_failed":
        raise GraphLoadFailed(str(error["message"]), next_step=str(error.get("next_step", "")))
    if run.ended or run.status != "done":
        why = run.ended or f"its job is {run.status}: {error.get('message', '')}"
        raise CrashTestImpossible(
            f"the graph does not finish when nothing is killed: {why}",
            next_step="mend it or its input first; --timeout gives it more time, --keep DIR keeps the worker's log",
        )


def _does_not_finish(kind: str, value: Any) -> Exception:
    told = cast("dict[str, Any]", value)  # what Everstep asks is an object
    message = str(told.get("message") or told.get("question"))
    if told.get("code") == "graph_load_failed":
        return GraphLoadFailed(message, next_step=str(told.get("next_step", "")))
    return CrashTestImpossible(
        f"the graph does not finish when nothing is killed: {kind} review: {message}",
        next_step="mend it or its input first, so that it runs through by itself",
    )
