"""A whole crash test: two uninterrupted runs, then a run a crash point, several at once, and the report of it all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from everstep.checkpoints.jobs import Job
from everstep.checkpoints.reviews import Review
from everstep.checkpoints.store import Store
from everstep.errors import CrashTestImpossible, GraphLoadFailed, PayloadInvalid
from everstep.runtime.crash_test import points
from everstep.runtime.crash_test.answers import Answer, Replay, Script
from everstep.runtime.crash_test.fork_client import ForkServer
from everstep.runtime.crash_test.judgement import PointResult, Reference, Witness, judge
from everstep.runtime.crash_test.one_run import Run, Setting, carry_out
from everstep.runtime.crash_test.points import Point
from everstep.runtime.crash_test.report import Report, touches
from everstep.runtime.crash_test.world import Snapshot

QUESTIONS = ("interrupt", "breakpoint")
"""Kinds of reviews an uninterrupted run may open; any other means that it does not finish by itself."""


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
        seconds: How long a run may take.
        keep: Folder for records and logs of all runs; None: they are removed.
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


@dataclass
class Listener:
    """Told how far the test is."""

    begun: Callable[[str], None] = field(default=lambda words: None)
    chosen: Callable[[int, int], None] = field(default=lambda tested, passed: None)
    judged: Callable[[PointResult], None] = field(default=lambda result: None)


def crash_test(plan: Plan, listener: Listener | None = None) -> Report:
    """Carry out a crash test. Whatever ends it, its processes are ended, and the world is put back.

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
        template = _template(folder)
        tell.begun("starting workers")
        servers = [ForkServer(1 + (plan.seed * 2 + number) % 4_000_000_000) for number in range(2)]
        for server in servers:
            stack.callback(server.close)
        setting = Setting(plan.config, plan.graph, plan.input, template, servers, snapshot, plan.seconds)
        reference = _reference(setting, script, folder, tell)
        passed = points.passed(reference.run.traces)
        chosen = points.choose(passed, number=plan.sample, seed=plan.seed, only=plan.only)
        if not chosen:
            raise PayloadInvalid(
                f"the graph passes no crash point that begins with {' or '.join(plan.only)}",
                next_step=f"it passes: {', '.join(dict.fromkeys(point.kind for point in passed))}",
            )
        tell.chosen(len(chosen), len(passed))
        report = Report(plan.graph, plan.seed, len(passed), reference, unused_answers=script.unused())
        runs = _kill(plan, setting, reference, script, chosen, folder, report, tell)
        report.touches = touches([reference.run, reference.again, *runs], plan.allow)
        return report


def _reference(setting: Setting, script: Script, folder: Path, tell: Listener) -> Reference:
    def answer(review: Review, job: Job, run: Run) -> tuple[Answer, bool]:
        if review.kind not in QUESTIONS:
            raise _does_not_finish(review.kind, review.value)
        return script.first(review, job, str(run.place)), False

    tell.begun("running it uninterrupted")
    first = carry_out(setting, folder / "uninterrupted-1", answer)
    _require_done(first)
    tell.begun("running it uninterrupted once more")
    replay = Replay(script)
    second = carry_out(
        setting,
        folder / "uninterrupted-2",
        lambda review, job, run: (replay.answer(review, str(run.place)), False),
        first=1,
    )
    _require_done(second)
    return Reference(first, second)


def _kill(
    plan: Plan,
    setting: Setting,
    reference: Reference,
    script: Script,
    chosen: Sequence[Point],
    folder: Path,
    report: Report,
    tell: Listener,
) -> list[Run]:
    """One run a point; fills the report's results."""

    def one(number: int, point: Point) -> tuple[Run, PointResult]:
        run = carry_out(setting, folder / f"point-{number}", Witness(reference, Replay(script)), point)
        result = judge(reference, run, point)
        if plan.keep is None:
            shutil.rmtree(run.folder, ignore_errors=True)
        return run, result

    at_once = 1 if plan.world else plan.jobs
    runs: list[Run] = []
    results: dict[int, PointResult] = {}
    threads = ThreadPoolExecutor(at_once, thread_name_prefix="crash-test")
    try:
        futures: dict[Future[tuple[Run, PointResult]], int] = {
            threads.submit(one, number, point): number for number, point in enumerate(chosen)
        }
        for future in as_completed(futures):
            run, result = future.result()
            runs.append(run)
            results[futures[future]] = result
            tell.judged(result)
    except BaseException:
        threads.shutdown(wait=False, cancel_futures=True)
        for server in setting.servers:
            server.close()
        raise
    finally:
        threads.shutdown(wait=True)
    report.results = [results[number] for number in sorted(results)]
    return runs


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


def _template(folder: Path) -> Path:
    path = folder / "template.db"
    Store.open(f"sqlite:///{path}").close()
    return path


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
