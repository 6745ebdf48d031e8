"""The statements a job costs from its enqueueing to its end, each built once; what they mean is told where they run.

A parameter has the name of its column. What a row must still be for a change to take place is `job` and `claim`, row id
and claim number, and its status, which is no parameter: `statements` tells why.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    ColumnElement,
    Connection,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    column,
    exists,
    false,
    func,
    insert,
    literal,
    literal_column,
    not_,
    null,
    or_,
    select,
    true,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql

from everstep.checkpoints.schema import agent_jobs, job_events, services
from everstep.checkpoints.statements import Statement
from everstep.checkpoints.wake_ups import WORK

WAITING = ("pending", "retry")
LIVING = (*WAITING, "running")
ENQUEUED = "enqueued"
"""Why there is a job that waits."""
UNFINISHED = (*LIVING, "review")

_jobs = agent_jobs.c


def _given(columns: Iterable[str]) -> dict[str, Any]:
    """Each column is set to the parameter of its name."""
    return {name: bindparam(name) for name in columns}


_EVENT = ("from_status", "to_status", "claim_no", "at", "actor", "reason")

GET = Statement(select(agent_jobs).where(_jobs.id == bindparam("job")))
LOCK = Statement(select(agent_jobs).where(_jobs.id == bindparam("job")).with_for_update())
WITH_KEY = Statement(select(agent_jobs).where(_jobs.idempotency_key == bindparam("idempotency_key")))
BUDGET = Statement(select(_jobs.parent_id, _jobs.budget_json).where(_jobs.id == bindparam("job")))
NOTE_EVENT = Statement(insert(job_events).values(_given(("job_id", *_EVENT))).inline())


@cache
def add(columns: tuple[str, ...]) -> Statement:
    """On PostgreSQL, in one message: a job, unless one has its key, with its first event by `actor`; workers are woken.

    Its row, if there is one, begins with the job's row id.
    """
    job = postgresql.insert(agent_jobs).values(_given(columns)).on_conflict_do_nothing()
    made = job.returning(_jobs.id, _jobs.status, _jobs.claim_no, _jobs.created_at).cte("made")
    nothing, who = cast(null(), job_events.c.from_status.type), bindparam("actor", type_=job_events.c.actor.type)
    event = select(made.c.id, nothing, made.c.status, made.c.claim_no, made.c.created_at, who, literal(ENQUEUED))
    noted = insert(job_events).from_select(["job_id", *_EVENT], event).cte("noted")
    return Statement(select(made.c.id, func.pg_notify(WORK, "")).add_cte(noted))


_running = and_(_jobs.id == bindparam("job"), _jobs.claim_no == bindparam("claim"), _jobs.status == "running")
LOOK_AT_CLAIM = Statement(select(_jobs.id).where(_running))
HOLD_CLAIM = Statement(select(_jobs.id).where(_running).with_for_update())


@cache
def set_while_claimed(columns: tuple[str, ...]) -> Statement:
    """Set columns of a job that runs under `claim`."""
    return Statement(update(agent_jobs).where(_running).values(_given(columns)))


@cache
def advance(columns: tuple[str, ...]) -> Statement:
    """As `set_while_claimed`; the job's input is part of its thread, and its progress grows by `more`."""
    progress = _jobs.progress + bindparam("more")
    return Statement(
        update(agent_jobs).where(_running).values({**_given(columns), "progress": progress, "input_applied": 1})
    )


def move(connection: Connection, was: str, columns: tuple[str, ...], rows: Sequence[dict[str, Any]]) -> bool:
    """Set columns of jobs that are still as their caller saw them, and write what became of each into `job_events`.

    Args:
        connection: The write transaction.
        was: Their status.
        columns: What is set.
        rows: For each job the values of `columns`, those of the event (`job_id`, `from_status`, `to_status`,
            `claim_no`, `at`, `actor`, `reason`), and `job` and `claim`.

    Returns:
        Whether every job was; if a single one was not, nothing is written.
    """
    if connection.dialect.name == "postgresql":  # in one message to the server
        if len(rows) == 1:
            return _move_and_note(was, columns).run(connection, rows[0]).rowcount == 1
        given = {"rows": json.dumps(rows), "number": len(rows)}
        return _move_and_note_all(was, columns).run(connection, given).rowcount == len(rows)
    if _move(was, columns).run_all(connection, rows) != len(rows):
        return False
    NOTE_EVENT.run_all(connection, rows)
    return True


def _moving(was: str, columns: tuple[str, ...]) -> Any:
    as_seen = and_(_jobs.id == bindparam("job"), _jobs.status == was, _jobs.claim_no == bindparam("claim"))
    return update(agent_jobs).where(as_seen).values(_given(columns))


@cache
def _move(was: str, columns: tuple[str, ...]) -> Statement:
    return Statement(_moving(was, columns))


@cache
def _move_and_note(was: str, columns: tuple[str, ...]) -> Statement:
    moved = _moving(was, columns).returning(_jobs.id).cte("moved")
    event = [bindparam(name, type_=job_events.c[name].type) for name in _EVENT]
    return Statement(insert(job_events).from_select(["job_id", *_EVENT], select(moved.c.id, *event)).inline())


@cache
def _move_and_note_all(was: str, columns: tuple[str, ...]) -> Statement:
    """As `_move_and_note`, for so many jobs as `number` says; `rows` is the JSON of what each is given.

    As one text: the driver takes longer for a list of each column than the server for all the changes.
    """
    kinds = {"job": _jobs.id.type, "claim": _jobs.claim_no.type}
    kinds |= {name: _jobs[name].type for name in columns} | {name: job_events.c[name].type for name in _EVENT}
    each = func.json_to_recordset(cast(bindparam("rows", type_=Text()), JSON()))
    table = each.table_valued(*(column(name, kind) for name, kind in kinds.items())).render_derived(with_types=True)
    given = select(table).limit(bindparam("number", type_=Integer())).cte("given")  # and the planner knows they are few
    # Each is found by its id: the status alone would find all that waits.
    as_seen = and_(_jobs.id == given.c.job, _jobs.status.concat("") == was, _jobs.claim_no == given.c.claim)
    change = update(agent_jobs).where(as_seen).values({name: given.c[name] for name in columns})
    moved = change.returning(_jobs.id).cte("moved")
    event = select(moved.c.id, *(given.c[name] for name in _EVENT)).join_from(moved, given, given.c.job == moved.c.id)
    return Statement(insert(job_events).from_select(["job_id", *_EVENT], event).inline())


def _is(column: Any, constant: str) -> ColumnElement[bool]:
    """As `==`; written out here, so that it is the same in each part of a statement that a change refers to."""
    return column == literal_column(f"'{constant}'")


def _closed() -> ColumnElement[bool]:
    return exists().where(_is(services.c.gate, "closed"))


def _keyed() -> ColumnElement[bool]:
    living = _jobs.status.in_([literal_column(f"'{status}'") for status in LIVING])
    return exists().where(living, _jobs.concurrency_key.is_not(None))


CLOSED_AND_KEYED = Statement(select(_closed(), _keyed()))
"""Whether any gate is closed, and whether any living job has a concurrency key."""


def look_for_ready(connection: Connection, graphs: int | None, values: Mapping[str, Any]) -> list[Any] | None:
    """Of each kind of ready job the first without a concurrency key, locked; what is locked is passed over.

    Args:
        connection: The write transaction.
        graphs: How many graphs the worker has, which are `graph_0` and so on; None: all.
        values: `now`; how many of each kind: `most`, and `most_lost` of those under a lease that has expired; and the
            graphs' names.

    Returns:
        Rows with all columns; None if a gate is closed, or a job has a key, so that more decides what may start.
    """
    if connection.dialect.name == "postgresql":  # in one message to the server
        rows = _held_and_ready(graphs).run(connection, values).fetchall()
        closed, keyed, *_ = rows[0]
        return None if closed or keyed else [row[2:] for row in rows if row[2] is not None]
    closed, keyed, *any_of = _kinds(graphs).run(connection, values).fetchone()
    if closed or keyed:
        return None
    parts = [part for part, any_ in zip(_each_ready(graphs), any_of, strict=True) if any_]
    return [row for part in parts for row in part.run(connection, values).fetchall()]


@cache
def _held_and_ready(graphs: int | None) -> Statement:
    """Each row begins with what `CLOSED_AND_KEYED` finds; one without a job after it says that none is ready."""
    held = select(_closed().label("closed"), _keyed().label("keyed")).cte("held")
    first = [part.cte(f"ready_{number}") for number, part in enumerate(_first(graphs))]
    found = union_all(*(select(part) for part in first)).subquery("found")
    return Statement(select(held, found).select_from(held.outerjoin(found, true())))


@cache
def start_first(graphs: int | None, most: int) -> Statement:
    """On PostgreSQL, in one message: start the first ready jobs, and note it, where their order alone decides which.

    It does not where a gate is closed or a job has a concurrency key, nor where among the first of each kind is one
    whose lease has expired, a suspect, or one of `mine`, a text such as `{1,2}`. Then nothing is started.

    Its parameters are `now`, the graphs' names, and what a start sets and tells: `leased_by`, `lease_until`, `reason`.

    Args:
        graphs: As for `look_for_ready`.
        most: How many are started; no parameter, so that the planner knows they are few.

    Returns:
        Its rows begin with whether the order alone decided; a job's columns follow, or none if none is ready.
    """
    held = select(_closed().label("closed"), _keyed().label("keyed")).cte("held")
    free = not_(exists().where(or_(held.c.closed, held.c.keyed)))
    told = (_jobs.id, _jobs.status, _jobs.due_rank, _jobs.suspect, _jobs.worker_deaths)
    numbers = [*(most for _ in WAITING), 1]  # a single lost one decides
    kinds = [
        part.where(free).with_only_columns(*told).limit(literal_column(str(number))).cte(f"ready_{at}")
        for at, (part, number) in enumerate(zip(_first(graphs), numbers, strict=True))
    ]
    found = union_all(*(select(kind) for kind in kinds)).cte("found")
    suspected = found.c.suspect + found.c.worker_deaths > literal_column("0")
    mine = found.c.id == func.any(cast(bindparam("mine", type_=Text()), ARRAY(Integer())))
    odd = exists().where(or_(_is(found.c.status, "running"), suspected, mine))
    plain = select(and_(free, not_(odd)).label("plain")).cte("plain")
    first = select(found).join_from(found, plain, plain.c.plain).order_by(found.c.due_rank, found.c.id)
    first = first.limit(literal_column(str(most))).cte("first")
    now, one = bindparam("now", type_=_jobs.updated_at.type), literal_column("1", Integer())
    start: dict[str, Any] = {"attempts": _jobs.attempts + one, "claim_no": _jobs.claim_no + one, "updated_at": now}
    start |= {"status": literal_column("'running'"), **_given(("leased_by", "lease_until"))}
    started = update(agent_jobs).where(_jobs.id == first.c.id).values(start)  # as it was locked, whatever it was before
    moved = started.returning(*_jobs, first.c.status.label("was")).cte("moved")
    who, why = bindparam("leased_by", type_=job_events.c.actor.type), bindparam("reason", type_=Text())
    event = select(moved.c.id, moved.c.was, moved.c.status, moved.c.claim_no, now, who, why)
    noted = insert(job_events).from_select(["job_id", *_EVENT], event).cte("noted")
    after = [moved.c[column.key] for column in _jobs]
    return Statement(select(plain.c.plain, *after).select_from(plain.outerjoin(moved, true())).add_cte(noted))


@cache
def first_pending(graphs: int | None) -> Statement:
    """On SQLite: the first pending jobs, `most` of them, where their order alone decides which may start; else none.

    It does not where a gate is closed or a job has a concurrency key, nor where one is due for a retry or its lease has
    expired.
    """
    pending, *_ = _first(graphs)
    _, *of_another_kind = _any_of_each(graphs)
    most, none = bindparam("most", type_=Integer()), literal_column("0", Integer())
    alone = case((or_(_closed(), _keyed(), *of_another_kind), none), else_=most)
    return Statement(pending.limit(alone))  # as a condition it would be asked of each that waits


@cache
def _kinds(graphs: int | None) -> Statement:
    """What `CLOSED_AND_KEYED` finds, and of each kind of ready job whether there is any."""
    return Statement(select(_closed(), _keyed(), *_any_of_each(graphs)))


@cache
def _each_ready(graphs: int | None) -> list[Statement]:
    """Apart: to SQLite nothing travels, but each column of each statement that is run costs, also where no row is."""
    return [Statement(part) for part in _first(graphs)]


def _first(graphs: int | None) -> list[Select[Any]]:
    return [
        select(agent_jobs)
        .where(part, _jobs.concurrency_key.is_(None))
        .order_by(_jobs.due_rank, _jobs.id)
        .limit(bindparam("most_lost" if number == len(WAITING) else "most", type_=_jobs.id.type))
        .with_for_update(skip_locked=True)
        for number, part in enumerate(_ready(graphs))
    ]


def numbered(graphs: Sequence[str] | None) -> dict[str, str]:
    """The parameters that name a worker's graphs."""
    return {f"graph_{number}": name for number, name in enumerate(graphs or ())}


@cache
def look_around(graphs: int | None) -> Statement:
    """What `CLOSED_AND_KEYED` finds, and, if that is nothing, whether a job is ready; nothing is locked."""
    ready = or_(*_any_of_each(graphs))
    return Statement(select(_closed(), _keyed(), case((or_(_closed(), _keyed()), false()), else_=ready)))


def _any_of_each(graphs: int | None) -> list[ColumnElement[bool]]:
    return [exists(select(_jobs.id).where(part)) for part in _ready(graphs, _jobs.next_run_at)]


_IN_ORDER = _jobs.next_run_at + literal_column("0")
"""Not by its index, whose order would have to be sorted anew."""


def _ready(graphs: int | None, due_at: ColumnElement[int] = _IN_ORDER) -> list[ColumnElement[bool]]:
    """What is ready, apart by status: so each part is found in its order by an index, however much waits behind it."""
    now = bindparam("now", type_=_jobs.next_run_at.type)
    parts = [and_(_is(_jobs.status, status), due_at <= now) for status in WAITING]
    parts.append(and_(_is(_jobs.status, "running"), _jobs.lease_until <= now))
    return [and_(part, _mine(graphs)) for part in parts]


def _mine(graphs: int | None) -> ColumnElement[bool]:
    if graphs is None:
        return true()
    return _jobs.graph.in_([bindparam(f"graph_{number}") for number in range(graphs)]) if graphs else false()


@cache
def other_holders(graphs: int) -> Statement:
    """The workers other than `leased_by` that hold jobs of so many graphs."""
    held = and_(_mine(graphs), _jobs.status == "running", _jobs.leased_by != bindparam("leased_by"))
    return Statement(select(_jobs.leased_by).where(held).distinct())
