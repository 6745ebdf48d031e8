"""What runs beside a worker's jobs: it begins and ends as a whole, whatever one part of it does."""

from __future__ import annotations

import gc
import logging
import threading

import pytest

from everstep.checkpoints.store import Store
from everstep.runtime.deliveries import Deliveries
from everstep.runtime.expiry import Expiry
from tests.support.jobs import chain, run

PARTS = {"everstep-heartbeat", "everstep-dead-letters", "everstep-expiry", "everstep-webhooks"}
"""Threads of some of them."""


def beside() -> set[str]:
    """Those that run now."""
    return PARTS.intersection(thread.name for thread in threading.enumerate())


def test_the_parts_begin_with_the_worker_and_end_with_it(store: Store) -> None:
    """While a job runs they are there; afterwards none is."""
    seen: list[set[str]] = []

    def node(_state: object) -> dict[str, list[str]]:
        seen.append(beside())
        return {}

    assert run(store, chain(node)).status == "done"
    assert (seen, beside()) == ([PARTS], set())


def test_a_part_that_cannot_begin_ends_those_that_did(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker says why, and leaves nothing behind."""

    def start(_self: Deliveries) -> None:
        assert "everstep-heartbeat" in beside()
        raise OSError("no room for a socket")

    monkeypatch.setattr(Deliveries, "start", start)
    with pytest.raises(OSError, match="no room for a socket"):
        run(store, chain(lambda _state: {}))
    assert beside() == set()


def test_a_part_that_does_not_end_well_holds_up_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, and the jobs and the other parts are over as ever."""
    stop = Expiry.stop

    def fails(self: Expiry) -> None:
        stop(self)
        raise OSError("the disk is on fire")

    monkeypatch.setattr(Expiry, "stop", fails)
    with caplog.at_level(logging.ERROR, "everstep.worker"):
        assert run(store, chain(lambda _state: {})).status == "done"
    assert "Expiry did not end as it should" in caplog.text
    assert beside() == set()


def test_what_a_workers_process_has_loaded_is_no_work_for_its_garbage_collector(store: Store) -> None:
    """A full pass does not look at it any more."""
    assert run(store, chain(lambda _state: {})).status == "done"
    assert gc.get_freeze_count() > 10_000
