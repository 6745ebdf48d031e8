"""How long state machines run: the same examples every time, however slow the machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def machine_settings(examples: int, steps: int = 40) -> settings:
    """So many examples of so many steps each, drawn without chance."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )
