"""Large states in parts: what is told is what was told, in a size linear in what is new, and nothing is left over."""

from __future__ import annotations

import itertools
import json
import threading
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, func, select, update

from everstep.checkpoints import (
    conversations,
    deliveries,
    events,
    job_pages,
    jobs,
    large_texts,
    runs,
    thread_removal,
    turns,
)
from everstep.checkpoints.events import Emitted
from everstep.checkpoints.job_pages import JobFilter
from everstep.checkpoints.large_texts import LARGE, REFERENCE
from everstep.checkpoints.retention import DAY_MS, Rules, remove
from everstep.checkpoints.runs import Run, RunRequest
from everstep.checkpoints.saver import StepSaver
from everstep.checkpoints.schema import agent_jobs, text_parts
from everstep.checkpoints.schema import deliveries as deliveries_table
from everstep.checkpoints.schema import events as events_table
from everstep.checkpoints.schema import runs as runs_table
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock
from everstep.errors import StoreCorrupt
from tests.support.jobs import chain, work
from tests.support.waiting import PATIENCE, Halt, until

pytestmark = pytest.mark.both_databases
THREAD = "019ad000-0000-7000-8000-000000000001"
HOOK = "http://127.0.0.1:1/hook"


def long(name: str, size: int = LARGE) -> str:
    """A text that is nowhere like itself."""
    return " ".join(str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name} {number}")) for number in range(size // 37 + 1))


def post(store: Store, thread_id: str = THREAD, **asked: Any) -> Run:
    """Admit a run to a thread, which is made if there is none."""
    now = store.clock.now_ms()

    def admit(connection: Connection) -> Run:
        conversations.ensure(connection, thread_id, owner="default", now=now)
        request = RunRequest("graph", "A", stream_mode=("values",), **asked)
        return runs.create(connection, request, thread_id=thread_id, owner="default", now=now, actor="http")

    return store.write(admit).result()


def answer(state: dict[str, Any]) -> dict[str, Any]:
    """A node whose line is as long as the last one."""
    return {"log": [f"answer to {state['log'][-1]}"]}


def talk(store: Store, *words: str, thread_id: str = THREAD, **asked: Any) -> None:
    """A turn of a conversation for each word, whose state grows by two long texts."""
    for word in words:
        post(store, thread_id, input={"log": [long(word, 9000)]}, **asked)
        work(store, chain(answer))


def emit(store: Store, run: Run, *texts: str) -> None:
    """Have a run tell texts."""
    of: dict[str, Any] = {
        "job_id": run.job_id,
        "run_id": run.run_id,
        "thread_id": run.thread_id,
        "claim_no": 1,
        "now": 1,
    }
    told = [Emitted("values", text) for text in texts]
    store.write(lambda c: events.append(c, told, **of)).result()


def told(store: Store, thread_id: str = THREAD) -> list[str]:
    """The states that the runs of a thread told, read page by page."""
    found: list[str] = []
    place = 0
    while page := store.read(partial(events.of_thread, thread_id=thread_id, after=place)):
        place = page[-1].id
        found += [event.data_json for event in page if event.method == "values"]
    return found


def stored(store: Store) -> dict[str, list[str]]:
    """By table what stands in the rows that can hold a large text."""
    columns = (events_table.c.data_json, runs_table.c.values_json, agent_jobs.c.result_json)
    columns = (*columns, deliveries_table.c.body_json, text_parts.c.content)
    return store.read(
        lambda c: {
            each.table.name: [text for text in c.execute(select(each).order_by(each.table.c.id)).scalars() if text]
            for each in columns
        }
    )


def size(store: Store) -> int:
    """Characters in all of them."""
    return sum(len(text) for texts in stored(store).values() for text in texts)


def parts(store: Store, thread_id: str = THREAD) -> int:
    """How many parts a thread has."""
    mine = text_parts.c.thread_id == thread_id
    return store.read(lambda c: c.execute(select(func.count()).select_from(text_parts).where(mine)).scalar_one())


def states(*words: str) -> list[str]:
    """What the runs of `talk` tell: the state when it is fed, and when it is answered."""
    log: list[str] = []
    found: list[str] = []
    for word in words:
        for line in (long(word, 9000), f"answer to {long(word, 9000)}"):
            log.append(line)
            found.append(json.dumps({"log": log}))
    return found


# ---- what is told


def test_what_is_told_of_a_large_state_is_the_state(store: Store) -> None:
    """Events, run, job, its page, its thread and its message hold the text as it was; their rows only refer to it."""
    talk(store, "a", "b", webhook=HOOK)
    expected = states("a", "b")
    assert told(store) == expected
    second, first = store.read(lambda c: runs.of_thread(c, THREAD))
    assert [first.values_json, second.values_json] == [expected[1], expected[3]]
    assert store.read(lambda c: runs.find(c, first.run_id)) == first
    assert [run.values_json for run in store.read(lambda c: runs.of_thread(c, THREAD, with_values=False))] == [None] * 2
    found = [
        store.job(first.run_id),
        store.jobs()[-1],
        store.read(lambda c: jobs.get(c, first.job_id)),
        store.write(lambda c: jobs.lock(c, first.job_id)).result(),
        store.read(lambda c: job_pages.jobs(c, JobFilter(), behind=None, limit=10)).items[-1],
    ]
    assert [job.result_json for job in found] == [expected[1]] * len(found)
    assert store.read(lambda c: conversations.find(c, THREAD)).values_json == expected[3]
    sent = store.read(deliveries.every)
    assert [message.body["values"] for message in sent] == [json.loads(expected[3]), json.loads(expected[1])]
    assert store.read(lambda c: deliveries.find(c, sent[0].public_id)) == sent[0]
    rows = stored(store)
    large = [text for name in ("events", "runs", "agent_jobs", "deliveries") for text in rows[name] if len(text) > 200]
    assert not [text for text in large if len(text) >= LARGE]
    assert len([text for text in rows["events"] if text.startswith(REFERENCE)]) == 3  # the first state is small


def test_a_small_state_stays_in_its_rows(store: Store) -> None:
    """Whatever is shorter than `LARGE` characters has no parts; nor has what no JSON of ours is, or a job alone."""
    run = post(store)
    exact = json.dumps("x" * (LARGE - 3))
    assert len(exact) == LARGE - 1
    emit(store, run, exact, json.dumps("é" * LARGE, ensure_ascii=False))
    assert parts(store) == 0
    assert told(store)[0] == exact
    emit(store, run, json.dumps("x" * (LARGE - 2)))
    assert parts(store) > 0
    job, _ = store.enqueue("graph", {"log": [long("alone")]})
    store.cancel(run.run_id)
    work(store, chain(answer))
    assert parts(store, job.thread_id) == 0
    assert json.loads(store.job(job.public_id).result_json or "")["log"][0] == long("alone")


def test_equal_texts_are_stored_once(store: Store) -> None:
    """A state that is told again needs no further part, and one with little more of them a few."""
    run, text = post(store), json.dumps({"log": [long(name) for name in "abcdefgh"]})
    emit(store, run, text)
    known = parts(store)
    emit(store, run, text, text)
    assert parts(store) == known
    emit(store, run, json.dumps({"log": [long(name) for name in "abcdefgh"], "more": 1}))
    assert parts(store) <= known + 6
    other = post(store, str(uuid.uuid4()))
    emit(store, other, text)
    assert parts(store, other.thread_id) == known
    assert told(store, other.thread_id) == [text]


def test_a_state_outlives_the_checkpoints_it_came_from(store: Store) -> None:
    """What was told stays as it was when the thread's checkpoints are pruned, copied or deleted."""
    talk(store, "a", "b")
    StepSaver(store).prune([THREAD])
    assert told(store) == states("a", "b")
    copy = str(uuid.uuid4())
    StepSaver(store).copy_thread(THREAD, copy)
    StepSaver(store).delete_thread(THREAD)
    assert told(store) == states("a", "b")
    assert parts(store, copy) == 0


def test_a_part_that_is_missing_is_told(store: Store) -> None:
    """A text whose parts are gone is refused as damage, never told short."""
    emit(store, post(store), json.dumps(long("a")))
    gone = delete(text_parts).where(text_parts.c.level == 0)
    store.write(lambda c: c.execute(gone)).result()
    with pytest.raises(StoreCorrupt, match=THREAD):
        told(store)


# ---- how large it is

DOCUMENT = long("document", 100_000).replace(" ", "")
SHAPES: dict[str, Callable[[int], Any]] = {
    "a conversation": lambda turns: {
        "messages": [{"id": long(f"{n}", 36), "content": long(f"{n}", 2000)} for n in range(turns)]
    },
    "two lists": lambda turns: {
        "log": [f"line {number} of the log" for number in range(turns * 40)],
        "messages": [long(f"{number}", 1000) for number in range(turns)],
    },
    "a document behind it": lambda turns: {
        "log": [long(f"{n}", 1000 + 137 * n % 2000) for n in range(turns)],
        "text": DOCUMENT,
    },
    "alike": lambda turns: {"log": ["the same line\n" * 100] * turns},
    "numbers": lambda turns: {"log": list(range(turns * 300)), "more": list(range(turns * 300))},
    "one text": lambda turns: {"text": "".join(long(f"{number}", 2000) for number in range(turns))},
    "lists in lists": lambda turns: [[[number] * 9] * 40 for number in range(turns)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_size_is_linear_in_what_is_new(store: Store, shape: str) -> None:
    """Twice as many turns take twice the room and little more, whatever the state looks like; not four times."""
    run, sizes = post(store), [size(store)]
    for turn in range(1, 97):
        emit(store, run, json.dumps(SHAPES[shape](turn)))
        if turn in (48, 96):
            sizes.append(size(store))
    half, whole = (after - sizes[0] for after in sizes[1:])
    assert whole <= 2.5 * half
    assert whole <= 16 * len(json.dumps(SHAPES[shape](96)))  # what is told in all is 48 times that


def test_what_stands_behind_a_change_is_cut_as_before(store: Store) -> None:
    """A long list that gets another first item needs a few parts more, not all of them anew."""
    run, lines = post(store), [long(f"{number}", 300) for number in range(16_000)]
    emit(store, run, json.dumps(lines))
    known = parts(store)
    emit(store, run, json.dumps([long("another", 5000), *lines]))
    assert known > 1200
    assert parts(store) <= known + 10


def test_a_threads_size_is_linear_in_its_turns(store: Store) -> None:
    """Of a conversation that runs turn by turn, all that is told of it together grows by as much with each."""
    sizes = [size(store)]
    for stretch in range(3):
        talk(store, *(f"{stretch} {number}" for number in range(8)), webhook=HOOK)
        sizes.append(size(store))
    first, second, third = (after - before for before, after in itertools.pairwise(sizes))
    assert abs(third - second) < 0.25 * second
    assert third < 2 * first


# ---- whatever is told, in whatever order

texts = st.sampled_from([long(name, 3000) for name in "abcd"]) | st.text(max_size=30)
items: st.SearchStrategy[Any] = texts | st.fixed_dictionaries({"id": st.integers(), "content": texts})
steps = st.one_of(
    st.tuples(st.just("grow"), st.lists(items, min_size=1, max_size=8)),
    st.tuples(st.just("edit"), items),
    st.tuples(st.just("shrink"), st.integers(1, 9)),
    st.tuples(st.just("insert"), items),
    st.tuples(st.just("document"), texts),
    st.tuples(st.just("forget"), st.integers(0, 9)),
    st.tuples(st.just("sweep"), st.none()),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(steps, min_size=1, max_size=25), seed=st.integers(0, 5))
def test_what_is_read_is_what_was_told(store: Store, steps: list[tuple[str, Any]], seed: int) -> None:
    """States that grow, shrink and change in place, told and forgotten in any order: what is left is read as it was."""
    thread_id = str(uuid.uuid4())
    run = post(store, thread_id)
    log: list[Any] = [long(f"{seed} {number}", 4000) for number in range(seed * 2)]
    state: dict[str, Any] = {"log": log}
    expected: list[str] = []
    for what, value in steps:
        match what:
            case "grow":
                log += value
            case "edit" if log:
                log[len(log) // 2] = value
            case "shrink":
                del log[: -value or None]
            case "insert":
                log.insert(0, value)
            case "document":
                state["document"] = value * 5
            case "forget":
                rows = store.read(lambda c: [event.id for event in every(c, thread_id)])
                gone = rows[value : value + 3]
                del expected[value : value + 3]
                store.write(
                    lambda c, gone=gone: c.execute(delete(events_table).where(events_table.c.id.in_(gone)))
                ).result()
            case _:
                large_texts.sweep(store)
        if what not in ("forget", "sweep"):
            expected.append(json.dumps(state))
            emit(store, run, expected[-1])
        assert told(store, thread_id) == expected
    large_texts.sweep(store)
    assert told(store, thread_id) == expected
    store.write(lambda c: c.execute(delete(events_table).where(events_table.c.thread_id == thread_id))).result()
    large_texts.sweep(store)
    assert parts(store, thread_id) == 0


def every(connection: Connection, thread_id: str) -> list[Any]:
    """The rows of a thread's states."""
    mine = (events_table.c.thread_id == thread_id, events_table.c.method == "values")
    return list(connection.execute(select(events_table.c.id).where(*mine).order_by(events_table.c.id)))


# ---- what is left of it


def test_what_nothing_refers_to_goes_with_retention(store: Store, clock: ManualClock) -> None:
    """Events, messages and jobs of a thread that stays take their parts with them, but those that others need."""
    talk(store, "a", "b", webhook=HOOK)
    all_parts = parts(store)
    clock.advance(8 * DAY_MS)
    store.prune(Rules())
    assert told(store) == []
    results = [store.job(run.run_id).result_json for run in store.read(lambda c: runs.of_thread(c, THREAD))]
    assert results == [states("a", "b")[3], states("a", "b")[1]]
    assert [message.body["values"] for message in store.read(deliveries.every)] == [
        json.loads(one or "") for one in results
    ]
    assert 0 < parts(store) < all_parts
    store.write(lambda c: c.execute(update(deliveries_table).values(state="delivered"))).result()
    talk(store, "c")
    clock.advance(25 * DAY_MS)
    store.write(
        lambda c: c.execute(update(agent_jobs).where(agent_jobs.c.id == 3).values(updated_at=clock.now_ms()))
    ).result()
    assert store.prune(Rules()).jobs["done"] == 2
    (job,) = store.jobs()
    assert job.result_json == states("a", "b", "c")[5]
    clock.advance(31 * DAY_MS)
    assert store.prune(Rules()).jobs["done"] == 1
    assert parts(store) == 0


def test_a_run_that_is_forgotten_takes_its_parts_at_the_next_prune(store: Store) -> None:
    """A client deletes a run: what only that told goes at the next prune, what the job holds stays."""
    talk(store, "a", "b")
    second, first = store.read(lambda c: runs.of_thread(c, THREAD))
    store.write(lambda c: runs.forget(c, second)).result()
    before = parts(store)
    store.prune(Rules())
    assert parts(store) < before
    assert told(store) == states("a", "b")[:2]
    assert store.job(second.run_id).result_json == states("a", "b")[3]
    assert store.job(first.run_id).result_json == states("a", "b")[1]


@pytest.mark.parametrize("whose", ["thread", "stateless"])
def test_the_parts_of_a_thread_go_with_it(store: Store, whose: str) -> None:
    """A thread that is deleted, and the jobs of one that was a run's alone, leave no part; others keep theirs."""
    other = str(uuid.uuid4())
    talk(store, "kept", "too", thread_id=other)
    kept = parts(store, other)
    talk(store, "a", "b", delete_thread=whose == "stateless")
    if whose == "thread":
        store.write(lambda c: remove_thread(c, store)).result()
    else:
        assert parts(store) > 0
        ids, tables = [job.id for job in store.jobs() if job.thread_id == THREAD], store.database.checkpoint_tables
        retention = partial(remove, job_ids=ids, now=1, key_days=1, checkpoint_tables=tables)
        assert len(store.write(retention).result()) == 2
    assert parts(store) == 0
    assert parts(store, other) == kept
    assert told(store, other) == states("kept", "too")


def remove_thread(connection: Connection, store: Store) -> None:
    """Delete the thread."""
    thread, tables = conversations.find(connection, THREAD), store.database.checkpoint_tables
    thread_removal.remove(connection, thread, now=store.clock.now_ms(), actor="test", checkpoint_tables=tables)


def test_the_output_of_a_run_that_paused_keeps_its_parts(store: Store) -> None:
    """What a run came to that waits for a person stands in its row alone: a prune leaves the parts of it."""
    run, text = post(store), json.dumps([long(name) for name in "abcd"])
    job = store.job(run.run_id)
    store.write(lambda c: turns.tell_values(c, job, {"values_json": text})).result()
    assert parts(store) > 0
    store.prune(Rules())
    assert store.read(lambda c: runs.find(c, run.run_id)).values_json == text


def test_a_text_that_looks_like_a_list_of_parts_is_none(store: Store) -> None:
    """A part whose content is that of a list is another part: the texts of both are read as they were."""
    text = json.dumps([long(name) for name in "abcd"])
    listed = next(iter(large_texts.cut(text).levels[1].values()))
    alike = (f"{long(str(number), LARGE + 4000)}, {listed}" for number in range(1000))
    forged = next(each for each in alike if listed in large_texts.cut(each).levels[0].values())
    run = post(store)
    emit(store, run, forged, text)
    assert told(store) == [forged, text]


def test_parts_that_are_needed_again_are_not_swept(shared: Store, database: str) -> None:
    """A state is told whose parts a sweep in another process is about to delete: one waits for the other."""
    run, text, telling = post(shared), json.dumps([long(name) for name in "abcd"]), Halt()
    emit(shared, run, text)
    shared.write(lambda c: c.execute(delete(events_table))).result()
    of: dict[str, Any] = {
        "job_id": run.job_id,
        "run_id": run.run_id,
        "thread_id": run.thread_id,
        "claim_no": 1,
        "now": 1,
    }

    def tell(connection: Connection) -> None:
        events.append(connection, [Emitted("values", text)], **of)
        telling.stand()

    told_again = shared.write(tell)
    telling.wait_until_reached()
    with Store.open(shared.url) as other:
        sweeping = threading.Thread(target=large_texts.sweep, args=(other,))
        sweeping.start()
        if database == "postgres":
            held = "SELECT 1 FROM pg_locks WHERE NOT granted"
            until(lambda: not sweeping.is_alive() or shared.read(lambda c: c.exec_driver_sql(held).first()))
        telling.release()
        told_again.result()
        sweeping.join(PATIENCE)
        assert not sweeping.is_alive()
    assert told(shared) == [text]
