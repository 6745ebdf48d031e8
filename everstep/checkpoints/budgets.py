"""Budgets: what a job may use, what it and its descendants used, and what becomes of a job whose budget is used up.

A limit binds the job it belongs to and all its descendants: what a child uses counts against its parent, and a child
may use no more than its parent has left. Every function runs inside a transaction it is given.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from sqlalchemy import CTE, ColumnElement, Connection, Select, and_, bindparam, func, literal, select, update

from everstep.checkpoints import job_statements, jobs, reviews
from everstep.checkpoints.answers import MISSING
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.policy import Budget
from everstep.checkpoints.reviews import Question, Review
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.schema import reviews as reviews_table
from everstep.checkpoints.statements import Statement
from everstep.errors import PayloadInvalid, ReviewAnswerInvalid

Code = Literal["budget_exceeded", "price_unknown", "usage_unknown"]
LIMITS = tuple(field.name for field in fields(Budget))
_AT_ONCE = 500


@dataclass(frozen=True)
class Use:
    """What was used: whole numbers, so that sums are exact.

    Attributes:
        steps: Supersteps.
        run_ms: Milliseconds of running.
        tokens: Tokens, input and output together.
        cost_micros: Cost, millionths of a US dollar.
    """

    steps: int = 0
    run_ms: int = 0
    tokens: int = 0
    cost_micros: int = 0

    @classmethod
    def of_job(cls, job: Job) -> Use:
        """What the job itself used, without its descendants."""
        return cls(job.step, job.run_ms, job.input_tokens + job.output_tokens, job.cost_micros)

    def as_dict(self) -> dict[str, int | float]:
        """In the units of a budget, by its names."""
        return {
            "steps": self.steps,
            "seconds": self.run_ms / 1000,
            "tokens": self.tokens,
            "cost": self.cost_micros / 1_000_000,
        }


@dataclass(frozen=True)
class Account:
    """A job's budget, and what it and its descendants used of it.

    Attributes:
        public_id: The job.
        parent: The job it is a child of.
        budget: Its limits.
        used: What the job and all its descendants used.
    """

    public_id: str
    parent: str | None
    budget: Budget
    used: Use

    def remaining(self) -> dict[str, int | float]:
        """What is left of each limit that is set; never below 0."""
        used = self.used.as_dict()
        return {name: max(limit - used[name], 0) for name, limit in self.budget.as_dict().items()}

    def used_up(self) -> list[str]:
        """The limits that are reached."""
        in_whole = {
            "steps": self.used.steps,
            "seconds": self.used.run_ms / 1000,
            "tokens": self.used.tokens,
            "cost": self.used.cost_micros,
        }
        scale = {"cost": 1_000_000}
        limits = {name: limit * scale.get(name, 1) for name, limit in self.budget.as_dict().items()}
        return [name for name, limit in limits.items() if in_whole[name] >= limit - 1e-6]

    def as_dict(self) -> dict[str, Any]:
        """As JSON data: limits, used, remaining."""
        return {"limits": self.budget.as_dict(), "used": self.used.as_dict(), "remaining": self.remaining()}


def of_json(budget_json: str | None) -> Budget:
    """The budget as it is stored with a job."""
    return Budget(**json.loads(budget_json)) if budget_json else Budget()


def accounts(connection: Connection, job_ids: Sequence[int]) -> dict[int, Account]:
    """The accounts of jobs, by row id."""
    if len(job_ids) == 1:
        return dict(map(_read, _OF_ONE.run(connection, {"job": job_ids[0]}).fetchall()))
    found: dict[int, Account] = {}
    for start in range(0, len(job_ids), _AT_ONCE):
        some = _some(agent_jobs.c.id.in_(job_ids[start : start + _AT_ONCE]))
        found |= dict(map(_read, connection.execute(_accounts_of(some)).all()))
    return found


def family(connection: Connection, job_id: int, *, lock: bool = False) -> list[Account]:
    """The accounts that bind a job: its own, then its parent's, and so on up.

    Args:
        connection: The transaction.
        job_id: Row id of the job.
        lock: Hold their limits as they are until the transaction ends.
    """
    if lock:
        line = select(_line().c.id)
        query = select(agent_jobs.c.id).where(agent_jobs.c.id.in_(line)).order_by(agent_jobs.c.id).with_for_update()
        connection.execute(query, {"job": job_id}).all()
    return [account for _, account in map(_read, _OF_LINE.run(connection, {"job": job_id}).fetchall())]


def binding(connection: Connection, job_id: int) -> list[Account]:
    """As `family`, but cheap for the many jobs that nothing limits: then there are none."""
    parent_id, budget_json = job_statements.BUDGET.run(connection, {"job": job_id}).fetchone()
    return [] if parent_id is None and budget_json is None else family(connection, job_id)


def why_stop(
    line: Sequence[Account],
    *,
    without_price: Mapping[str, Any] | None = None,
    without_usage: Collection[str] = (),
) -> dict[str, Any] | None:
    """Why a job must not go on, as the value of a review; None if it may.

    Args:
        line: The accounts that bind it, its own first.
        without_price: Models it called whose cost nobody knows, with their tokens.
        without_usage: Models it called that did not tell what they used.
    """
    if over := [(account, limit) for account in line for limit in account.used_up()]:
        return _exceeded(line[0], over)
    limited = [account for account in line if account.budget.cost is not None]
    if without_price and limited:
        names = ", ".join(sorted(without_price))
        return {
            "question": f"A cost budget is set, and nothing tells what {names} costs. Go on?",
            "code": "price_unknown",
            "job": limited[0].public_id,
            "limit": "cost",
            **_numbers(limited[0], "cost"),
            "models": dict(without_price),
            "next_step": 'give its price in everstep.toml ([prices."MODEL"]), start the worker again and approve;'
            " or lift the limit with --value '{\"cost\": null}'",
        }
    limited += [account for account in line if account.budget.tokens is not None]
    if without_usage and limited:
        limit = "cost" if limited[0].budget.cost is not None else "tokens"
        return {
            "question": f"A budget of {limit} is set, and {', '.join(sorted(without_usage))} does not tell what it"
            " used. Go on, with those calls not counted?",
            "code": "usage_unknown",
            "job": limited[0].public_id,
            "limit": limit,
            **_numbers(limited[0], limit),
            "models": sorted(without_usage),
            "next_step": "let the model tell its usage (stream_usage=True for OpenAI's protocol), and approve",
        }
    return None


def question(value: Mapping[str, Any], claim_no: int) -> Question:
    """The review that `why_stop` asks for."""
    return Question("budget", f"{value['limit']} {value['job']}", dict(value), occurrence=claim_no)


def waiting(connection: Connection, job_id: int) -> list[tuple[Review, str]]:
    """The open budget reviews of a job and its descendants, each with the public id of the job that waits."""
    below = _below(_some(agent_jobs.c.id == job_id))
    open_ = and_(reviews_table.c.kind == "budget", reviews_table.c.status == "open")
    query = select(agent_jobs.c.public_id.label("job"), reviews_table).where(open_, agent_jobs.c.id == below.c.id)
    query = query.where(reviews_table.c.job_id == agent_jobs.c.id).order_by(reviews_table.c.job_id)
    rows = map(dict[str, Any], connection.execute(query).mappings())
    return [(Review(**row), job) for row in rows if (job := row.pop("job"))]


def is_lifted(connection: Connection, job: Job, questions: Iterable[Question]) -> bool:
    """Whether what a job is to be stopped for holds no more: its budget was raised while it came to a halt."""
    about = [one.value for one in questions if one.kind == "budget"]
    return bool(about) and not any(_holds(family(connection, job.id, lock=True), value["code"]) for value in about)


def note(connection: Connection, job_id: int, claim_no: int, **columns: int) -> bool:
    """Keep what a run used so far current, between its steps; nothing is written if its claim is gone.

    Returns:
        Whether the claim still holds.
    """
    statement = job_statements.set_while_claimed(tuple(columns))
    return statement.run(connection, {**columns, "job": job_id, "claim": claim_no}).rowcount > 0


def raise_(
    connection: Connection, public_id: str, limits: Mapping[str, Any], *, now: int, by: str
) -> tuple[Job, list[Review]]:
    """Set limits of a job. It and its descendants go on if they wait for a budget that suffices now.

    Args:
        connection: The write transaction.
        public_id: The job's id, or a prefix of it that fits one job only.
        limits: By name; those not named stay, None takes one away.
        now: UTC milliseconds.
        by: Who does it.

    Returns:
        The job as it is then, and the reviews that are answered by it.

    Raises:
        JobNotFound: No job, or more than one, fits.
        PayloadInvalid: No such limit, or it is no positive number.
    """
    job = jobs.find(connection, public_id)
    _set(connection, job.id, limits)
    answered = _release(connection, job.id, now=now, by=by)
    return jobs.get(connection, job.id), answered


def accept(connection: Connection, review: Review, value: Any, *, now: int, by: str) -> None:
    """A person approves that a job goes on past its budget; what the value says is raised first.

    Args:
        connection: The write transaction.
        review: The review; it is answered already.
        value: New limits of the job whose budget is used up (`raise_`), or `MISSING`.
        now: UTC milliseconds.
        by: Who approves.

    Raises:
        ReviewAnswerInvalid: The value holds no limits, or the budget is used up all the same.
    """
    asked = review.value
    if value is not MISSING:
        whose = jobs.find(connection, asked["job"])
        try:
            _set(connection, whose.id, value)
        except PayloadInvalid as error:
            raise ReviewAnswerInvalid(error.message, next_step=error.next_step, review=review.public_id) from error
        _release(connection, whose.id, now=now, by=by)
    line = family(connection, review.job_id, lock=True)
    if over := [(account, limit) for account in line for limit in account.used_up()]:
        left = _exceeded(line[0], over)
        raise ReviewAnswerInvalid(
            f"the budget is still used up: {_list(left['exceeded'])}",
            next_step=left["next_step"],
            review=review.public_id,
            exceeded=left["exceeded"],
        )


def _set(connection: Connection, job_id: int, limits: Any) -> None:
    example = 'such as {"tokens": 200000}'
    if not isinstance(limits, Mapping) or not limits:
        raise PayloadInvalid("new limits are an object with at least one limit", next_step=f"give one, {example}")
    given = cast("Mapping[str, Any]", limits)
    if unknown := sorted(set(given) - set(LIMITS)):
        known = ", ".join(LIMITS)
        raise PayloadInvalid(f"a budget has no limit {', '.join(map(repr, unknown))}", next_step=f"it has: {known}")
    before = of_json(jobs.lock(connection, job_id).budget_json)
    budget = Budget(**{**before.as_dict(), **given})
    stored = json.dumps(budget.as_dict()) if budget.as_dict() else None
    connection.execute(update(agent_jobs).where(agent_jobs.c.id == job_id).values(budget_json=stored))


def _release(connection: Connection, job_id: int, *, now: int, by: str) -> list[Review]:
    """Answer the budget reviews of a job and its descendants that hold no more."""
    answered: list[Review] = []
    for review, _ in waiting(connection, job_id):
        if not _holds(family(connection, review.job_id), review.value["code"]):
            reason = "the budget was raised"
            answered.append(
                reviews.answer(connection, review, decision="approve", reason=reason, by=by, now=now)[0],
            )
    return answered


def _holds(line: Sequence[Account], code: Code) -> bool:
    """Whether a job must still stop for what it was stopped for."""
    if any(account.used_up() for account in line):
        return True
    if code == "budget_exceeded":
        return False
    limits = ("cost",) if code == "price_unknown" else ("cost", "tokens")
    return any(getattr(account.budget, limit) is not None for account in line for limit in limits)


def _exceeded(own: Account, over: Sequence[tuple[Account, str]]) -> dict[str, Any]:
    entries: list[dict[str, Any]] = [
        {"job": account.public_id, "limit": limit, **_numbers(account, limit)} for account, limit in over
    ]
    first = entries[0]
    whose = "this job" if first["job"] == own.public_id else f"job {first['job']}, which this one is a child of,"
    by_job: dict[str, list[str]] = {}
    for entry in entries:
        by_job.setdefault(entry["job"], []).append(f"--{entry['limit']} N")
    raising = "; ".join(f"everstep budget {job} {' '.join(options)}" for job, options in by_job.items())
    return {
        "question": f"The {first['limit']} that {whose} may use are used up"
        f" ({_number(first['used'])} of {_number(first['budget'])}). Raise the budget and go on?",
        "code": "budget_exceeded",
        **first,
        "exceeded": entries,
        "next_step": f"raise it: {raising}",
    }


def _numbers(account: Account, limit: str) -> dict[str, Any]:
    return {
        "budget": account.budget.as_dict()[limit],
        "used": account.used.as_dict()[limit],
        "remaining": account.remaining()[limit],
    }


def _list(entries: Iterable[Mapping[str, Any]]) -> str:
    parts = [f"{one['limit']} {_number(one['used'])} of {_number(one['budget'])} (job {one['job']})" for one in entries]
    return ", ".join(parts)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6f}".rstrip("0").rstrip(".")


def _line() -> CTE:
    """Job `job` and its ancestors: `id`; `depth`, which is 0 for the job."""
    line = (
        select(agent_jobs.c.id, agent_jobs.c.parent_id, literal(0).label("depth"))
        .where(agent_jobs.c.id == bindparam("job"))
        .cte("line", recursive=True)
    )
    above = select(agent_jobs.c.id, agent_jobs.c.parent_id, line.c.depth + 1)
    return line.union_all(above.where(agent_jobs.c.id == line.c.parent_id))


def _some(which: ColumnElement[bool]) -> CTE:
    """Jobs, each by itself: `id`, `depth`."""
    return select(agent_jobs.c.id, literal(0).label("depth")).where(which).cte("some")


def _below(roots: CTE) -> CTE:
    """Jobs and their descendants: `root`, one of the jobs; `id`, it or a descendant of it; and what that one used.

    What it used is told here, so that nobody looks it up: PostgreSQL cannot know how few descendants there are, and
    would read all jobs for it.
    """
    job = agent_jobs.c
    tokens = (job.input_tokens + job.output_tokens).label("tokens")
    told = (job.id, job.step.label("steps"), job.run_ms, tokens, job.cost_micros)
    below = select(roots.c.id.label("root"), *told).where(job.id == roots.c.id).cte("below", recursive=True)
    return below.union_all(select(below.c.root, *told).where(job.parent_id == below.c.id))


def _accounts_of(roots: CTE) -> Select[*tuple[Any, ...]]:
    """The accounts of the jobs that a table with `id` and `depth` names, by depth; `_read` reads a row of it."""
    below = _below(roots)
    sums = [func.sum(below.c[field.name]).label(field.name) for field in fields(Use)]
    used = select(below.c.root, *sums).group_by(below.c.root).subquery("used")
    one, parent = agent_jobs.alias("one"), agent_jobs.alias("parent")
    return (
        select(
            one.c.id,
            one.c.public_id,
            parent.c.public_id.label("above"),
            one.c.budget_json,
            *(used.c[column.name] for column in sums),
        )
        .select_from(roots)
        .join(used, used.c.root == roots.c.id)
        .join(one, one.c.id == roots.c.id)
        .outerjoin(parent, parent.c.id == one.c.parent_id)
        .order_by(roots.c.depth)
    )


def _read(row: Sequence[Any]) -> tuple[int, Account]:
    id_, public_id, above, budget_json, *used = row
    return int(id_), Account(public_id, above, of_json(budget_json), Use(*(int(number) for number in used)))


_OF_ONE = Statement(_accounts_of(_some(agent_jobs.c.id == bindparam("job"))))
_OF_LINE = Statement(_accounts_of(_line()))
