"""The server: requests a second and how long they take, how fast tokens arrive, and what open streams cost."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.figures import Figure
from bench.processes import OWN, ROOT, Child, ChildFailed
from bench.processes import run as in_process
from bench.run import Run, raw
from bench.tables import Section, Table, Target

OURS, PLAIN = "everstep up", "hand-written FastAPI, stock saver"
TOKENS = 40
PAUSE_S = 0.05
FILES = 8192
"""Open files of the processes, each connection one."""
MOST_BYTES = 300e6
"""What the server may take with all streams open."""


class Process:
    """A server that runs.

    Args:
        url: Where it is.
        pid: Its process.
    """

    def __init__(self, url: str, pid: int) -> None:
        self.url, self._pid = url, pid

    def bytes(self, which: str = "VmRSS") -> float:
        """What of its memory is resident; `VmHWM`: at most so far."""
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        return next(float(line.split()[1]) * 1024 for line in lines if line.startswith(which))

    def cpu(self) -> float:
        """Processor seconds it has used."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(name: str, folder: str) -> Generator[Process]:
    """A server of a new record.

    Args:
        name: Which one.
        folder: An empty folder.
    """
    if name == OURS:
        shutil.copy(ROOT / "bench" / "served_agent.py", folder)
        (Path(folder) / "langgraph.json").write_text(json.dumps({"graphs": {"agent": "./served_agent.py:graph"}}))
        command = [OWN, "-m", "everstep", "up", "--port", "0", "--json", "--concurrency", "128"]
        command += ["--config", f"{folder}/langgraph.json", "--store", f"sqlite:///{folder}/everstep.db"]
    else:
        command = [OWN, "-m", "bench.plain_server", f"{folder}/plain.db"]
    hidden = ("EVERSTEP_", "OTEL_", "LANGFUSE_", "LANGSMITH_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    said = Path(folder) / "said"
    with said.open("w") as output, (Path(folder) / "errors").open("w+") as errors:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=errors)
        try:
            yield Process(_ready(process, said, Path(folder) / "errors"), process.pid)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _ready(process: subprocess.Popen[bytes], said: Path, errors: Path) -> str:
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        line = said.read_text().partition("\n")
        if line[1]:
            return json.loads(line[0])["url"]
        time.sleep(0.05)
    raise ChildFailed("the server did not start", errors.read_text()[-2000:])


def once(run: Run, name: str) -> dict[str, float]:
    """All measurements of one server."""
    scale = run.scale
    with run.place() as folder, server(name, folder) as process:
        figures: dict[str, float] = in_process(
            OWN, "bench.server_child:requests", url=process.url, count=scale.requests
        )
        alone = in_process(OWN, "bench.server_child:streams", url=process.url, count=1, tokens=TOKENS, pause=PAUSE_S)
        figures |= {f"alone_{key}": value for key, value in alone.items()}
        figures["before"] = process.bytes()
        many: dict[str, Any] = {"url": process.url, "count": scale.streams, "tokens": TOKENS, "pause": PAUSE_S}
        if name != OURS:
            figures |= in_process(OWN, "bench.server_child:streams", **many)
            return figures | {"peak": process.bytes("VmHWM")}
        with Child(OWN, "bench.server_child:idle", url=process.url, count=scale.idle_streams) as idle:
            idle.wait_until_ready()
            idle.go()
            time.sleep(scale.idle_s)
            cpu, at = process.cpu(), time.monotonic()
            time.sleep(max(scale.idle_s, 1.0))
            figures["idle_cpu"] = (process.cpu() - cpu) / (time.monotonic() - at) * 100
            figures["idle_bytes"] = process.bytes()
            figures |= in_process(OWN, "bench.server_child:streams", **many)
            figures["peak"] = process.bytes("VmHWM")
            if (still_open := idle.stop()) != scale.idle_streams:
                raise ChildFailed(f"{still_open} of {scale.idle_streams} idle streams were open at the end")
    return figures


def run(run: Run) -> Section:
    """Measure it."""
    section = Section("server", "The server")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, FILES)), hard))
    try:
        found = run.measure("server", [OURS, PLAIN], lambda name: once(run, name), section.failures)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    section.raw = raw(found)
    kinds = {"create": "create a thread", "get": "get its state", "wait": "a run and its output"}
    section.tables = [
        Table(
            "requests on eight connections",
            ["system", *(f"{what}, {unit}" for what in kinds.values() for unit in ("a second", "p50 ms", "p99 ms"))],
            [
                [name, *(each[f"{kind}_{part}"].text(0 if part == "rate" else 1) for kind in kinds for part in PARTS)]
                for name, each in found.items()
            ],
        ),
        *(
            Table(
                title,
                ["system", "first token, p50 ms", "p99", "token to client, p50 ms", "p99", "gap, p50 ms", "p99"],
                [
                    [name, *(each[f"{before}{of}_{part}"].text(1) for of in STREAMED for part in ("p50", "p99"))]
                    for name, each in found.items()
                ],
            )
            for title, before in (
                (f"one stream of {TOKENS} tokens, {PAUSE_S * 1000:.0f} ms apart", "alone_"),
                (f"{run.scale.streams} such streams at once", ""),
            )
        ),
        Table(
            f"memory, with {run.scale.idle_streams:,} streams open on which nothing happens",
            ["system", "before, MB", "with idle streams, MB", "their CPU, %", "peak with active ones, MB"],
            [
                [
                    name,
                    _megabytes(each, "before"),
                    _megabytes(each, "idle_bytes"),
                    each["idle_cpu"].text(1) if "idle_cpu" in each else "–",
                    _megabytes(each, "peak"),
                ]
                for name, each in found.items()
            ],
        ),
    ]
    section.notes = [
        "Each server is one process on one SQLite file (WAL, `synchronous=FULL`); its clients are another process on"
        " the same machine. The hand-written one is what people write today: FastAPI, LangGraph's stock"
        " `AsyncSqliteSaver`, `ainvoke` and `astream` within the request. It stores threads and checkpoints and nothing"
        " else: a run ends with its connection, nothing is queued, and no stream can be gone back to, so it has no idle"
        " ones. Everstep stores the run, its job and every event before a client is told of it.",
        "Aegra, the open server of the same API, is not in the table: its releases of this year need Python 3.12 and a"
        " PostgreSQL server, and everything here runs on one Python and one file. `langgraph-api` is not open source.",
    ]
    if OURS in found:
        ours = found[OURS]
        peak, cpu, lag = ours["peak"].median, ours["idle_cpu"].median, ours["lag_p99"].median
        streams = f"{run.scale.idle_streams:,} idle and {run.scale.streams} active streams"
        section.targets = [
            Target(f"Memory with {streams}", f"< {MOST_BYTES / 1e6:.0f} MB", f"{peak / 1e6:.0f} MB", peak < MOST_BYTES),
            Target(f"CPU of {run.scale.idle_streams:,} idle streams", "< 5 %", f"{cpu:.1f} %", cpu < 5),
            Target(f"Token to client, {streams}, p99", "< 500 ms", f"{lag:.0f} ms", lag < 500),
        ]
    return section


PARTS = ("rate", "p50", "p99")
STREAMED = ("first", "lag", "gap")


def _megabytes(figures: dict[str, Figure], name: str) -> str:
    return f"{figures[name].median / 1e6:.0f}" if name in figures else "–"
