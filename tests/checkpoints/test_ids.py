"""How ids are found by their beginning: by an index, and in every database's way to compare text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import Connection, String, column, select, text

from everstep.checkpoints.database import has_id
from everstep.checkpoints.schema import agent_jobs
from everstep.checkpoints.store import Store
from tests.support.record import record

pytestmark = pytest.mark.both_databases


@pytest.mark.parametrize("length", [1, 8, 9, 18, 35, 36])
def test_the_beginning_of_an_id_is_found_by_the_index(store: Store, length: int) -> None:
    """However many jobs there are, an id or its beginning is looked for in the index of ids, never in every row."""
    begins = "01a22c8f-0cea-730a-b128-65662c60cd3f"[:length]
    found = str(
        select(agent_jobs.c.graph)
        .where(has_id(agent_jobs.c.public_id, begins))
        .compile(dialect=store.read(lambda connection: connection.dialect), compile_kwargs={"literal_binds": True})
    )

    def plan(connection: Connection) -> str:
        if connection.dialect.name == "sqlite":
            return str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {found}").all())
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        return str(connection.exec_driver_sql(f"EXPLAIN {found}").all())

    told = store.read(plan)
    assert re.search(r"SEARCH agent_jobs USING INDEX .*\(public_id|Index Cond: .*public_id", told), told


def test_collations_of_any_language_find_an_id_by_its_beginning(database: str, tmp_path: Path) -> None:
    """Where the database compares text as a language does, which may skip dashes, a beginning of an id finds it."""
    given = ["01a22c8f-0cea-7000-8000-000000000000", "01a22c8f-0ceb-7fff-bfff-ffffffffffff"]
    with record(database, tmp_path) as store:

        def found(connection: Connection, collation: str, begins: str) -> list[str]:
            rows = " UNION ALL ".join(f"SELECT '{one}' COLLATE \"{collation}\" AS id" for one in given)
            query = text(rows).columns(column("id", String)).subquery("ids")
            return list(connection.execute(select(query.c.id).where(has_id(query.c.id, begins))).scalars())

        known = "SELECT collname FROM pg_collation WHERE collname IN ('C', 'en_US.utf8', 'en-x-icu', 'und-x-icu')"
        if database == "sqlite":
            known = "SELECT name FROM pragma_collation_list WHERE name IN ('BINARY', 'NOCASE')"
        collations = store.read(lambda connection: list(connection.exec_driver_sql(known).scalars()))
        assert collations
        for collation in collations:
            for one in given:
                for length in range(13, 36):
                    assert store.read(lambda c, of=(collation, one[:length]): found(c, *of)) == [one], collation
