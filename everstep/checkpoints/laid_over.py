"""How configurations are laid over each other: an assistant's, a schedule's, a run's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def laid_over(*configs: Mapping[str, Any]) -> dict[str, Any]:
    """Configurations laid over each other, the later ones over the earlier; lists are put together."""
    laid: dict[str, Any] = {}
    for config in configs:
        for name, value in config.items():
            if value is None:
                continue
            known = laid.get(name)
            if isinstance(known, dict) and isinstance(value, Mapping):
                laid[name] = {**known, **value}
            elif isinstance(known, list) and isinstance(value, list):
                laid[name] = [*known, *value]
            else:
                laid[name] = value
    return laid
