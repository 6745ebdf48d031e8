"""The simulated provider's own record: its tasks, what was asked of it how often, and how fast.

In memory, and in a file if one is given, so that a provider that was restarted knows its tasks.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter, deque
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from examples.provider_simulator.plans import Message, Plan, read_plan

OPPOSITE = {"succeeded": "failed", "failed": "succeeded"}


@dataclass
class Task:
    """A task of the provider.

    Attributes:
        id: Its id.
        key: The key it was submitted with.
        kind: `generations`, `responses` or `videos`.
        request: What was asked for.
        plan: What is to go wrong.
        state: `running`, `succeeded`, `failed` or `cancelled`.
        polls: How often it was asked for.
        told: Whether its end was told to somebody who asked.
        made_at: When it was made, seconds since the Unix epoch.
    """

    id: str
    key: str
    kind: str
    request: dict[str, Any]
    plan: Plan
    state: str = "running"
    polls: int = 0
    told: bool = False
    made_at: float = field(default_factory=time.time)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state != "running"

    @property
    def content(self) -> bytes:
        """What it made: some bytes that follow from its key."""
        return b"made of " + hashlib.sha256(self.key.encode()).digest() * 32


class Book:
    """All tasks, and the counts.

    Args:
        idempotent: Whether a second submission with a key is the first.
        file: Where to keep the tasks as well.
    """

    def __init__(self, *, idempotent: bool, file: Path | None = None) -> None:
        self.lock = threading.RLock()
        self.tasks: dict[str, Task] = {}
        self.plans: dict[str, Plan] = {}
        self.default = Plan()
        self.idempotent = idempotent
        self.received: Counter[str] = Counter()
        self.made: Counter[str] = Counter()
        self.polls = 0
        self.peak = 0
        self.cancelled: list[str] = []
        self.messages: list[dict[str, Any]] = []
        self._faults: Counter[tuple[str, str]] = Counter()
        self._moments: deque[float] = deque()
        self._file = file
        if file is not None and file.is_file():
            for data in json.loads(file.read_text()):
                plan = read_plan(data.pop("plan"))
                self.tasks[data["id"]] = Task(**data, plan=plan)

    def plan_of(self, key: str) -> Plan:
        """What is to go wrong with submissions with this key."""
        return self.plans.get(key, self.default)

    def strike(self, key: str, fault: str, times: int) -> bool:
        """Whether this fault, which is for so many submissions with the key, is for this one."""
        with self.lock:
            self._faults[key, fault] += 1
            return self._faults[key, fault] <= times

    def submit(self, kind: str, key: str, request: dict[str, Any], plan: Plan) -> tuple[Task, bool]:
        """Make a task, or find the one with this key where keys are honoured; and whether it was made."""
        with self.lock:
            if self.idempotent and (found := self.by_key(key)) is not None:
                return found, False
            self.made[key] += 1
            prefix = {"generations": "gen", "responses": "resp", "videos": "video"}[kind]
            digest = hashlib.sha256(f"{key} {self.made[key]} {time.time_ns()}".encode()).hexdigest()
            task = Task(f"{prefix}_{digest[:24]}", key, kind, request, plan)
            self.tasks[task.id] = task
            self._keep()
            return task, True

    def by_key(self, key: str) -> Task | None:
        """The first task that was submitted with this key."""
        with self.lock:
            return next((task for task in self.tasks.values() if task.key == key), None)

    def unfinished(self) -> list[Task]:
        """Tasks that have not ended."""
        with self.lock:
            return [task for task in self.tasks.values() if not task.has_ended]

    def poll(self, task: Task) -> str:
        """Ask for a task: its state, as it is told this time."""
        with self.lock:
            now = time.monotonic()
            self.polls += 1
            self._moments.append(now)
            while self._moments[0] <= now - 1:
                self._moments.popleft()
            self.peak = max(self.peak, len(self._moments))
            task.polls += 1
            if task.plan.polls and task.polls > task.plan.polls and task.plan.end != "never":
                self.end(task, task.plan.end)
            state = task.state
            if task.has_ended and task.told and task.plan.contradict:
                return OPPOSITE.get(state, state)
            task.told = task.told or task.has_ended
            return state

    def end(self, task: Task, state: str) -> bool:
        """End a task; whether it had not ended before."""
        with self.lock:
            if task.has_ended:
                return False
            task.state = state
            self._keep()
            return True

    def report(self) -> dict[str, Any]:
        """What was asked of the provider: `submissions` are the tasks that were made, by key."""
        with self.lock:
            return {
                "submissions": dict(self.made),
                "received": dict(self.received),
                "polls": self.polls,
                "peak_polls_per_second": self.peak,
                "cancelled": list(self.cancelled),
                "messages": list(self.messages),
                "tasks": [{"key": task.key, "state": task.state, "polls": task.polls} for task in self.tasks.values()],
            }

    def _keep(self) -> None:
        if self._file is not None:
            beside = self._file.with_suffix(".new")
            beside.write_text(json.dumps([asdict(task) for task in self.tasks.values()]))
            beside.replace(self._file)


def ended_messages(task: Task) -> list[Message]:
    """What is sent once a task has ended."""
    return [message for message in task.plan.messages if message.when == "ended"]


def as_plan(plan: Plan, data: Any) -> Plan:
    """A plan with the fields of another one in the place of its own."""
    read = read_plan(data)
    return replace(plan, **{name: getattr(read, name) for name in data})
