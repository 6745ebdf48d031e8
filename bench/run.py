"""One run of the benchmarks: how much, where, against whom; and a place of its own for each measurement."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from bench.contenders import Contender, contenders
from bench.figures import Figure, both_orders
from bench.postgres import Server, server
from bench.processes import OWN, Child, ChildFailed, run


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        runs: How often each thing is measured.
        jobs: Jobs for the queues.
        pick_ups: Jobs for the latency, one by one.
        idle_s: Seconds a worker is watched while it has nothing to do.
        agents: Agents at once.
        agent_steps: Steps of each.
        steps: Lengths of one agent's run.
        isolated: Jobs that get a process each.
        starts: How often a command is started.
        listed: Jobs in the record `show` is asked on.
        stored: Jobs in the large record, each with ten checkpoints.
        probes: How often each query is made on it.
        counts_syncs: Whether syncs are counted, in runs of their own.
        requests: Requests of each kind to a server.
        streams: Streams at once on which tokens are told.
        idle_streams: Streams at once on which nothing happens.
        turns: How often in a run an agent goes through its steps with traces and without.
    """

    runs: int
    jobs: int
    pick_ups: int
    idle_s: float
    agents: int
    agent_steps: int
    steps: tuple[int, ...]
    isolated: int
    starts: int
    listed: int
    stored: int
    probes: int
    counts_syncs: bool = True
    requests: int = 2_000
    streams: int = 100
    idle_streams: int = 1_000
    turns: int = 4


FULL = Scale(4, 1000, 50, 5.0, 100, 40, (200, 1000), 20, 7, 10_000, 100_000, 100)
QUICK = Scale(2, 400, 20, 1.0, 20, 10, (50, 200), 4, 3, 1_000, 5_000, 20, requests=400, turns=2)
TINY = Scale(
    1, 12, 3, 0.1, 3, 2, (3,), 1, 1, 20, 20, 2, counts_syncs=False, requests=16, streams=3, idle_streams=5, turns=1
)

Progress = Callable[[str], None]


class Run:
    """What scenarios are given.

    Args:
        scale: How much is measured.
        folder: Where databases go; on the disk that is to be measured.
        progress: Told what is being measured.
        with_peers: Whether systems of the peers' environment take part.
        systems: The queues that take part, by name; all when empty.
    """

    def __init__(
        self, scale: Scale, folder: Path, progress: Progress, *, with_peers: bool = True, systems: Sequence[str] = ()
    ) -> None:
        self.scale = scale
        self.folder = folder
        self.progress = progress
        self._with_peers = with_peers
        self._systems = systems
        self._server: Server | ImportError | None = None
        self._open = ExitStack()

    def close(self) -> None:
        """End the server, if one was started."""
        self._open.close()

    def postgres(self) -> Server:
        """The PostgreSQL server, started at the first call.

        Raises:
            ChildFailed: None can be had.
        """
        if self._server is None:
            try:
                self._server = self._open.enter_context(server(self.folder))
            except ImportError as error:
                self._server = error
        if isinstance(self._server, ImportError):
            raise ChildFailed(f"no PostgreSQL server: {self._server}")
        return self._server

    def contenders(self, database: str) -> list[Contender]:
        """Those that take part, Everstep first."""
        return [
            one
            for one in contenders(database)
            if (self._with_peers or one.python == OWN) and (not self._systems or one.name in self._systems)
        ]

    @contextmanager
    def place(self, database: str = "sqlite") -> Generator[str]:
        """An empty place for a database: a folder, or the URL of a PostgreSQL database."""
        if database == "postgres":
            with self.postgres().database() as url:
                yield url
            return
        folder = mkdtemp(dir=self.folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def measure(
        self, what: str, names: list[str], once: Callable[[str], dict[str, float]], failures: list[str]
    ) -> dict[str, dict[str, Figure]]:
        """Measure each of `names` in every run, in both orders.

        Args:
            what: What it is, for the progress and for failures.
            names: The systems.
            once: Measures one of them; several figures by name.
            failures: Where it is noted which failed; a system that failed is not asked again.

        Returns:
            By system and figure; only systems that failed in no run.
        """
        found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for number in range(self.scale.runs):
            for name in both_orders(list(found), number):
                self.progress(f"{what}: {name} ({number + 1}/{self.scale.runs})")
                try:
                    found[name].append(once(name))
                except ChildFailed as error:
                    failures.append(f"{what}, {name}: {error}")
                    del found[name]
        return {
            name: {figure: Figure(tuple(each[figure] for each in every)) for figure in every[0]}
            for name, every in found.items()
            if every
        }

    def ask(self, contender: Contender, action: str, place: str, **more: Any) -> Any:
        """Have a queue do something in a process of its own."""
        return run(contender.python, f"bench.queue_child:{action}", **queue_arguments(contender, place), **more)

    def child(self, contender: Contender, action: str, place: str, **more: Any) -> Child:
        """As `ask`, but under way; it waits for the word to go."""
        return Child(contender.python, f"bench.queue_child:{action}", **queue_arguments(contender, place), **more)


def queue_arguments(contender: Contender, place: str) -> dict[str, Any]:
    """What every action of `bench.queue_child` needs to know."""
    return {"module": contender.module, "place": place, "options": contender.options}


def raw(found: dict[str, dict[str, Figure]]) -> dict[str, Any]:
    """Measurements as JSON data."""
    return {name: {what: list(figure.values) for what, figure in each.items()} for name, each in found.items()}
