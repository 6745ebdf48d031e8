"""What a saver leaves out of what it stores: credentials in errors, and what a run's graph is configured with."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig

from everstep.checkpoints import payload

_KEPT = frozenset("thread_id checkpoint_ns checkpoint_id checkpoint_map run_id everstep_job everstep_leg".split())


def without_secrets(error: Any) -> Any:
    """An exception as LangGraph stores it (its `repr`), if that holds a credential; otherwise the exception."""
    text = repr(error)
    clean = payload.without_secrets(text)
    return error if clean == text else clean


def without_configuration(config: RunnableConfig) -> RunnableConfig:
    """A run's config without what its graph is configured with: the stock saver copies texts into the metadata."""
    configurable, metadata = (
        {name: value for name, value in config.get(part, {}).items() if name in _KEPT or name.startswith("__")}
        for part in ("configurable", "metadata")
    )
    return {**config, "configurable": configurable, "metadata": metadata}
