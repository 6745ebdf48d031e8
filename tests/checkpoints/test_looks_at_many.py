"""What looks at a record in PostgreSQL with many jobs finds what it looks for by an index, and does not read them all.

Which plan the server has for each statement is asked as it is sent, with the session's own settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import Cursor

from everstep.checkpoints import health, services
from everstep.checkpoints.postgres import READING, WRITING, Postgres
from everstep.checkpoints.reviews import Question
from everstep.checkpoints.store import Store
from everstep.runtime.settle import Outcome
from tests.support.postgres import fresh_postgres
from tests.support.record import begin_effect, begin_running, settled

MANY = 20_000
TABLES = ("agent_jobs", "effects", "job_events", "reviews", "job_services")
LOAD = (
    """INSERT INTO agent_jobs (public_id, idempotency_key, thread_id, status, payload_digest, payload_json, graph,
        workflow_version, priority, max_attempts, next_run_at, created_at, updated_at, claim_no, lease_until,
        result_json)
    SELECT n, n, n, CASE WHEN n = 1 THEN 'failed' WHEN n %% 1000 = 0 THEN 'review' WHEN n %% 1000 = 1 THEN 'retry'
            WHEN n %% 1000 = 2 THEN 'pending' WHEN n %% 1000 = 3 THEN 'running' WHEN n > 2000 THEN 'failed'
            ELSE 'done' END,
        n, '{"n": 1}', 'graph', '1', 5, 3, n, n, n, 1, n, '"' || repeat('x', 200) || '"'
    FROM generate_series(1, %(many)s) AS n""",
    """INSERT INTO job_events (job_id, to_status, claim_no, at, actor, reason)
    SELECT id, 'running', 1, id, 'worker', 'claimed' FROM agent_jobs ORDER BY id""",
    """INSERT INTO effects (key, job_id, name, state, claim_no, calls, arguments_digest, arguments_json, created_at,
        updated_at)
    SELECT id, id, 'mail.send', 'confirmed', 1, 1, 'digest', '{}', id, id FROM agent_jobs""",
    """INSERT INTO reviews (public_id, job_id, kind, subject, status, value_json, value_digest, created_at)
    SELECT id, id, 'interrupt', 's', CASE status WHEN 'review' THEN 'open' ELSE 'answered' END, '{}', 'd', id
    FROM agent_jobs""",
    "INSERT INTO job_services (job_id, service) SELECT id, 'model' FROM agent_jobs",
    "VACUUM ANALYZE",
)


@pytest.fixture(scope="module")
def big() -> Iterator[Store]:
    """A record of many jobs, most of which have ended."""
    with fresh_postgres() as store:
        with psycopg.connect(store.url, autocommit=True) as connection:
            for statement in LOAD:
                connection.execute(statement, {"many": MANY} if "%(many)s" in statement else None)  # pyright: ignore[reportArgumentType]
        yield store


LOOKS: dict[str, Callable[[Store], Any]] = {
    "health": health.examine,
    "jobs": lambda store: store.accounts(store.jobs(limit=500)),
    **{status: lambda store, status=status: store.jobs(status=status, limit=500) for status in ("done", "review")},
    "service": lambda store: store.read(lambda connection: services.waiting(connection, "model")),
    "reviews": lambda store: store.reviews(),
}


def explained(monkeypatch: pytest.MonkeyPatch, of_options: str) -> list[str]:
    """The plans of what connections with these options ask from now on, each after its statement."""
    plans: list[str] = []
    connect = Postgres._plain  # pyright: ignore[reportPrivateUsage]

    class Explained(Cursor[Any]):
        def execute(self, query: Any, params: Any = None, **how: Any) -> Any:
            asked: Any = f"EXPLAIN {query}"
            if str(query).startswith(("SELECT", "WITH", "UPDATE", "DELETE")):
                rows = super().execute(asked, params, **how).fetchall()
                plans.append("\n".join([str(query)[:1000], *(str(row[0]) for row in rows)]))
            return super().execute(query, params, **how)

    def plain(database: Postgres, options: str) -> Any:
        connection = connect(database, options)
        if options == of_options:
            connection.cursor_factory = Explained
        return connection

    monkeypatch.setattr(Postgres, "_plain", plain)
    return plans


def read_whole(plan: str) -> bool:
    """Whether it reads a big table from its beginning to its end."""
    return any(f"Seq Scan on {table}" in plan for table in TABLES)


def read_in_order(plan: str) -> bool:
    """Whether it goes through a whole index of a big table, for the order."""
    nodes = plan.split("->")
    of_keys = [node for node in nodes if any(f"using {table}_pkey on {table}" in node for table in TABLES)]
    return any("Index Cond" not in node for node in of_keys)


@pytest.mark.parametrize("look", LOOKS)
def test_what_looks_at_many_jobs_finds_what_it_looks_for_by_an_index(
    big: Store, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """No statement of the commands that show jobs and how they are reads a big table from its beginning to its end."""
    plans = explained(monkeypatch, READING)
    with Store.open(big.url) as store:
        LOOKS[look](store)
    assert any("Index" in plan for plan in plans)
    assert [plan for plan in plans if read_whole(plan)] == []


def test_what_moves_one_of_many_jobs_finds_it_by_an_index(big: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has an effect, is asked about, is answered and is done costs the same however many there are."""
    plans = explained(monkeypatch, WRITING)
    graphs = ["one"]
    with Store.open(big.url) as store:
        store.enqueue("one", {})
        job = begin_running(store, graphs=graphs, lease_ms=60_000)
        begin_effect(store, job, "one")
        asked = settled(store, job, Outcome("effect", effect_key="one"))
        (review,) = store.reviews(asked)
        store.answer(review.public_id, "approve", value=None)
        job = begin_running(store, graphs=graphs, lease_ms=60_000)
        assert settled(store, job, Outcome("done", values={})).status == "done"
        store.enqueue("one", {"n": 2})
        job = begin_running(store, graphs=graphs, lease_ms=60_000)
        settled(store, job, Outcome("review", questions=[Question("interrupt", "subject", "question?")]))
        assert store.cancel(job.public_id).status == "failed"
        store.redrive(job.public_id)
        store.set_budget(job.public_id, {"steps": 9})
    assert len(plans) > 20
    assert [plan for plan in plans if read_whole(plan) or read_in_order(plan)] == []
