"""A rate that processes share: never more than allowed, nothing lost, and no trust in the clock."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, select

from everstep.checkpoints import rate_limits
from everstep.checkpoints.schema import rate_limits as table
from everstep.checkpoints.store import Store
from tests.support.ending import AT_END
from tests.support.machines import machine_settings
from tests.support.postgres import fresh_postgres
from tests.support.transactions import stands
from tests.support.waiting import Halt

NOW = 1_800_000_000_000_000
SECOND = 1_000_000


def take(store: Store, wanted: int, now: int, per_second: Any = 2, burst: int = 3, name: str = "films") -> Any:
    """Take from a rate."""
    asked: dict[str, Any] = {"per_second": per_second, "burst": burst, "wanted": wanted, "now_us": NOW + now}
    granted, free = store.write(lambda c: rate_limits.take(c, name, **asked)).result()
    return granted, free - NOW


@pytest.mark.both_databases
def test_a_burst_and_then_the_rate(store: Store) -> None:
    """Two a second, three at once after a pause; the second answer is when the next one is free."""
    assert take(store, 5, 0) == (3, SECOND // 2)
    assert take(store, 1, 0) == (0, SECOND // 2)
    assert take(store, 1, SECOND // 2 - 1) == (0, SECOND // 2)
    assert take(store, 5, SECOND // 2) == (1, SECOND)
    assert take(store, 5, 10 * SECOND) == (3, 10 * SECOND + SECOND // 2)


@pytest.mark.both_databases
def test_rates_have_names(store: Store) -> None:
    """What one uses up is not another's."""
    assert take(store, 3, 0)[0] == 3
    assert take(store, 3, 0, name="songs")[0] == 3


@pytest.mark.both_databases
def test_asking_in_vain_costs_nothing(store: Store) -> None:
    """However often: fractions of what is free again are not lost."""
    take(store, 3, 0)
    for moment in range(0, SECOND // 2, 1000):
        assert take(store, 1, moment)[0] == 0
    assert take(store, 1, SECOND // 2)[0] == 1


@pytest.mark.both_databases
def test_taking_one_by_one_gives_the_whole_burst(store: Store) -> None:
    """Also where the interval is no whole number of microseconds."""
    assert [take(store, 1, 0, per_second=3)[0] for _ in range(4)] == [1, 1, 1, 0]
    assert take(store, 1, 0, per_second=3)[1] == 333_334


def test_a_clock_that_steps_back_is_no_time_at_all(store: Store) -> None:
    """Nothing is granted for it, and nobody waits for longer than an empty bucket takes to fill."""
    take(store, 3, 0)
    back = -3600 * SECOND
    granted, free = take(store, 3, back)
    assert granted == 0
    assert free <= back + SECOND
    assert take(store, 3, back + SECOND // 2)[0] == 1
    assert take(store, 3, back + 2 * SECOND)[0] == 3


def test_a_slower_rate_is_changed_at_once(store: Store) -> None:
    """What a slow rate asked to wait for is not waited for once it is fast."""
    take(store, 3, 0, per_second=Fraction(1, 3600))
    assert take(store, 3, SECOND, per_second=10)[1] <= SECOND + SECOND // 10


def test_two_processes_share_a_burst() -> None:
    """Who comes while another is about to take waits for it, and gets what is left (on PostgreSQL)."""
    asked: dict[str, Any] = {"per_second": 2, "burst": 3, "wanted": 2, "now_us": NOW}
    halt = Halt()

    def first(connection: Connection) -> int:
        connection.execute(select(table).where(table.c.name == "films").with_for_update()).one()
        halt.stand()
        return rate_limits.take(connection, "films", **asked)[0]

    with fresh_postgres() as store, Store.open(store.url) as other:
        take(store, 0, 0)
        taking = other.write(first)
        halt.wait_until_reached()
        second = store.write(lambda c: rate_limits.take(c, "films", **asked)[0])
        stands(store, second)
        halt.release()
        assert (taking.result(), second.result()) == (2, 1)


rates = st.sampled_from([Fraction(1, 60), Fraction(1, 3), 0.1, 1, 2, 3, 7, 1000, 3000, 2_000_000])
calls = st.lists(
    st.tuples(st.sampled_from([0, 1, 999, 333_333, 333_334, SECOND, 60 * SECOND, -SECOND, -1]), st.integers(0, 9)),
    max_size=40,
)


@given(per_second=rates, burst=st.integers(1, 9), calls=calls)
@machine_settings(200)
def test_no_window_ever_gets_more(
    tmp_path_factory: pytest.TempPathFactory, per_second: Any, burst: int, calls: list[tuple[int, int]]
) -> None:
    """In any stretch of time no more than the burst and the rate; and what is told to be free is free, none earlier.

    Time counts forward: a step back is none.
    """
    store = shared_store(tmp_path_factory)
    interval = -(-SECOND // Fraction(per_second))
    now = elapsed = 0
    taken: list[tuple[int, int]] = []

    def operation(connection: Connection) -> None:
        nonlocal now, elapsed
        asked = partial(rate_limits.take, connection, "rate", per_second=per_second, burst=burst)
        for step, wanted in calls:
            now += step
            elapsed += max(step, 0)
            granted, free = asked(wanted=wanted, now_us=NOW + now)
            assert 0 <= granted <= wanted
            taken.append((elapsed, granted))
            window = 0
            for at, number in reversed(taken):
                window += number
                assert window <= burst + (elapsed - at) // interval
            assert NOW + now <= free <= NOW + now + burst * interval
            before = asked(wanted=1, now_us=free - 1)[0] if free > NOW + now else 0
            assert before == 0
            if granted < wanted:
                assert free > NOW + now
        raise _Undo

    with pytest.raises(_Undo):
        store.write(operation).result()


class _Undo(Exception):
    pass


_STORES: dict[Path, Store] = {}


def shared_store(factory: pytest.TempPathFactory) -> Store:
    """One record for all examples, as each is undone."""
    folder = factory.getbasetemp()
    if folder not in _STORES:
        _STORES[folder] = AT_END.enter_context(Store.open(f"sqlite:///{folder}/rates.db"))
    return _STORES[folder]
