"""The outbox of webhooks: what is told of a job, that it arrives, how often, and what is given up."""

from __future__ import annotations

import base64
import json
import logging
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from standardwebhooks import Webhook as Verifier

from everstep import crash
from everstep.checkpoints import deliveries
from everstep.checkpoints.deliveries import Delivery
from everstep.checkpoints.jobs import Job
from everstep.checkpoints.store import Store
from everstep.clock import ManualClock, SystemClock
from everstep.errors import WebhookInvalid
from everstep.graphs.event_sections import WebhooksSection
from everstep.graphs.policies import Policies
from everstep.runtime import backoff
from everstep.runtime import deliveries as sending
from everstep.runtime.addresses import Guard
from everstep.runtime.deliveries import AT_ONCE_TO_ONE, LEASE_MS, MOST_TRIES, Deliveries
from everstep.runtime.webhook import SECRET_VARIABLE, NotDelivered, Webhook
from tests.support.jobs import chain, work
from tests.support.receiver import SILENCE, Receiver
from tests.support.record import CONTEXT, begin_running, in_processes
from tests.support.waiting import PATIENCE, until

HERE = WebhooksSection(allow=["127.0.0.1"])
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


def all_of(store: Store) -> list[Delivery]:
    """Every message, oldest first."""
    return store.read(deliveries.every)[::-1]


def finish(store: Store, url: str, *names: Any) -> list[Job]:
    """Jobs with a webhook that are done, by a worker that sends nothing."""
    ids = [store.enqueue("graph", {"log": [one]}, webhook=url).job.public_id for one in names or ("a",)]
    quiet = pytest.MonkeyPatch()
    with quiet.context() as patched:
        patched.setattr(Deliveries, "start", lambda _self: None)
        work(store, chain(lambda _s: {"log": ["done"]}))
    return [store.job(one) for one in ids]


# ---- what is told


@pytest.mark.both_databases
def test_a_webhook_is_told_of_the_end(store: Store, receiver: Receiver) -> None:
    """The message is the job as JSON, written with its end and sent once, however often one looks."""
    (job,) = finish(store, receiver.hook)
    (message,) = all_of(store)
    assert (message.job, message.state, message.created_at) == (job.public_id, "pending", job.updated_at)
    sender = Deliveries(store, HERE)
    assert [sender.send_due(), sender.send_due()] == [1, 0]
    (sent,) = receiver.messages
    value = sent.value
    assert sent.headers["webhook-id"] == message.public_id
    assert (value["type"], value["id"], value["status"]) == ("job.done", job.public_id, "done")
    assert (value["input"], value["result"]) == ({"log": ["a"]}, {"log": ["a", "done"]})
    assert value["webhook_sent_at"] == "2027-01-15T08:00:00.000Z"
    (message,) = all_of(store)
    assert (message.state, message.tries, message.delivered_at) == ("delivered", 1, store.clock.now_ms())


def breaks(error: Exception) -> Any:
    """A graph that fails."""

    def node(_state: Any) -> Any:
        raise error

    return chain(node)


@pytest.mark.both_databases
def test_whatever_ends_or_pauses_a_job_tells(store: Store, receiver: Receiver) -> None:
    """A failure, a pause for a person, the person's refusal and a cancellation are told, each as it happened."""
    failed, _ = store.enqueue("graph", {"log": ["failed"]}, webhook=receiver.hook)
    work(store, breaks(ValueError("no")), policies=Policies(webhooks=HERE))
    cancelled, _ = store.enqueue("other", {"log": ["cancelled"]}, webhook=receiver.hook)
    store.cancel(cancelled.public_id)
    asked, _ = store.enqueue("graph", {"log": ["asked"]}, webhook=receiver.hook)
    work(store, breaks(KeyError("missing")), policies=Policies(webhooks=HERE))
    store.answer(store.reviews()[0].public_id, "reject")
    Deliveries(store, HERE).send_due()
    heard = sorted((message.value["id"], message.value["type"]) for message in receiver.messages)
    assert heard == sorted(
        [
            (failed.public_id, "job.failed"),
            (cancelled.public_id, "job.failed"),
            (asked.public_id, "job.review"),
            (asked.public_id, "job.failed"),
        ]
    )


@pytest.mark.both_databases
def test_what_is_not_committed_is_not_told(store: Store, receiver: Receiver) -> None:
    """A settlement that loses its claim leaves no message, and a job without a webhook none at all."""
    store.enqueue("graph", {"log": []}, webhook=receiver.hook)
    job = begin_running(store)

    def end_and_break(connection: Any) -> None:
        deliveries.queue(connection, job, receiver.hook, {"type": "job.done"}, now=0)
        raise RuntimeError("rolled back")

    with pytest.raises(RuntimeError):
        store.write(end_and_break).result()
    store.enqueue("graph", {"log": ["quiet"]})
    assert all_of(store) == []


def test_messages_are_signed(store: Store, receiver: Receiver, told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a secret in the variable that everstep.toml names, a verifier of Standard Webhooks takes the message.

    The secret is in no row and no line.
    """
    monkeypatch.setenv("HOOK_SECRET", f"{SECRET} {SECRET[:-4]}AAA=")
    store.clock.advance(SystemClock().now_ms() - store.clock.now_ms())  # type: ignore[attr-defined]
    finish(store, receiver.hook)
    Deliveries(store, WebhooksSection(allow=["127.0.0.1"], secret_env="HOOK_SECRET")).send_due()
    (sent,) = receiver.messages
    assert Verifier(SECRET).verify(sent.body, sent.headers)["type"] == "job.done"
    assert len(sent.headers["webhook-signature"].split()) == 2
    written = repr(all_of(store)) + "".join(record.getMessage() for record in told.records)
    assert SECRET.removeprefix("whsec_") not in written


# ---- a receiver that fails


@pytest.mark.both_databases
@pytest.mark.parametrize("status", [500, 429, 404, 302])
def test_what_is_not_taken_is_sent_again(store: Store, clock: ManualClock, status: int) -> None:
    """Anything but a 2xx is tried again, under the same id, after 15 s, 30 s, … plus up to a quarter."""
    with Receiver(status, status, status).open() as receiver:
        finish(store, receiver.hook)
        sender = Deliveries(store, HERE, randomness=random.Random(1))
        for attempt in range(3):
            assert sender.send_due() == 1
            (message,) = all_of(store)
            assert (message.state, message.tries, message.last_error) == ("pending", attempt + 1, f"HTTP {status}")
            least, most = backoff.bounds_ms(attempt, None)
            assert least <= message.next_try_at - clock.now_ms() <= most
            clock.advance(message.next_try_at - clock.now_ms() - 1)
            assert sender.send_due() == 0
            take = {"holder": "other", "now": clock.now_ms(), "lease_ms": 1, "limit": 1}
            assert store.write(lambda c, take=take: deliveries.take(c, **take)).result() == []
            clock.advance(1)
        assert sender.send_due() == 1
        assert receiver.followed == 0, "a redirect was followed"
    assert len({message.headers["webhook-id"] for message in receiver.messages}) == 1
    assert [message.state for message in all_of(store)] == ["delivered"]


def test_a_receiver_is_not_asked_before_it_wants(store: Store, clock: ManualClock) -> None:
    """`Retry-After` is waited for where it is longer than our own wait."""
    with Receiver(503, headers={"retry-after": "600"}).open() as receiver:
        finish(store, receiver.hook)
        Deliveries(store, HERE).send_due()
    (message,) = all_of(store)
    assert 600_000 <= message.next_try_at - clock.now_ms() <= 750_000


@pytest.mark.both_databases
def test_what_nobody_takes_is_given_up_and_can_be_replayed(store: Store, clock: ManualClock, told: Any) -> None:
    """After so many tries a message is dead and the log says so; replayed, it goes out under the same id."""
    with Receiver(*[500] * MOST_TRIES).open() as receiver:
        finish(store, receiver.hook)
        sender = Deliveries(store, HERE)
        for _ in range(MOST_TRIES):
            assert sender.send_due() == 1
            clock.advance(2 * backoff.CAP_MS)
        (message,) = all_of(store)
        assert (message.state, message.tries) == ("dead", MOST_TRIES)
        assert sender.send_due() == 0
        assert f"everstep deliveries replay {message.public_id}" in told.text
        store.write(lambda c: deliveries.replay(c, message, now=clock.now_ms())).result()
        assert sender.send_due() == 1
    assert {sent.headers["webhook-id"] for sent in receiver.messages} == {message.public_id}
    assert [message.state for message in all_of(store)] == ["delivered"]


def test_a_receiver_that_is_gone_for_good_is_not_asked_again(store: Store) -> None:
    """410 says that nobody will ever listen there: the message is given up at once."""
    with Receiver(410).open() as receiver:
        finish(store, receiver.hook)
        assert Deliveries(store, HERE).send_due() == 1
    assert [(message.state, message.last_error) for message in all_of(store)] == [("dead", "HTTP 410")]


def test_nobody_at_the_address_is_no_end(store: Store) -> None:
    """A connection that cannot be made is tried again; what is noted does not show the address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as nobody:
        port = nobody.getsockname()[1]
    finish(store, f"http://127.0.0.1:{port}/secret-path")
    Deliveries(store, HERE).send_due()
    (message,) = all_of(store)
    assert message.state == "pending"
    assert message.last_error is not None
    assert "secret-path" not in message.last_error


def test_a_receiver_that_hangs_leaves_the_others_their_turn(store: Store, receiver: Receiver) -> None:
    """Of messages to one that does not answer so many are under way at most; another's arrives meanwhile."""
    with Receiver(*[SILENCE] * 20).open() as hanging:
        finish(store, hanging.hook, *range(12))
        store.clock.advance(1)  # type: ignore[attr-defined]
        finish(store, receiver.hook, "other")
        sender = Deliveries(store, HERE)
        sender.start()
        until(lambda: receiver.messages, "the other's message")
        assert len(hanging.messages) <= AT_ONCE_TO_ONE
        sender.stop()


def test_an_answer_that_never_ends_is_cut_off() -> None:
    """A receiver that answers byte by byte, and never comes to a status, is not waited for longer than the limit."""
    done = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 ")
                while not done.wait(0.05):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        webhook = Webhook(f"http://127.0.0.1:{server.getsockname()[1]}/", guard=Guard.of(["127.0.0.1"]))
        with pytest.raises(NotDelivered):
            webhook.send("id", {}, now_ms=0, timeout=0.5)
        thread.join(PATIENCE)
        assert not thread.is_alive()
        done.set()


# ---- several processes, and their death


def _send(url: str, crash_at: str | None = None) -> None:
    crash.arm(crash_at)
    with Store.open(url) as store:
        Deliveries(store, HERE).send_due()


@pytest.mark.both_databases
def test_several_processes_send_each_message_once(shared: Store, receiver: Receiver) -> None:
    """Of processes that send at the same time, each message is one's."""
    jobs = finish(shared, receiver.hook, *range(12))
    in_processes(_send, [(shared.url,)] * 3)
    assert sorted(receiver.jobs) == sorted(job.public_id for job in jobs)
    assert {message.state for message in all_of(shared)} == {"delivered"}


@pytest.mark.both_databases
def test_a_kill_between_answer_and_mark_sends_again(shared: Store, receiver: Receiver) -> None:
    """A process killed when the receiver had the message leaves it to others, who wait for its lease: at least once."""
    finish(shared, receiver.hook)
    process = CONTEXT.Process(target=_send, args=(shared.url, "webhook.sent"))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    assert len(receiver.messages) == 1
    assert Deliveries(shared, HERE).send_due() == 0, "its lease still holds"
    with Store.open(shared.url, clock=ManualClock(int(time.time() * 1000) + LEASE_MS + 1000)) as later:
        assert Deliveries(later, HERE).send_due() == 1
    first, second = receiver.messages
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert [message.state for message in all_of(shared)] == ["delivered"]


@pytest.mark.both_databases
def test_who_waits_is_woken_by_the_commit(shared: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that another process writes is sent at once, though nobody looks by himself for a day."""
    monkeypatch.setattr(sending, "LOOK_EVERY_S", 86_400.0)
    sender = Deliveries(shared, HERE)
    sender.start()
    with Store.open(shared.url) as other:
        until(lambda: sender._thread.is_alive())
        job, _ = other.enqueue("graph", {"log": []}, webhook=receiver.hook)
        other.cancel(job.public_id)
        until(lambda: receiver.messages, "the message")
    sender.stop()
    assert receiver.jobs == [job.public_id]


def test_a_worker_that_stops_waits_for_no_receiver(store: Store) -> None:
    """One that hangs is left: the message stays in the record, for others."""
    with Receiver(SILENCE).open() as hanging:
        finish(store, hanging.hook)
        sender = Deliveries(store, HERE)
        sender.start()
        until(lambda: hanging.messages, "the message")
        sender.stop()
    assert [message.state for message in all_of(store)] == ["pending"]


# ---- where nothing may be sent


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "10.1.2.3",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "[::1]",
        "[fe80::1]",
        "[fd00::1]",
        "[::ffff:10.0.0.1]",
        "[64:ff9b::a00:1]",
        "[2002:a00:1::]",
    ],
)
def test_addresses_that_are_not_public_are_refused(host: str) -> None:
    """Loopback, private, link-local and other special addresses, also written within others, are refused when given."""
    with pytest.raises(WebhookInvalid):
        Guard().require(f"https://{host}/hook")


@pytest.mark.parametrize(
    ("url", "passes"),
    [
        ("https://example.org/hook", True),
        ("https://93.184.215.14/", True),
        ("http://example.org/hook", False),
        ("http://93.184.215.14/", False),
        ("http://hooks.internal:8080/", True),
        ("https://10.9.0.1/", True),
        ("http://10.9.0.1/", True),
        ("https://10.8.0.1/", False),
        ("ftp://example.org/", False),
        ("https:///hook", False),
        ("https://example.org:99999/", False),
        ("https://ada:hunter2hunter2@example.org/", False),
        ("https://example.org/?token=abcdefgh12345678", False),
        ("https://example.org/a b", False),
        ("https://exämple.org/", False),
    ],
)
def test_what_is_allowed_passes(url: str, passes: bool) -> None:
    """Public addresses by https, and what everstep.toml allows; nothing with credentials in it."""
    allowed = Guard.of(["Hooks.Internal.", "10.9.0.0/16"])
    if "example.org" in url:
        allowed = Guard.of(["hooks.internal"])
    if passes:
        allowed.require(url)
    else:
        with pytest.raises(WebhookInvalid):
            allowed.require(url)


@pytest.mark.both_databases
def test_the_address_is_checked_where_it_is_connected_to(
    store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public name that leads to this machine when the message is sent gets nothing; allowed by name, it does."""
    port = receiver.hook.rpartition(":")[2]
    look_up = socket.getaddrinfo

    def rebound(host: Any, *more: Any, **named: Any) -> Any:
        return look_up("127.0.0.1" if host == "hooks.example.org" else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", rebound)
    finish(store, f"http://hooks.example.org:{port}")
    Deliveries(store, WebhooksSection(allow=["10.0.0.0/8"])).send_due()
    assert receiver.messages == []
    (message,) = all_of(store)
    assert (message.state, message.last_error) == ("dead", "nothing may be sent to this address")
    store.write(lambda c: deliveries.replay(c, message, now=store.clock.now_ms())).result()
    Deliveries(store, WebhooksSection(allow=["hooks.example.org"])).send_due()
    assert len(receiver.messages) == 1


def test_an_environments_proxy_is_not_heeded(store: Store, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message goes to the address that was checked, whatever proxy the environment names."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    finish(store, receiver.hook)
    Deliveries(store, HERE).send_due()
    assert len(receiver.messages) == 1


def test_credentials_in_an_address_are_refused(store: Store) -> None:
    """A webhook's address is stored, so one with a password or a token in it makes no job."""
    for url in ("https://ada:hunter2hunter2@example.org/", "https://example.org/hook?api_key=abcdefgh12345678"):
        with pytest.raises(WebhookInvalid) as refused:
            store.enqueue("graph", {"log": []}, webhook=url)
        assert "hunter2" not in json.dumps(refused.value.as_dict())
        assert "abcdefgh" not in json.dumps(refused.value.as_dict())
    assert store.jobs() == []


# ---- of a worker that died


def _serve_deadly(url: str) -> None:
    def kill(_state: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    with Store.open(url) as store:
        work(store, chain(kill), policies=Policies(webhooks=HERE))


@pytest.mark.both_databases
def test_a_job_that_ended_by_its_workers_death_is_told(shared: Store, receiver: Receiver) -> None:
    """A job whose worker is killed on its last attempt fails when the next worker finds it, and its webhook is told."""
    job, _ = shared.enqueue("graph", {"log": []}, webhook=receiver.hook, max_attempts=1)
    process = CONTEXT.Process(target=_serve_deadly, args=(shared.url,))
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL
    assert (shared.job(job.public_id).status, receiver.messages) == ("running", [])
    work(shared, chain(lambda _state: {"log": ["never"]}), policies=Policies(webhooks=HERE))
    until(lambda: receiver.messages, "the message")
    (sent,) = receiver.messages
    assert (sent.value["type"], sent.value["id"], sent.value["status"]) == ("job.failed", job.public_id, "failed")
    assert (sent.value["error"]["code"], sent.value["worker_deaths"]) == ("worker_died", 1)
    assert [message.job for message in all_of(shared)] == [job.public_id]
