"""What providers say, and what of it can be kept: ids that are none, and JSON that no reader has."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everstep.checkpoints.provider_status import ProviderEvent, ProviderStatus
from everstep.checkpoints.store import Store
from everstep.errors import EventInvalid
from everstep.nodes.providers.interface import Submitted
from everstep.nodes.providers.registry import Entry, Providers
from tests.support.paid import PENDING, Scripted, again, give, submitted, tell

ODD = pytest.mark.parametrize("odd", ["", "a\0b", "a\ud800b", "a" * 1001], ids=["empty", "nul", "half", "long"])


@ODD
def test_an_id_that_no_record_can_keep_is_refused_where_it_is_read(odd: str) -> None:
    """Neither a submission nor a status nor an event has an id that one of the databases could not store."""
    for make in (
        lambda: Submitted(odd),
        lambda: ProviderStatus("pending", odd),
        lambda: ProviderEvent(odd, PENDING),
        lambda: ProviderEvent("e", PENDING, odd),
        lambda: ProviderEvent("e", PENDING, None, odd),
    ):
        with pytest.raises(ValueError, match="no id that can be kept"):
            make()


@pytest.mark.parametrize("at", [-1, 10**30])
def test_a_time_that_is_none_is_refused(at: int) -> None:
    """No database has a column for it."""
    with pytest.raises(ValueError, match="no time"):
        ProviderEvent("e", PENDING, "task", occurred_at=at)


@ODD
def test_a_message_with_such_an_id_is_no_event(odd: str) -> None:
    """Its sender is told so, instead of being told each time that the server failed."""
    films = Scripted()
    providers = Providers({"films": Entry(lambda: films, check=lambda headers, body, now: None)})
    body = json.dumps({"id": odd, "task": "t", "state": "pending"}).encode()
    with pytest.raises(EventInvalid):
        providers.webhook("films", {}, body, now_ms=0)


@pytest.mark.both_databases
@pytest.mark.parametrize("number", ["NaN", "1e400", "-Infinity"])
def test_numbers_that_json_has_not_are_null(store: Store, number: str) -> None:
    """A result or an error with one ends its task, and can be read by anyone."""
    give(store, 500)
    odd = json.loads(f'{{"score": {number}, "of": [1, {number}], "at": "x"}}')
    done, failed = submitted(store), submitted(store, "film-2", submission_key="dog")
    tell(store, done, ProviderStatus("succeeded", result=odd))
    tell(store, failed, ProviderStatus("failed", error=odd))
    plain = {"score": None, "of": [1, None], "at": "x"}
    assert (again(store, done).result, again(store, failed).error) == (plain, plain)


def nested(levels: int) -> Any:
    """Lists within lists."""
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.both_databases
def test_what_is_nested_deep_ends_its_task(store: Store) -> None:
    """As deep as JSON is read; of an error only the outer levels are kept."""
    give(store, 500)
    done, failed = submitted(store), submitted(store, "film-2", submission_key="dog")
    tell(store, done, ProviderStatus("succeeded", result=nested(900)))
    tell(store, failed, ProviderStatus("failed", error=nested(900)))
    assert again(store, done).result == nested(900)
    assert (again(store, failed).state, again(store, failed).error[0][0] != 1) == ("failed", True)
