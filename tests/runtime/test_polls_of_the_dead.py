"""What a process that died was asking a provider for: another goes on at once, where its death is proven."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from everstep.checkpoints import provider_tasks
from everstep.checkpoints.store import Store
from everstep.nodes.providers.registry import Providers
from everstep.runtime.identity import worker_id
from everstep.runtime.observation import Observation
from tests.support.paid import DONE, Scripted, again, task_of
from tests.support.waiting import until

HOUR_MS = 3_600_000


def test_what_a_dead_process_was_asking_for_is_due_at_once(shared: Store) -> None:
    """Its lease is not waited for; that of one that lives is."""
    tell = "from everstep.runtime.identity import worker_id; print(worker_id())"
    dead = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True).stdout.strip()
    films, sounds = Scripted("films"), Scripted("sounds")
    films.otherwise = sounds.otherwise = DONE
    tasks = [task_of(shared, provider=name, key=name, to="pending") for name in ("films", "sounds")]
    for task, holder in zip(tasks, (dead, worker_id()), strict=True):
        take = partial(provider_tasks.take_due, provider=task.provider, holder=holder, lease_ms=HOUR_MS, limit=1)
        assert shared.write(partial(take, now=shared.clock.now_ms())).result()
    observation = Observation(shared, Providers.of(sounds, films))
    observation.start()
    try:
        until(lambda: again(shared, tasks[0]).state == "succeeded", "the end of the dead one's task")
    finally:
        observation.stop()
    assert (again(shared, tasks[1]).state, sounds.asked) == ("pending", {})
