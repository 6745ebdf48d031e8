"""Opening a record: new, old, newer, foreign, damaged, read-only, by many at once."""

from __future__ import annotations

import os
import random
import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from everstep.checkpoints import migrate, sqlite
from everstep.checkpoints.schema import metadata
from everstep.checkpoints.store import Store
from everstep.errors import (
    EverstepError,
    StoreCorrupt,
    StoreNotFound,
    StoreTooNew,
    StoreUnavailable,
    StoreUrlInvalid,
)
from tests.support.record import in_processes, read_only_file, read_only_folder

SAVER_TABLES = {"checkpoints", "writes", "store", "store_migrations"}


JOB = "01a00000-0000-7000-8000-000000000001"


def url(path: Path) -> str:
    """The store URL of a file."""
    return f"sqlite:///{path}"


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, with its bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_new_file_becomes_a_record(tmp_path: Path) -> None:
    """Opening a name that does not exist yet makes a record: every table, WAL mode, full synchronisation."""
    with Store.open(url(tmp_path / "record.db")) as store:
        assert store.missing_tables() == []
        pragma = {
            name: store.write(lambda c, name=name: c.exec_driver_sql(f"PRAGMA {name}").scalar_one()).result()
            for name in ("journal_mode", "synchronous", "foreign_keys", "journal_size_limit")
        }
        assert pragma == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "journal_size_limit": 64 * 2**20}
        assert store.jobs() == []


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    """A record that is up to date is opened without a write, and keeps its jobs."""
    with Store.open(url(tmp_path / "record.db")) as store:
        job, _ = store.enqueue("graph", {"a": 1})
    before = (tmp_path / "record.db").read_bytes()
    with Store.open(url(tmp_path / "record.db")) as store:
        assert [found.public_id for found in store.jobs()] == [job.public_id]
        assert store.commits == 0
    assert (tmp_path / "record.db").read_bytes() == before


def test_an_empty_file_becomes_a_record(tmp_path: Path) -> None:
    """A file of zero bytes, as `mktemp` leaves it, is a new record."""
    (tmp_path / "record.db").touch()
    with Store.open(url(tmp_path / "record.db")) as store:
        assert store.enqueue("graph", {}).created


def test_a_stock_savers_file_becomes_a_record_and_keeps_its_threads(tmp_path: Path) -> None:
    """A file that LangGraph's own saver wrote can be opened; what it holds stays."""
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(tmp_path / "record.db")) as saver:
        config = saver.put(
            {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}, empty_checkpoint(), {"step": 0}, {}
        )
    with Store.open(url(tmp_path / "record.db")) as store:
        from everstep.checkpoints.saver import StepSaver

        found = StepSaver(store).get_tuple(config)
        assert found is not None
        assert found.metadata["step"] == 0


def test_the_migrations_make_the_schema(tmp_path: Path) -> None:
    """Alembic finds no difference between a migrated record and `schema.py`."""
    path = tmp_path / "record.db"
    sqlite.prepare(path)
    engine = sqlite.reading_engine(path)
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "compare_server_default": True,
                "include_object": lambda thing, name, kind, reflected, other: (
                    not (kind == "table" and name in SAVER_TABLES)
                ),
            },
        )
        assert compare_metadata(context, metadata) == []
        checks = connection.exec_driver_sql("SELECT sql FROM sqlite_schema WHERE type = 'table'").scalars().all()
    engine.dispose()
    written = " ".join(checks)
    for table in metadata.tables.values():
        for constraint in table.constraints:
            name = str(constraint.name or "")
            assert not name.startswith("ck_") or name in written


def test_a_record_of_the_first_schema_is_brought_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an older Everstep wrote is there after the migration."""
    path = tmp_path / "record.db"
    monkeypatch.setattr(migrate, "HEAD", "0001")
    sqlite.prepare(path)
    monkeypatch.undo()
    values = f"'{JOB}', 'k', 'd', '{{}}', 'graph', 't', '1', 'done', 5, 3, 0, 0, 0"
    columns = (
        "public_id, idempotency_key, payload_digest, payload_json, graph, thread_id, workflow_version, status,"
        " priority, max_attempts, next_run_at, created_at, updated_at"
    )
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"INSERT INTO agent_jobs ({columns}) VALUES ({values})")
        connection.execute(
            "INSERT INTO effects (key, job_id, name, state, claim_no, calls, arguments_digest, arguments_json,"
            " created_at, updated_at) VALUES ('k', 1, 'mail', 'confirmed', 1, 1, 'd', '{}', 0, 0)"
        )
    with Store.open(url(path)) as store:
        assert [(effect.name, effect.place) for effect in store.effects(store.job(JOB))] == [("mail", None)]
        assert store.missing_tables() == []


def _open_and_enqueue(path: str, number: int) -> None:
    with Store.open(url(Path(path))) as store:
        assert store.missing_tables() == []
        assert store.enqueue("graph", {"number": number}).created


def test_many_processes_open_a_new_record_at_once(tmp_path: Path) -> None:
    """Eight processes that create the same record at the same moment all get it, complete, and migrated once."""
    path = str(tmp_path / "record.db")
    in_processes(_open_and_enqueue, [(path, number) for number in range(8)])
    with Store.open(url(Path(path))) as store:
        assert sorted(job.payload["number"] for job in store.jobs()) == list(range(8))
        assert store.read(lambda c: c.exec_driver_sql("SELECT count(*) FROM alembic_version").scalar_one()) == 1


def test_many_threads_open_new_records_at_once(tmp_path: Path) -> None:
    """Threads of one process that each create a record do not disturb each other's migrations."""
    problems: list[BaseException] = []
    barrier = threading.Barrier(6)

    def work(number: int) -> None:
        try:
            barrier.wait(20)
            _open_and_enqueue(str(tmp_path / f"{number}.db"), number)
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []


def test_a_newer_record_is_refused_untouched(tmp_path: Path) -> None:
    """A record of a later schema is refused with both versions named, and not a byte of it changes."""
    path = tmp_path / "record.db"
    Store.open(url(path)).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE alembic_version SET version_num = '0999'")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match=rf"0999.*{migrate.HEAD}") as refused:
        Store.open(url(path))
    assert "upgrade" in refused.value.next_step
    assert path.read_bytes() == before


def test_a_database_migrated_by_another_program_is_refused_untouched(tmp_path: Path) -> None:
    """A database whose Alembic version is none of ours belongs to somebody else; nothing is added to it."""
    for version in ("ae1027a6acf", "00009"):
        path = tmp_path / f"{version}.db"
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES (?)", (version,))
        connection.commit()
        connection.close()
        before = path.read_bytes()
        with pytest.raises(StoreCorrupt, match="another program"):
            Store.open(url(path))
        assert path.read_bytes() == before


def test_random_bytes_are_refused_untouched(tmp_path: Path) -> None:
    """A file that is no database is refused as corrupt, stays as it is, and gets no companions."""
    for size in (2, 100, 4096, 70_000):
        (tmp_path / f"{size}.db").write_bytes(random.Random(size).randbytes(size))
    before = contents(tmp_path)
    for name in before:
        with pytest.raises(StoreCorrupt, match="not a SQLite database") as refused:
            Store.open(url(tmp_path / name))
        assert refused.value.next_step
        assert refused.value.ids["path"] == str(tmp_path / name)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("kept", [16, 50, 100, 4096, 12_388, 0.5])
def test_a_truncated_record_is_refused(tmp_path: Path, kept: float) -> None:
    """A record that lost its end is refused as corrupt, and what is left of it stays as it is."""
    path = tmp_path / "record.db"
    with Store.open(url(path)) as store:
        for number in range(30):
            store.enqueue("graph", {"number": number, "text": "x" * 500})
    whole = path.read_bytes()
    rest = whole[: int(kept if kept > 1 else len(whole) * kept)]
    path.write_bytes(rest)
    with pytest.raises(StoreCorrupt):
        Store.open(url(path))
    assert path.read_bytes() == rest


def test_damage_inside_a_record_is_named_when_it_is_met(tmp_path: Path) -> None:
    """Where the first pages are whole, whoever meets a damaged one gets StoreCorrupt and not a driver's error."""
    path = tmp_path / "record.db"
    with Store.open(url(path)) as store:
        for number in range(200):
            store.enqueue("graph", {"number": number, "text": "x" * 1000})
        table = "SELECT rootpage FROM sqlite_schema WHERE name = 'agent_jobs'"
        page = store.read(lambda c: c.exec_driver_sql(table).scalar_one())
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = b"\xab" * 4096
    path.write_bytes(bytes(content))
    with Store.open(url(path)) as store:
        with pytest.raises(StoreCorrupt):
            store.jobs()
        with pytest.raises(StoreCorrupt):
            store.enqueue("graph", {"number": -1})


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A record in a folder that does not exist is refused with the command that makes the folder, which is not made."""
    with pytest.raises(StoreUnavailable, match="folder") as refused:
        Store.open(url(tmp_path / "missing" / "record.db"))
    assert str(tmp_path / "missing") in refused.value.next_step
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ending", ["", "/"])
def test_a_folder_is_no_record(tmp_path: Path, ending: str) -> None:
    """The path of a folder is refused as one."""
    with pytest.raises(StoreUnavailable, match="is a folder"):
        Store.open(url(tmp_path) + ending)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "record.db",
        "sqlite:///",
        "sqlite://record.db",
        "sqlite:///:memory:",
        "mysql://host/database",
        "sqlite:///record.db?mode=ro",
    ],
)
def test_a_wrong_url_is_refused_with_the_right_form(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL that names no file, or asks for something a record has not, is refused with the form of a good one."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreUrlInvalid) as refused:
        Store.open(wrong)
    assert "sqlite:///FILE" in refused.value.next_step
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "refusal"),
    [
        ("postgresql://user:hunter2@127.0.0.1:1/database", StoreUnavailable),
        ("postgresql://user:hunter2@host/database?no_such=parameter", StoreUrlInvalid),
        ("mysql://user:hunter2@host/database", StoreUrlInvalid),
    ],
)
def test_a_refused_url_shows_no_password(url: str, refusal: type[Exception]) -> None:
    """Whatever is wrong with a URL, its password is not in the message."""
    with pytest.raises(refusal) as refused:
        Store.open(url)
    assert "hunter2" not in str(refused.value) + str(refused.value.as_dict())


def test_relative_and_absolute_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes name a file of the working folder, four an absolute path; both stay so if the folder changes."""
    monkeypatch.chdir(tmp_path)
    with Store.open("sqlite:///record.db") as store:
        monkeypatch.chdir("/")
        assert store.enqueue("graph", {}).created
        assert store.path == tmp_path / "record.db"
    with Store.open(f"sqlite:////{str(tmp_path).lstrip('/')}/record.db") as store:
        assert len(store.jobs()) == 1


def test_a_read_only_file_can_be_looked_at_but_not_written(tmp_path: Path) -> None:
    """A record whose file is read-only can be read; a write is refused as StoreUnavailable, and changes nothing."""
    path = tmp_path / "record.db"
    with Store.open(url(path)) as store:
        store.enqueue("graph", {"number": 1})
    before = path.read_bytes()
    with read_only_file(path):
        with Store.open(url(path)) as store:
            assert len(store.jobs()) == 1
            with pytest.raises(StoreUnavailable, match="read-only") as refused:
                store.enqueue("graph", {"number": 2})
            assert "writable" in refused.value.next_step
            assert len(store.jobs()) == 1
        assert path.read_bytes() == before


def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    """In a folder that cannot be written no record is made; the refusal has a next step, and nothing is left behind."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with read_only_folder(folder):
        with pytest.raises(StoreUnavailable) as refused:
            Store.open(url(folder / "record.db"))
        assert refused.value.next_step
        assert list(folder.iterdir()) == []


def test_a_record_in_a_read_only_folder_is_never_half_written(tmp_path: Path) -> None:
    """A record on a read-only medium is either refused or read; a write to it is refused, and no byte changes."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with Store.open(url(folder / "record.db")) as store:
        store.enqueue("graph", {"number": 1})
    before = contents(folder)
    with read_only_folder(folder):
        with pytest.raises(StoreUnavailable), Store.open(url(folder / "record.db")) as store:
            store.enqueue("graph", {"number": 2})
        assert contents(folder) == before


def test_every_refusal_can_be_explained(tmp_path: Path) -> None:
    """Each refusal to open is an EverstepError with a code, an exit code that is not zero, and a next step."""
    (tmp_path / "bytes.db").write_bytes(os.urandom(5000))
    for wrong in (url(tmp_path / "bytes.db"), url(tmp_path / "no" / "record.db"), url(tmp_path), "nonsense"):
        with pytest.raises(EverstepError) as refused:
            Store.open(wrong)
        assert refused.value.code != "everstep_error"
        assert refused.value.exit_code > 2
        assert refused.value.next_step


def test_a_record_is_made_only_where_it_may_be(tmp_path: Path) -> None:
    """With `create=False` a missing record is StoreNotFound, and no file appears; one that is there opens."""
    record = tmp_path / "record.db"
    with pytest.raises(StoreNotFound, match=re.escape(str(record))):
        Store.open(url(record), create=False)
    assert contents(tmp_path) == {}
    Store.open(url(record)).close()
    Store.open(url(record), create=False).close()
