"""State machines over a record: where it is, and how long they run: the same examples every time."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine

from everstep.clock import ManualClock
from tests.support.record import record

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # thousands of commits; here the disk adds nothing


class RecordMachine(RuleBasedStateMachine):
    """Has a record and a clock of its own, until it is torn down."""

    database = "sqlite"

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.opened = ExitStack()
        folder = Path(self.opened.enter_context(tempfile.TemporaryDirectory(dir=MEMORY)))
        self.store = self.opened.enter_context(record(self.database, folder, self.clock))

    def teardown(self) -> None:
        self.opened.close()


def machine_settings(examples: int, steps: int = 40) -> settings:
    """So many examples of so many steps each, drawn without chance."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
