"""Imported by the fork server: one whole job, so that what first use loads is there before the forks."""

from __future__ import annotations

import tempfile
from pathlib import Path

import everstep.runtime.span_exporter  # noqa: F401
from everstep.checkpoints.store import Store
from everstep.observability import provider
from everstep.runtime.worker import Worker
from tests.support import migrated
from tests.support.kill_graphs import GRAPHS

with tempfile.TemporaryDirectory() as _folder, Store.open(f"sqlite:///{Path(_folder) / 'record.db'}") as _store:
    _store.enqueue("linear", {"world": str(Path(_folder) / "world")})
    Worker(_store, {"linear": GRAPHS["linear"]()}, tracing=provider.recorded([], "0")).run(until_idle=True)

migrated.content()
