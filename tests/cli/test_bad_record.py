"""Records that cannot be used: every command says so alike, exits with its code, and leaves the file alone."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Prepared, with_graphs
from tests.cli.folder import Folder, Ran, is_refused

PAGE = 4096


@pytest.fixture(scope="session")
def sound(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The prepared record as one file, nothing of it left in the write-ahead log."""
    copy = prepared.folder.copy(tmp_path_factory.mktemp("sound") / "copy").path / "everstep.db"
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert connection.execute("PRAGMA page_size").fetchone() == (PAGE,)
    return copy.read_bytes()


def changed(content: bytes, *statements: str) -> Callable[[Path], bytes]:
    """The record after somebody ran SQL on it."""

    def change(path: Path) -> bytes:
        path.write_bytes(content)
        with closing(sqlite3.connect(path)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()
            connection.execute("PRAGMA journal_mode=DELETE")
        return path.read_bytes()

    return change


def with_damage(content: bytes, table: str) -> bytes:
    """The record with the first page of a table overwritten."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(content[:18] + b"\x01\x01" + content[20:])  # as if it had no write-ahead log
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    return content[: (page - 1) * PAGE] + b"\xff" * PAGE + content[page * PAGE :]


def every_command(job: str) -> list[tuple[str, ...]]:
    """Every command that opens the record."""
    adding, _ = some_commands()
    return [adding, ("worker", "--until-idle"), *commands_that_make_no_record(job)]


def commands_that_make_no_record(job: str) -> list[tuple[str, ...]]:
    """Every command that needs a record to be there."""
    return [
        ("jobs",),
        ("show", job),
        ("history", job),
        ("retry", job),
        ("cancel", job),
        ("review",),
        ("review", "list"),
        ("review", "show", job),
        ("review", "approve", job),
    ]


def some_commands(_job: str = "") -> list[tuple[str, ...]]:
    """A command that adds, and one that looks."""
    return [("submit", "count", "--input", '{"n": 5}'), ("jobs",)]


def refuses_all(folder: Folder, commands: list[tuple[str, ...]], code: int, error: str) -> list[Ran]:
    """Assert that the commands are refused alike, the record's bytes are what they were, and `doctor` finds it too."""
    record = folder.path / "everstep.db"
    before = record.read_bytes()
    *refused, doctor = folder.all(*commands, ("doctor", "--json"))
    for ran in refused:
        is_refused(ran, code, error)
    assert doctor.code == 1
    found = [finding for finding in doctor.value["findings"] if finding["check"] == "record"]
    assert [finding["level"] for finding in found] == ["wrong"]
    assert found[0]["advice"]
    assert before == record.read_bytes()
    return refused


@pytest.mark.parametrize(
    ("damage", "commands"),
    [
        (lambda content: random.Random(7).randbytes(20_000), every_command),
        (lambda content: content[: len(content) // 2 + 100], some_commands),
        (lambda content: content[:PAGE] + random.Random(7).randbytes(len(content) - PAGE), some_commands),
    ],
    ids=["random bytes", "truncated", "all pages but the first"],
)
def test_a_damaged_record_is_refused_by_every_command(
    damage: Callable[[bytes], bytes],
    commands: Callable[[str], list[tuple[str, ...]]],
    sound: bytes,
    prepared: Prepared,
    folder: Folder,
) -> None:
    """A file that is no database, was cut off, or holds damaged pages exits 65, and keeps its bytes for a recovery."""
    (folder.path / "everstep.db").write_bytes(damage(sound))
    refused = refuses_all(folder, commands(prepared.jobs["count"]), 65, "store_corrupt")
    assert all(".recover" in ran.err for ran in refused)


def test_damage_is_told_where_it_is_met(sound: bytes, prepared: Prepared, folder: Folder) -> None:
    """With a damaged page of checkpoints `history` says so, `doctor` finds it, and what needs no checkpoint works."""
    (folder.path / "everstep.db").write_bytes(with_damage(sound, "checkpoints"))
    history, show, doctor = folder.all(
        ("history", prepared.jobs["count"]), ("show", prepared.jobs["count"]), ("doctor", "--json")
    )
    is_refused(history, 65, "store_corrupt")
    assert show.code == 0
    assert doctor.code == 1
    assert any("damaged" in finding["detail"] for finding in doctor.value["findings"] if finding["level"] == "wrong")


def test_a_record_of_a_newer_version_is_refused(sound: bytes, folder: Folder) -> None:
    """A record with a higher schema number exits 65 and says to upgrade."""
    changed(sound, "UPDATE alembic_version SET version_num = '9999'")(folder.path / "everstep.db")
    refused = refuses_all(folder, [*some_commands(), ("worker", "--until-idle")], 65, "store_too_new")
    assert all("schema 9999" in ran.err and "upgrade" in ran.err for ran in refused)


def test_a_record_that_lacks_a_table_is_told(sound: bytes, prepared: Prepared, folder: Folder) -> None:
    """A record from which a table was dropped exits 65 and names it; so does the database of another program."""
    record = folder.path / "everstep.db"
    changed(sound, "DROP TABLE job_events")(record)
    for ran in folder.all(("show", prepared.jobs["count"]), ("submit", "count", "--input", '{"n": 6}')):
        is_refused(ran, 65, "store_corrupt")
        assert "job_events" in ran.err
    finding = folder.run("doctor").out
    assert "missing tables: job_events" in finding
    changed(sound, "UPDATE alembic_version SET version_num = 'ae1027a6acf'")(record)
    ran = folder.run("jobs")
    is_refused(ran, 65, "store_corrupt")
    assert "another program" in ran.err


def test_a_misspelled_record_is_told_and_not_made(prepared: Prepared, tmp_path: Path) -> None:
    """Where there is no record every command that only looks or answers exits 66 with its place; no file appears."""
    folder = with_graphs(tmp_path)
    before = sorted(tmp_path.iterdir())
    commands = commands_that_make_no_record(prepared.jobs["count"])
    for ran in folder.all(*((*command, "--store", "sqlite:///everstepp.db") for command in commands)):
        is_refused(ran, 66, "store_not_found")
        assert str(tmp_path / "everstepp.db") in ran.err
        assert "--store" in ran.err
    as_json = folder.run("jobs", "--json")
    assert (as_json.code, as_json.out, as_json.error["code"]) == (66, "", "store_not_found")
    assert as_json.error["path"] == str(tmp_path / "everstep.db")
    assert sorted(tmp_path.iterdir()) == before
    folder.submit("count")
    assert len(folder.json("jobs")) == 1


def test_another_programs_database_is_not_taken_for_a_record(folder: Folder) -> None:
    """Another program's file is refused by what looks and by what would make a record, and stays as it is."""
    database = folder.path / "everstep.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    before = database.read_bytes()
    for ran in folder.all(("jobs",), ("submit", "count", "--input", "{}"), ("worker", "--until-idle")):
        is_refused(ran, 65, "store_corrupt")
        assert "tables named notes" in ran.err
    doctor = folder.run("doctor")
    assert (doctor.code, "✗ record" in doctor.out) == (1, True)
    assert database.read_bytes() == before


def test_a_missing_folder_is_not_made(folder: Folder) -> None:
    """A record in a folder that does not exist exits 69 and says how to make it; nothing is made."""
    for ran in folder.all(*((*command, "--store", "sqlite:///no/such.db") for command in some_commands())):
        is_refused(ran, 69, "store_unavailable")
        assert f"mkdir -p {folder.path / 'no'}" in ran.err
    assert not (folder.path / "no").exists()


@pytest.mark.parametrize(
    ("url", "code", "error", "says"),
    [
        ("postgresql://ada:hunter2@db/everstep?no_such=1", 64, "store_url_invalid", "PostgreSQL's library"),
        ("mysql://ada:hunter2@db/everstep", 64, "store_url_invalid", "not a store URL"),
        ("everstep.db", 64, "store_url_invalid", "not a store URL"),
        ("sqlite://everstep.db", 64, "store_url_invalid", "three slashes"),
        ("sqlite:///:memory:", 64, "store_url_invalid", "not a store URL"),
        ("sqlite:///everstep.db?mode=ro", 64, "store_url_invalid", "no parameters"),
        ("", 64, "store_url_invalid", "not a store URL"),
        ("sqlite:///.", 69, "store_unavailable", "is a folder"),
        ("sqlite:///graphs.py/everstep.db", 69, "store_unavailable", "graphs.py"),
    ],
)
def test_a_store_of_the_wrong_kind_is_refused(url: str, code: int, error: str, says: str, tmp_path: Path) -> None:
    """A URL of another database, a path without a scheme, a folder: refused with what to write, no password shown."""
    folder = with_graphs(tmp_path)
    for ran in folder.all(("jobs", "--store", url), ("submit", "count", "--input", "{}", "--store", url)):
        is_refused(ran, code, error)
        assert says in ran.err
        assert "hunter2" not in ran.err


@pytest.mark.parametrize(
    ("file", "parent"),
    [(0o444, 0o755), (0o444, 0o555), (0o000, 0o755), (0o644, 0o000)],
    ids=["file read-only", "file and folder read-only", "file unreadable", "folder closed"],
)
def test_a_record_that_may_not_be_written_is_refused(
    file: int, parent: int, sound: bytes, prepared: Prepared, tmp_path: Path
) -> None:
    """A record that is read-only, unreadable, or in such a folder exits 69 from all that writes, a worker too."""
    folder = with_graphs(tmp_path)
    place = tmp_path / "place"
    place.mkdir()
    record = place / "everstep.db"
    record.write_bytes(sound)
    record.chmod(file)
    place.chmod(parent)
    try:
        store = ("--store", f"sqlite:///{record}")
        readable = (file, parent) == (0o444, 0o755)
        *writing, show, doctor = folder.all(
            ("worker", "--until-idle", *store) if readable else ("submit", "count", "--input", '{"n": 5}', *store),
            ("retry", prepared.jobs["fails"], *store),
            ("show", prepared.jobs["count"], *store),
            ("doctor", *store),
            unprivileged=True,
        )
    finally:
        place.chmod(0o755)
    for ran in writing:
        is_refused(ran, 69, "store_unavailable")
    assert (show.code == 0) is readable
    assert (doctor.code, "✗ record" in doctor.out) == (1, True)
    record.chmod(0o644)
    assert record.read_bytes() == sound


def test_a_record_cannot_be_made_in_a_read_only_folder(tmp_path: Path) -> None:
    """In a folder that may not be written a new record is refused with 69, by `doctor` as well."""
    folder = with_graphs(tmp_path)
    tmp_path.chmod(0o555)
    try:
        submit, doctor = folder.all(("submit", "count", "--input", "{}"), ("doctor",), unprivileged=True)
    finally:
        tmp_path.chmod(0o755)
    is_refused(submit, 69, "store_unavailable")
    assert (doctor.code, "✗ record" in doctor.out) == (1, True)
    assert not (tmp_path / "everstep.db").exists()
