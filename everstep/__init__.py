"""Everstep: agents that never lose a step. Run any LangGraph graph as a durable job.

Names are loaded when they are first used, so that importing `everstep` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.checkpoints.canonical import job_key, repository_key
    from everstep.checkpoints.policy import Acceptance, Budget, JobPolicy
    from everstep.checkpoints.saver import StepSaver
    from everstep.checkpoints.store import Store
    from everstep.errors import ApprovalRejected, EffectRejected, EverstepError
    from everstep.graphs.loader import GraphCatalogue
    from everstep.nodes.attempt import current_job
    from everstep.nodes.effect import EffectUnknown, effect, effect_key
    from everstep.nodes.review import Decision, review
    from everstep.nodes.verify import Verification, verify
    from everstep.nodes.wait import Arrived, asleep_until, await_for, sleep_until, wait_for
    from everstep.runtime.classify import register
    from everstep.runtime.worker import Worker

_HOME = {
    "Acceptance": "everstep.checkpoints.policy",
    "ApprovalRejected": "everstep.errors",
    "Arrived": "everstep.nodes.wait",
    "Budget": "everstep.checkpoints.policy",
    "Decision": "everstep.nodes.review",
    "EffectRejected": "everstep.errors",
    "EffectUnknown": "everstep.nodes.effect",
    "EverstepError": "everstep.errors",
    "GraphCatalogue": "everstep.graphs.loader",
    "JobPolicy": "everstep.checkpoints.policy",
    "StepSaver": "everstep.checkpoints.saver",
    "Store": "everstep.checkpoints.store",
    "Verification": "everstep.nodes.verify",
    "Worker": "everstep.runtime.worker",
    "asleep_until": "everstep.nodes.wait",
    "await_for": "everstep.nodes.wait",
    "current_job": "everstep.nodes.attempt",
    "effect": "everstep.nodes.effect",
    "effect_key": "everstep.nodes.effect",
    "job_key": "everstep.checkpoints.canonical",
    "register": "everstep.runtime.classify",
    "repository_key": "everstep.checkpoints.canonical",
    "review": "everstep.nodes.review",
    "sleep_until": "everstep.nodes.wait",
    "verify": "everstep.nodes.verify",
    "wait_for": "everstep.nodes.wait",
}

__all__ = [
    "Acceptance",
    "ApprovalRejected",
    "Arrived",
    "Budget",
    "Decision",
    "EffectRejected",
    "EffectUnknown",
    "EverstepError",
    "GraphCatalogue",
    "JobPolicy",
    "StepSaver",
    "Store",
    "Verification",
    "Worker",
    "asleep_until",
    "await_for",
    "current_job",
    "effect",
    "effect_key",
    "job_key",
    "register",
    "repository_key",
    "review",
    "sleep_until",
    "verify",
    "wait_for",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'everstep' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__]
