"""`everstep deliveries`, `everstep triggers` and `submit --webhook`, as a person or a script uses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.folder import Folder
from tests.support.receiver import Receiver

TOML = """
[webhooks]
allow = ["127.0.0.1"]

[triggers.orders]
source = "http"
graph = "count"
filter = [{path = "/body/kind", equals = "paid"}]
input = {log = [{path = "/body/order"}]}

[triggers.inbox]
source = "folder"
folder = "incoming"
graph = "count"
"""


@pytest.fixture
def eventful(folder: Folder) -> Folder:
    """A folder whose `everstep.toml` has triggers, and lets webhooks go to this machine."""
    (folder.path / "everstep.toml").write_text(TOML)
    return folder


def test_a_webhook_is_sent_replayed_and_flushed(eventful: Folder) -> None:
    """What a job tells waits in the list, is sent by hand, and again under the same id; what is not taken exits 1."""
    with Receiver(200, 500).open() as receiver:
        given = ("submit", "count", "--input", "{}", "--webhook", receiver.hook, "--json")
        job = eventful.run(*given).value["id"]
        eventful.run("cancel", job)
        (waiting,) = eventful.run("deliveries", "--json").value
        assert (waiting["job"], waiting["state"], waiting["url"]) == (job, "pending", receiver.hook)
        flushed = eventful.run("deliveries", "flush", "--json")
        assert (flushed.code, flushed.value) == (0, {"delivered": [waiting["id"]], "not_taken": []})
        assert eventful.run("deliveries", "--json").value == []
        (delivered,) = eventful.run("deliveries", "list", "--job", job, "--json").value
        assert (delivered["state"], delivered["tries"]) == ("delivered", 1)
        shown = eventful.run("deliveries", "show", waiting["id"], "--json").value
        assert (shown["body"]["type"], shown["body"]["id"]) == ("job.failed", job)
        assert eventful.run("deliveries", "replay", waiting["id"]).code == 0
        failed = eventful.run("deliveries", "flush", "--json")
        assert (failed.code, failed.value["not_taken"]) == (1, [{"id": waiting["id"], "reason": "HTTP 500"}])
    assert {message.headers["webhook-id"] for message in receiver.messages} == {waiting["id"]}
    assert eventful.run("deliveries", "show", "ffff").code == 66
    assert eventful.run("deliveries", "replay").code == 64


def test_a_webhook_that_leads_into_the_network_is_refused(eventful: Folder) -> None:
    """The address is refused before there is a job, or a record."""
    for url in ("http://10.0.0.1/", "https://ada:hunter2hunter2@example.org/", "nowhere"):
        ran = eventful.run("submit", "count", "--input", "{}", "--webhook", url, "--json")
        assert ran.code == 64
        assert json.loads(ran.err)["error"]["code"] == "webhook_invalid"
        assert "hunter2" not in ran.err
    assert not (eventful.path / "everstep.db").exists()


def test_a_trigger_is_tried_without_a_record(eventful: Folder) -> None:
    """`test` tells input and key, or that it is filtered out, or what is missing (65); nothing is made."""

    def tried(name: str, body: str, *more: str) -> tuple[int, str]:
        (eventful.path / "event.json").write_text(body)
        ran = eventful.run("triggers", "test", name, "event.json", *more)
        return ran.code, ran.out + ran.err

    code, told = tried("orders", '{"kind": "paid", "order": 17}', "--header", "webhook-id: m1")
    assert (code, "trigger:orders:m1" in told, '{"log": [17]}' in told) == (0, True, True)
    code, told = tried("orders", '{"kind": "refunded"}')
    assert (code, "filtered" in told) == (0, True)
    code, told = tried("orders", '{"kind": "paid"}')
    assert (code, "/body/order" in told) == (65, True)
    assert tried("missing", "{}")[0] == 66
    assert tried("orders", "{}", "--header", "no colon")[0] == 64
    assert tried("inbox", "x")[0] == 0
    assert not (eventful.path / "everstep.db").exists()
    listed = {one["name"]: one for one in eventful.run("triggers", "--json").value}
    assert (listed["orders"]["path"], listed["inbox"]["folder"]) == ("/everstep/triggers/orders", "incoming")


def test_a_configuration_that_is_wrong_is_told(eventful: Folder) -> None:
    """A trigger whose graph is not there, or with a field that is none, exits 78 with its place."""
    for wrong, place in (('graph = "counts"', "triggers.x.graph"), ('graph = "count"\nfolder = "x"', "folder")):
        Path(eventful.path / "everstep.toml").write_text(f'[triggers.x]\nsource = "http"\n{wrong}\n')
        ran = eventful.run("triggers")
        assert (ran.code, place in ran.err) == (78, True)
