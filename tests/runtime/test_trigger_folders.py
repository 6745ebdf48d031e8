"""Watched folders and mail drops, with real files: what counts as complete, what lay there before, what comes twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from everstep import crash
from everstep.checkpoints import trigger_events
from everstep.checkpoints.store import Store
from everstep.checkpoints.trigger_events import Event
from everstep.errors import EventInvalid
from everstep.graphs.policies import Policies
from everstep.runtime.triggers import folders, mail, watching
from everstep.runtime.triggers.folders import Settling, Version
from everstep.runtime.triggers.watching import Watching
from tests.support.events import policies
from tests.support.record import CONTEXT
from tests.support.waiting import PATIENCE, until

MESSAGE = b"""\
From: =?utf-8?q?Ada_L=C3=B6velace?= <ada@example.org>
To: Bob <bob@example.org>, "Carl, Jr." <carl@example.org>
Cc: dora@example.org
Subject: =?utf-8?b?Q2Fmw6k=?= tomorrow
Message-ID: <1@example.org>
Date: Mon, 30 Nov 2026 10:00:00 +0100
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="b"

--b
Content-Type: multipart/alternative; boundary="a"

--a
Content-Type: text/plain; charset=iso-8859-1
Content-Transfer-Encoding: quoted-printable

At the caf=E9.
--a
Content-Type: text/html

<b>At the cafe</b>
--a--
--b
Content-Type: application/pdf
Content-Disposition: attachment; filename="menu.pdf"
Content-Transfer-Encoding: base64

JVBERi0=
--b--
"""


def inbox(**more: Any) -> Policies:
    """A watched folder."""
    mapping = {"log": [{"path": "/body/name"}]}
    return policies(inbox={"source": "folder", "folder": "in", "settle": 0, "input": mapping, **more})


def post(**more: Any) -> Policies:
    """A mail drop."""
    mapping = {"log": [{"path": "/body/subject"}]}
    return policies(post={"source": "mail", "folder": "in", "settle": 0, "input": mapping, **more})


@contextmanager
def watched(store: Store, given: Policies, folder: Path) -> Generator[None]:
    """Watch while entered."""
    watch = Watching(store, given, folder / "langgraph.json")
    watch.start()
    try:
        yield
    finally:
        watch.stop()


def events(store: Store) -> list[Event]:
    """Every event that was handled, oldest first."""
    return [event for event in store.read(trigger_events.every)[::-1] if event.state != "stored"]


def names(store: Store) -> list[str]:
    """The files there were events of."""
    return sorted(event.document()["body"]["name"] for event in events(store))


def drop(folder: Path, name: str, content: bytes = b"x") -> None:
    """Put a file there in one piece."""
    (folder / ".writing").write_bytes(content)
    (folder / ".writing").rename(folder / name)


# ---- folders


def test_what_lies_there_and_what_comes(shared: Store, tmp_path: Path) -> None:
    """Files from before the start and new ones are events; what is not wanted or unfinished, links, folders are not."""
    folder = tmp_path / "in"
    folder.mkdir()
    drop(folder, "before.csv")
    (folder / "sub").mkdir()
    drop(folder / "sub", "within.csv")
    (folder / "link.csv").symlink_to(folder / "before.csv")
    with watched(shared, inbox(patterns=["*.csv"]), tmp_path):
        until(lambda: names(shared) == ["before.csv"], "what lay there")
        for name in (".hidden.csv", "notes.txt", "half.csv.part"):
            (folder / name).write_bytes(b"x")
        (folder / "half.csv.part").rename(folder / "whole.csv")
        until(lambda: names(shared) == ["before.csv", "whole.csv"], "what came")
        drop(folder, "last.csv")
        until(lambda: "last.csv" in names(shared), "what came last")
    assert names(shared) == ["before.csv", "last.csv", "whole.csv"]
    event = next(event for event in events(shared) if "whole" in event.event_key)
    body = event.document()["body"]
    assert (body["path"], body["size"], event.source) == (str(folder / "whole.csv"), 1, "folder")
    assert {job.payload["log"][0] for job in shared.jobs()} == set(names(shared))


def test_a_file_that_changes_is_another_event(shared: Store, tmp_path: Path) -> None:
    """A restart makes no event of what was taken; a changed file is one more, with folders within if asked."""
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    drop(folder / "deep", "a.csv")
    given = inbox(recursive=True)
    for _ in range(2):
        with watched(shared, given, tmp_path):
            until(lambda: len(events(shared)) == 1, "the event")
    with watched(shared, given, tmp_path):
        drop(folder / "deep", "a.csv", b"changed")
        until(lambda: len(events(shared)) == 2, "the changed file")
    assert [event.document()["body"]["relative_path"] for event in events(shared)] == ["deep/a.csv"] * 2
    assert len(shared.jobs()) == 2


def test_a_file_counts_once_it_rests() -> None:
    """A file that grows is not complete; one that has not changed for the time is, once, until it changes again."""
    settling = Settling(2.0)
    assert settling.look({"a": Version(1, 1)}, 0.0) == {}
    assert settling.rests_in(0.5) == 1.5
    assert settling.look({"a": Version(2, 2)}, 1.9) == {}
    assert settling.look({"a": Version(2, 2)}, 3.8) == {}
    assert settling.look({"a": Version(2, 2)}, 3.9) == {"a": Version(2, 2)}
    assert settling.rests_in(5.0) == 0.0
    settling.take("a", Version(2, 2))
    assert (settling.look({"a": Version(2, 2)}, 9.0), settling.rests_in(9.0)) == ({}, None)
    assert settling.look({"a": Version(2, 3)}, 10.0) == {}
    assert settling.look({"a": Version(2, 3)}, 12.0) == {"a": Version(2, 3)}
    settling.take("a", Version(2, 3))
    assert settling.look({}, 13.0) == {}
    assert settling.look({"a": Version(2, 3)}, 14.0) == {}, "it came anew"
    assert settling.look({"a": Version(2, 3)}, 16.0) == {"a": Version(2, 3)}


def test_two_that_watch_take_each_file_once(shared: Store, tmp_path: Path) -> None:
    """Several processes may watch one folder: an event is stored once."""
    folder = tmp_path / "in"
    folder.mkdir()
    with watched(shared, inbox(), tmp_path), watched(shared, inbox(), tmp_path):
        for number in range(5):
            drop(folder, f"{number}.csv")
        until(lambda: len(events(shared)) == 5, "all")
    assert len(shared.jobs()) == 5


def test_a_folder_that_is_not_there_is_waited_for(
    shared: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """A missing folder is told once, and watched as soon as it is there."""
    monkeypatch.setattr(watching, "AGAIN_S", 0.05)
    with watched(shared, inbox(), tmp_path):
        until(lambda: "cannot look at" in caplog.text, "the warning")
        (tmp_path / "in").mkdir()
        drop(tmp_path / "in", "a.csv")
        until(lambda: names(shared) == ["a.csv"], "the event")
    assert (
        sum("cannot look at" in record.getMessage() for record in caplog.records if record.levelname == "WARNING") == 1
    )


def test_a_trigger_that_is_off_takes_nothing(shared: Store, tmp_path: Path) -> None:
    """`enabled = false` leaves the files where they are, unseen."""
    (tmp_path / "in").mkdir()
    drop(tmp_path / "in", "a.csv")
    with watched(shared, inbox(enabled=False), tmp_path):
        pass
    assert shared.read(trigger_events.every) == []


def test_a_name_that_is_no_text(shared: Store, tmp_path: Path) -> None:
    """A file whose name is no UTF-8 is an event, and fails by name instead of stopping the others."""
    folder = tmp_path / "in"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.csv")).write_bytes(b"x")
    with watched(shared, inbox(), tmp_path):
        drop(folder, "good.csv")
        until(lambda: len(events(shared)) == 2, "both")
    assert sorted(event.state for event in events(shared)) == ["failed", "started"]


def test_what_is_stored_is_handled_when_somebody_asks(shared: Store, tmp_path: Path) -> None:
    """Whoever watches handles what was left stored, at its start and when it is told of more."""
    (tmp_path / "in").mkdir()
    given = inbox()
    kept = {"trigger": "inbox", "source": "folder", "headers": {}, "body": {"name": "x"}, "occurred_at": None}
    shared.write(lambda c: trigger_events.store(c, **kept, key="1", now=1)).result()
    with watched(shared, given, tmp_path):
        until(lambda: len(events(shared)) == 1, "the leftover")
        event, _ = shared.write(lambda c: trigger_events.store(c, **kept, key="2", now=1)).result()
        shared.write(lambda c: trigger_events.set_stored(c, event)).result()
        until(lambda: len(events(shared)) == 2, "what was asked for")


# ---- mail


def test_a_message_is_read() -> None:
    """Who wrote to whom, about what, the plain text in its character set, and the attachments by name."""
    event = mail.event_of(MESSAGE, name="m.eml", file="/done/m.eml")
    assert event.key == "<1@example.org>"
    assert event.occurred_at == 1_796_029_200_000
    assert event.body == {
        "from": "ada@example.org",
        "to": ["bob@example.org", "carl@example.org"],
        "cc": ["dora@example.org"],
        "reply_to": [],
        "subject": "Café tomorrow",
        "message_id": "<1@example.org>",
        "in_reply_to": "",
        "date": "Mon, 30 Nov 2026 10:00:00 +0100",
        "text": "At the café.",
        "text_is_whole": True,
        "attachments": [{"name": "menu.pdf", "content_type": "application/pdf", "size": 5}],
        "name": "m.eml",
        "file": "/done/m.eml",
    }


@pytest.mark.parametrize(
    "content",
    [
        b"From: a@example.org\nContent-Type: text/plain; charset=klingon\n\nqapla\xff",
        b"From: a@example.org\nSubject: \xff\xfe\n\n\xff",
        b"From: a@example.org\nDate: yesterday\n\nx",
        b"From: <<<\nTo: ,,,@\nMessage-ID: <\n\nx",
        b"From: a@example.org\nContent-Type: multipart/mixed; boundary=x\n\nno parts",
        b"From: a@example.org\nContent-Type: message/rfc822\n\nFrom: b@example.org\n\ninner",
        b"Subject: =?utf-8?b?!!!?= =?x?q?=\n\n",
    ],
)
def test_odd_messages_are_read_all_the_same(content: bytes) -> None:
    """Unknown character sets, broken dates, addresses and structure give an event that has a JSON form."""
    event = mail.event_of(content, name="m.eml", file="f")
    str(event.body).encode()
    assert event.key


def test_what_is_no_message_is_refused() -> None:
    """Bytes without a header are no message."""
    for content in (b"", b"\x00\x01", b"just text"):
        with pytest.raises(EventInvalid):
            mail.event_of(content, name="m.eml", file="f")


def test_mail_is_taken_and_moved(shared: Store, tmp_path: Path) -> None:
    """A message goes to done, what cannot be read or is too large to failed; the same message twice is one event."""
    folder = tmp_path / "in"
    folder.mkdir()
    drop(folder, "before.eml", MESSAGE)
    with watched(shared, post(max_bytes=5000), tmp_path):
        until(lambda: len(events(shared)) == 1, "the message")
        drop(folder, "copy.eml", MESSAGE)
        drop(folder, "broken.eml", b"no message")
        drop(folder, "large.eml", MESSAGE + b" " * 5000)
        drop(folder, "notes.txt")
        until(lambda: {path.name for path in folder.iterdir() if path.is_file()} == {"notes.txt"}, "the moves")
    done, failed = (
        sorted(path.name.partition("-")[2] for path in (folder / at).iterdir()) for at in ("done", "failed")
    )
    assert (done, failed) == (["before.eml", "copy.eml"], ["broken.eml", "large.eml"])
    (event,) = events(shared)
    assert Path(event.document()["body"]["file"]).read_bytes() == MESSAGE
    assert [job.payload for job in shared.jobs()] == [{"log": ["Café tomorrow"]}]


def _watch(url: str, folder: Path, crash_at: str) -> None:
    crash.arm(crash_at)
    with Store.open(url) as store:
        watch = Watching(store, post(), folder / "langgraph.json")
        watch.start()
        watch._thread.join(PATIENCE)


@pytest.mark.both_databases
def test_a_kill_while_mail_is_taken(shared: Store, tmp_path: Path) -> None:
    """Killed between storing and moving, the message still lies there; the next process moves it, and it is one job."""
    folder = tmp_path / "in"
    folder.mkdir()
    drop(folder, "m.eml", MESSAGE)
    process = CONTEXT.Process(target=_watch, args=(shared.url, tmp_path, "trigger.stored"))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    assert (folder / "m.eml").exists()
    assert shared.jobs() == []
    with watched(shared, post(), tmp_path):
        until(lambda: shared.jobs() and not (folder / "m.eml").exists(), "the job and the move")
    assert len(shared.read(trigger_events.every)) == len(shared.jobs()) == 1


def test_present_tells_what_is_wanted(tmp_path: Path) -> None:
    """Names are matched by their letters' size; a folder that is not there is an error."""
    for name in ("a.csv", "A.CSV", "b.csv~", "c.tmp"):
        (tmp_path / name).touch()
    assert set(folders.present(tmp_path, ["*.csv"], ["*~"])) == {"a.csv"}
    with pytest.raises(FileNotFoundError):
        folders.present(tmp_path / "missing", ["*"])
