"""Dead letters are announced: who is told what, how often, and what a receiver that fails or hangs changes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import random
import signal
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from everstep import crash
from everstep.checkpoints import dead_letters as letters
from everstep.checkpoints import migrate, sqlite
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock, SystemClock
from everstep.errors import ConfigInvalid
from everstep.graphs.policies import DeadLettersSection, Policies, read_policies
from everstep.runtime import dead_letters, webhook
from everstep.runtime.dead_letters import HOLD_MS, DeadLetters, wait_ms
from everstep.runtime.webhook import SECRET_VARIABLE, Webhook, secrets_of
from everstep.runtime.worker import Worker
from tests.support.jobs import chain, work
from tests.support.receiver import SILENCE, Receiver
from tests.support.record import CONTEXT, fresh
from tests.support.waiting import PATIENCE

HOUR_MS = 3_600_000
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdefghijklmnopqrstuv").decode()


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What the log says; no secret is set."""
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    caplog.set_level(logging.INFO, "everstep")
    return caplog


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that takes everything."""
    with Receiver().open() as receiver:
        yield receiver


def breaks(message: str = "no such branch") -> Any:
    """A graph that fails."""

    def node(_state: Any) -> Any:
        raise ValueError(message)

    return chain(lambda _s: {"log": [1]}, node)


def fail(store: Store, *inputs: Any, message: str = "no such branch") -> list[Job]:
    """Jobs that failed, by a worker that tells nobody."""
    ids = [store.enqueue("graph", {"log": [one]}).job.public_id for one in inputs or ("a",)]
    work_quietly(store, breaks(message))
    return [store.job(one) for one in ids]


def work_quietly(store: Store, graph: Any) -> None:
    """Work with a worker whose dead letters are somebody else's."""
    quiet = pytest.MonkeyPatch()
    with quiet.context() as patched:
        patched.setattr(DeadLetters, "look", lambda _self, **_more: None)
        work(store, graph)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The announcements in the log."""
    return [
        record.getMessage()
        for record in caplog.records
        if (record.name, record.levelno) == ("everstep.dead_letters", logging.ERROR)
    ]


def mark(store: Store, job: Job) -> int | None:
    """When the job was announced."""
    return store.job_by_row(job.id).announced_at


# ---- what is told


@pytest.mark.both_databases
def test_a_job_that_failed_is_told_once(store: Store, receiver: Receiver, told: Any) -> None:
    """One line in the log and one message: which job, what went wrong, where, when; and what to do."""
    (job,) = fail(store)
    announcer = DeadLetters(store, receiver.url)
    for _ in range(3):
        announcer.look(everywhere=True)
    (message,) = receiver.messages
    (event,) = [event for event in store.events(job) if event["to"] == "failed"]
    value = message.value
    assert value.pop("event") == message.headers["webhook-id"]
    assert value == {
        "type": "job.failed",
        "id": job.public_id,
        "graph": "graph",
        "status": "failed",
        "error": {"code": "unhandled_exception", "type": "ValueError", "message": "no such branch"},
        "step": job.step,
        "node": "node_1",
        "attempts": 1,
        "failed_at": event["at"],
    }
    assert message.headers["content-type"] == "application/json"
    assert mark(store, job) == store.clock.now_ms()
    (line,) = lines(told)
    for part in (job.public_id, "graph graph", "ValueError: no such branch", f"everstep dlq show {job.public_id}"):
        assert part in line


@pytest.mark.both_databases
def test_without_a_webhook_the_log_tells(store: Store, told: Any) -> None:
    """Without a webhook each job is told in the log, once, the oldest failure first, and is marked too."""
    jobs = fail(store, *range(5))
    for announcer in (DeadLetters(store, None), DeadLetters(store, None)):
        announcer.look()
    assert [line.split()[1] for line in lines(told)] == [job.public_id for job in jobs]
    assert all(mark(store, job) == store.clock.now_ms() for job in jobs)


@pytest.mark.both_databases
def test_what_a_person_ended_is_not_told(store: Store, receiver: Receiver, told: Any) -> None:
    """A job that was cancelled, or whose review was rejected, is no dead letter."""
    cancelled, _ = store.enqueue("graph", {"log": ["cancelled"]})
    store.cancel(cancelled.public_id)
    rejected, _ = store.enqueue("graph", {"log": ["rejected"]})
    work(store, chain(lambda _s: {}["missing"]))
    store.answer(store.reviews()[0].public_id, "reject")
    DeadLetters(store, receiver.url).look()
    for job in (cancelled, rejected):
        job = store.job(job.public_id)
        assert (job.status, job.cancel_requested_at is not None, job.announced_at) == ("failed", True, None)
    assert (receiver.messages, lines(told)) == ([], [])
    store.redrive(cancelled.public_id)
    work_quietly(store, breaks())
    DeadLetters(store, receiver.url).look()
    assert receiver.jobs == [cancelled.public_id]


@pytest.mark.both_databases
def test_a_job_that_fails_again_is_told_again(store: Store, receiver: Receiver, told: Any) -> None:
    """After a retry the next failure is another event, told as the first was."""
    (job,) = fail(store)
    announcer = DeadLetters(store, receiver.url)
    announcer.look()
    assert store.redrive(job.public_id).announced_at is None
    announcer.look(everywhere=True)
    assert len(receiver.messages) == 1
    work_quietly(store, breaks())
    announcer.look()
    assert receiver.jobs == [job.public_id] * 2
    assert len({message.headers["webhook-id"] for message in receiver.messages}) == 2
    assert len(lines(told)) == 2


def test_credentials_leave_in_no_message(store: Store, told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks like a credential in an error, the webhook's secret and its address are in no message, line or row."""
    monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    with Receiver(500).open() as receiver:
        fail(store, message=f"refused: {SECRET} and https://ada:hunter2@example.org")
        announcer = DeadLetters(store, receiver.url)
        announcer.look()
        store.clock.advance(HOUR_MS)  # type: ignore[attr-defined]
        announcer.look()
    assert len(receiver.messages) == 2
    told_so_far = "\n".join(record.getMessage() for record in told.records)
    sent = b"".join(message.body for message in receiver.messages).decode()
    row = json.dumps([store.job(receiver.jobs[0]).error_json, store.evidence(store.job(receiver.jobs[0]))])
    for text in (told_so_far, sent, row, repr(Webhook(receiver.url, secrets_of()))):
        for secret in (SECRET, SECRET.removeprefix("whsec_"), "hunter2", "in-the-address"):
            assert secret not in text
    assert "http://127.0.0.1" in told_so_far  # of the address, what may be shown


def test_what_failed_before_an_upgrade_is_old_news(
    tmp_path: Path, receiver: Receiver, told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that failed under a version that announced nothing are not announced by this one."""
    path = tmp_path / "record.db"
    monkeypatch.setattr(migrate, "HEAD", "0002")
    sqlite.prepare(path)
    monkeypatch.undo()
    columns = (
        "public_id, idempotency_key, payload_digest, payload_json, graph, thread_id, workflow_version, status,"
        " priority, max_attempts, next_run_at, created_at, updated_at"
    )
    with closing(sqlite3.connect(path)) as connection, connection:
        values = "'01a00000-0000-7000-8000-000000000001', 'k', 'd', '{}', 'g', 't', '1', 'failed', 5, 3, 0, 0, 7"
        connection.execute(f"INSERT INTO agent_jobs ({columns}) VALUES ({values})")
        connection.execute(
            "INSERT INTO job_events (job_id, to_status, claim_no, at, actor, reason) VALUES (1, 'failed', 1, 7, '', '')"
        )
    with Store.open(f"sqlite:///{path}") as store:
        DeadLetters(store, receiver.url).look()
        assert store.job("01a0").announced_at == 7
    assert (receiver.messages, lines(told)) == ([], [])


# ---- a receiver that fails


@pytest.mark.both_databases
@pytest.mark.parametrize("status", [500, 429, 404, 302])
def test_what_is_not_taken_is_sent_again(store: Store, clock: ManualClock, status: int, told: Any) -> None:
    """Anything but a 2xx is tried again later, with the same id, by whichever worker looks; the log has it once."""
    with Receiver(status, status).open() as receiver:
        (job,) = fail(store)
        first, second = DeadLetters(store, receiver.url), DeadLetters(store, receiver.url)
        first.look()
        first.look(everywhere=True)
        second.look()
        assert len(receiver.messages) == 1
        waiting = mark(store, job)
        assert waiting is not None
        assert -waiting >= clock.now_ms() + dead_letters.LEAST_WAIT_MS
        clock.advance(-waiting - clock.now_ms() - 1)
        first.look()
        assert len(receiver.messages) == 1
        clock.advance(1)
        first.look()
        assert len(receiver.messages) == 2
        clock.advance(HOUR_MS)
        first.look()
        first.look(everywhere=True)
    assert len(receiver.messages) == 3
    assert len({message.headers["webhook-id"] for message in receiver.messages}) == 1
    assert mark(store, job) == clock.now_ms()
    assert len(lines(told)) == 1
    assert receiver.followed == 0, "a redirect was followed"


@pytest.mark.both_databases
def test_a_receiver_that_is_gone_is_not_asked_for_each(store: Store, clock: ManualClock, told: Any) -> None:
    """With nobody at the address all letters are in the log at once, one is tried; later all are delivered."""
    with closing(socket.create_server(("127.0.0.1", 0))) as nobody:
        port = nobody.getsockname()[1]
    fail(store, *range(4))
    announcer = DeadLetters(store, f"http://127.0.0.1:{port}/")
    announcer.look()
    assert len(lines(told)) == 4
    tries = [record for record in told.records if "did not take" in record.getMessage()]
    assert len(tries) == 1
    with Receiver().open() as receiver:
        announcer._webhook = Webhook(receiver.url)
        clock.advance(HOUR_MS)
        announcer.look()
        assert len(set(receiver.jobs)) == len(receiver.jobs) == 4
    assert len(lines(told)) == 4


@pytest.mark.both_databases
def test_a_message_that_is_refused_holds_up_no_other(store: Store, told: Any) -> None:
    """A receiver that refuses one message is sent the next at once."""
    with Receiver(400).open() as receiver:
        jobs = fail(store, *range(3))
        DeadLetters(store, receiver.url).look()
    assert receiver.jobs == [job.public_id for job in jobs]
    assert [(mark(store, job) or 0) > 0 for job in jobs] == [False, True, True]


def test_waits_double() -> None:
    """A letter waits as long as it has waited so far: 5 s to an hour, and up to a quarter more by chance."""

    class Least(random.Random):
        def random(self) -> float:
            return 0.0

    waited = [0]
    for _ in range(12):
        waited.append(waited[-1] + wait_ms(0, waited[-1], Least()))
    assert [after - before for before, after in pairwise(waited)][:6] == [
        5_000,
        5_000,
        10_000,
        20_000,
        40_000,
        80_000,
    ]
    assert waited[-1] - waited[-2] == HOUR_MS
    assert wait_ms(100, 0, Least()) == 5_000  # a clock that was put back
    assert all(5_000 <= wait_ms(0, 0, random.Random(seed)) <= 6_250 for seed in range(50))


@pytest.mark.both_databases
def test_two_workers_send_each_message_once(store: Store, receiver: Receiver) -> None:
    """Of workers that look at the same time, each letter is one's."""
    jobs = fail(store, *range(12))
    threads = [threading.Thread(target=DeadLetters(store, receiver.url).look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(receiver.jobs) == sorted(job.public_id for job in jobs)


@pytest.mark.both_databases
def test_a_retry_while_it_is_told_is_not_marked(store: Store, receiver: Receiver) -> None:
    """A job that is retried between message and mark stays unmarked, so that its next failure is told."""
    (job,) = fail(store)
    now = store.clock.now_ms()
    (letter,) = store.write(lambda c: letters.take(c, now=now, until=now + 1, limit=9)).result()
    store.redrive(job.public_id)
    assert not store.write(lambda c: letters.mark(c, letter, announced_at=now)).result()
    work_quietly(store, breaks())
    assert mark(store, job) is None
    assert not store.write(lambda c: letters.mark(c, letter, announced_at=now)).result()
    DeadLetters(store, receiver.url).look()
    assert receiver.jobs == [job.public_id]


# ---- the worker


def policies(receiver: Receiver) -> Policies:
    """What `everstep.toml` would say."""
    return Policies(dead_letters=DeadLettersSection(webhook=receiver.url))


@pytest.mark.both_databases
def test_a_worker_tells_before_it_leaves(store: Store, receiver: Receiver, told: Any) -> None:
    """A worker that runs until idle has told of its own jobs, and of those others left, when it returns."""
    (left,) = fail(store, "left by another")
    job, _ = store.enqueue("graph", {"log": ["mine"]})
    work(store, breaks(), policies=policies(receiver))
    assert receiver.jobs == [left.public_id, job.public_id]
    assert len(lines(told)) == 2


def test_a_worker_tells_while_it_runs(shared: Store, receiver: Receiver) -> None:
    """A failure is told by the worker's own thread, while its jobs go on."""
    told = threading.Event()

    def waits(_state: Any) -> Any:
        assert told.wait(PATIENCE)
        return {"log": ["done"]}

    shared.enqueue("waits", {"log": []})
    shared.enqueue("breaks", {"log": []})
    worker = Worker(shared, {"waits": chain(waits), "breaks": breaks()}, policies=policies(receiver))
    running = threading.Thread(target=lambda: worker.run(until_idle=True))
    running.start()
    assert receiver.asked.wait(PATIENCE)
    told.set()
    running.join(PATIENCE)
    assert not running.is_alive()
    assert {job.graph: job.status for job in shared.jobs()} == {"waits": "done", "breaks": "failed"}


def test_a_receiver_that_hangs_stops_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a receiver that never answers, jobs go on and the worker leaves; the letter is kept for another try."""
    monkeypatch.setattr(webhook, "TIMEOUT_S", 10 * PATIENCE)
    monkeypatch.setattr(dead_letters, "TIMEOUT_S", 10 * PATIENCE)
    with Receiver(SILENCE).open() as receiver:
        (left,) = fail(store)

        def waits(_state: Any) -> Any:
            assert receiver.asked.wait(PATIENCE)  # it hangs by now
            return {"log": ["done"]}

        job, _ = store.enqueue("graph", {"log": ["goes on"]})
        work(store, chain(waits), policies=policies(receiver))
        assert store.job(job.public_id).status == "done"
        assert (mark(store, left) or 0) < 0


def _work_and_die(url: str, webhook_url: str) -> None:
    crash.arm("dead_letter.sent")
    with Store.open(url) as store:
        Worker(
            store, {"graph": breaks()}, policies=Policies(dead_letters=DeadLettersSection(webhook=webhook_url))
        ).run()


def test_a_kill_between_answer_and_mark_tells_twice(tmp_path: Path, receiver: Receiver) -> None:
    """A worker killed between the receiver's answer and the mark: told again, by the same id; never zero."""
    with fresh(tmp_path) as store:
        job, _ = store.enqueue("graph", {"log": []})
        process = CONTEXT.Process(target=_work_and_die, args=(store.url, receiver.url))
        process.start()
        process.join(PATIENCE)
        assert process.exitcode == -signal.SIGKILL
        assert receiver.jobs == [job.public_id]
        assert (mark(store, job) or 0) < 0
        DeadLetters(store, receiver.url).look()  # it may still be sending
        assert len(receiver.messages) == 1
    later = ManualClock(SystemClock().now_ms() + HOLD_MS)
    with Store.open(store.url, clock=later) as store:
        DeadLetters(store, receiver.url).look()
        assert receiver.jobs == [job.public_id] * 2
        assert len({message.headers["webhook-id"] for message in receiver.messages}) == 1
        assert mark(store, job) == later.now_ms()


# ---- signature and configuration


def test_messages_are_signed(store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a secret, the message is signed as Standard Webhooks says; with two, by both; the time is now."""
    keys = [b"0123456789abcdefghijklmnopqrstuv", b"another key of more than 24 bytes"]
    monkeypatch.setenv(SECRET_VARIABLE, " ".join("whsec_" + base64.b64encode(key).decode() for key in keys))
    fail(store)
    DeadLetters(store, receiver.url).look()
    (message,) = receiver.messages
    assert message.headers["webhook-timestamp"] == str(store.clock.now_ms() // 1000)
    signed = f"{message.headers['webhook-id']}.{message.headers['webhook-timestamp']}.".encode() + message.body
    expected = [base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in keys]
    assert message.headers["webhook-signature"].split() == [f"v1,{one}" for one in expected]


def test_the_signature_is_that_of_the_scheme() -> None:
    """The example in the specification's reference libraries comes out the same."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    signature = webhook.signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_without_a_secret_nothing_is_signed(store: Store, receiver: Receiver) -> None:
    """Without a secret there is no signature, and nothing that looks like one."""
    fail(store)
    DeadLetters(store, receiver.url).look()
    assert "webhook-signature" not in receiver.messages[0].headers


@pytest.mark.parametrize("secret", ["hunter2", "whsec_", "whsec_c2hvcnQ=", "whsec_" + "ä" * 40])
def test_what_is_no_secret_is_refused(secret: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret of another form, or too short, ends the worker at its start, and is not repeated in the error."""
    monkeypatch.setenv(SECRET_VARIABLE, secret)
    with pytest.raises(ConfigInvalid, match=SECRET_VARIABLE) as refused:
        DeadLetters(store, "https://example.org/hook")
    assert secret.removeprefix("whsec_") not in str(refused.value) or secret == "whsec_"


@pytest.mark.parametrize("url", ["example.org/hook", "ftp://example.org", "https://", "https:///hook", ""])
def test_what_is_no_address_is_refused(url: str, tmp_path: Path) -> None:
    """A webhook that is no http address is refused by its entry, when `everstep.toml` is read."""
    (tmp_path / "everstep.toml").write_text(f'[dead_letters]\nwebhook = "{url}"\n')
    with pytest.raises(ConfigInvalid, match=r"dead_letters\.webhook"):
        read_policies(tmp_path / "langgraph.json")
