"""What traces cost a step: counted, because times wander and counts do not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics._internal.instrument import _Synchronous as _Instrument
from opentelemetry.sdk.trace import Span
from sqlalchemy import select

from everstep.checkpoints import schema, sqlite, writer
from everstep.observability import names, span_rows, stored_form
from everstep.observability.handler import SpanHandler
from everstep.observability.otlp_points import OtlpPoints
from everstep.observability.tally import Tally
from everstep.observability.tokens import TokenCounter
from tests.support.jobs import chain, run
from tests.support.record import record

MANY = 25
AN_HOUR_S = 3600.0
NOWHERE = {"EVERSTEP_TRACES": "record"}
SOMEWHERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "3600000"}
"""Nobody listens there, and for an hour nothing is sent."""


class Costs:
    """What a job wrote, and what was called meanwhile."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.commits = 0
        self.bodies: list[bytes] = []
        self.calls: dict[str, int] = {}

    def count(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        """Count the calls of a function."""
        function, key = getattr(owner, name), f"{owner.__name__}.{name}"
        self.calls[key] = 0

        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls[key] += 1
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)


Measure = Callable[..., Costs]


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measure:
    """Run a job of so many steps with these variables set."""
    monkeypatch.setattr(writer, "PATIENCE_S", AN_HOUR_S)  # what may wait waits, however slow the machine is

    def measure(steps: int, environment: dict[str, str]) -> Costs:
        folder = tmp_path / "_".join(["record", *environment])
        costs, connect = Costs(), sqlite.raw_connection

        def raw_connection(path: Path) -> sqlite3.Connection:
            connection = connect(path)
            connection.set_trace_callback(costs.statements.append)
            return connection

        with monkeypatch.context() as patch:
            patch.setattr(sqlite, "raw_connection", raw_connection)
            for name, value in environment.items():
                patch.setenv(name, value)
            for owner, name in (
                (SpanHandler, "on_chain_start"),
                (SpanHandler, "on_chain_end"),
                (TokenCounter, "on_chain_start"),
                (Span, "__init__"),
                (stored_form, "otlp"),
                (Tally, "add"),
                (OtlpPoints, "metrics"),
                (_Instrument, "__init__"),
            ):
                costs.count(patch, owner, name)
            folder.mkdir()
            with record("sqlite", folder) as store:
                assert run(store, chain(*[lambda _state: {"log": ["x"]}] * steps), concurrency=1).status == "done"
                costs.commits = store.commits
                bodies = select(schema.spans.c.body).order_by(schema.spans.c.id)
                costs.bodies = store.read(lambda connection: list(connection.execute(bodies).scalars()))
        return costs

    return measure


@pytest.mark.parametrize(("environment", "queued"), [(NOWHERE, 0), (SOMEWHERE, 1)])
def test_a_step_with_a_trace_writes_its_span_and_queues_it(measure: Measure, environment: Any, queued: int) -> None:
    """One statement for the span, one for where it is to go, and no commit: they go with what the step writes.

    The span's statement gives nothing back, for which SQLite would keep a table.
    """
    traced, plain = measure(MANY, environment), measure(MANY, {})
    seldom = 3  # a transaction that is run again, a heartbeat, the exporter's lease
    for table, each in (("spans", 1), ("span_outbox", queued)):
        written = [line for line in traced.statements if line.startswith(f"INSERT INTO {table} ")]
        assert each * (MANY + 1) <= len(written) <= each * (MANY + 1 + seldom), table
    assert not [line for line in traced.statements if line.startswith("INSERT INTO spans ") and "RETURNING" in line]
    assert len(traced.bodies) == MANY + 1
    assert traced.commits <= plain.commits + seldom


def test_a_span_of_a_step_takes_less_than_a_kilobyte(measure: Measure) -> None:
    """With all that says whose it is: a step's span and its row are small beside what a step stores."""
    *steps, _ = measure(MANY, NOWHERE).bodies
    assert max(map(len, steps)) < 1_000
    told = [one.attributes for body in steps for one in span_rows.read(body)]
    assert [one[names.STEP] for one in told] == [number + 1 for number in range(MANY)]
    assert all(one[names.NODE_ATTEMPT] == 1 and one[names.JOB_ID] for one in told)
    assert all(one[names.CHECKPOINT_ID] for one in told[1:])  # the first step waits for no checkpoint to be stored


def test_a_step_makes_none_of_opentelemetrys_spans_and_encodes_nothing(measure: Measure) -> None:
    """Its span is ours and becomes OTLP when it is sent; two callbacks are made of each node, and no others."""
    calls = measure(MANY, NOWHERE).calls
    assert calls.pop("Span.__init__") == calls.pop("everstep.observability.stored_form.otlp") == 0
    assert calls.pop("TokenCounter.on_chain_start") == 0
    of_handler = {calls["SpanHandler.on_chain_start"], calls["SpanHandler.on_chain_end"]}
    assert of_handler == {MANY + 1}  # each node, and the graph


def test_a_step_measures_three_times_and_asks_nothing_of_opentelemetry(measure: Measure) -> None:
    """Its time and what its two writes store: numbers that the process adds up, and hands out when an export asks."""
    calls = measure(MANY, SOMEWHERE).calls
    assert calls["Tally.add"] <= 3 * MANY + 10  # the job, the worker, and what it tells of itself each second
    assert calls["OtlpPoints.metrics"] <= 1
    assert calls["_Synchronous.__init__"] == 0
