"""What a run was made on: machine, disk, versions, load. Figures mean nothing without it."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from bench.processes import PEERS, ROOT

OURS = (
    "everstep",
    "langgraph",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "sqlalchemy",
    "psycopg",
)
THEIRS = ("huey", "persist-queue", "litequeue", "dbos", "procrastinate", "pgqueuer", "asyncpg", "psycopg", "sqlalchemy")
_ASK = (
    "import sys; from importlib.metadata import version as v; print(*(f'{n} {v(n)}' for n in sys.argv[1:]), sep=', ')"
)


def fsync_ms(folder: Path) -> float:
    """The median time of appending 4 KiB to a file and syncing it, milliseconds."""
    took: list[float] = []
    path = folder / "fsync"
    with path.open("wb", buffering=0) as file:
        for _ in range(100):
            file.write(b"\0" * 4096)
            begin = time.perf_counter()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - begin) * 1000)
    path.unlink()
    return statistics.median(took)


def describe(folder: Path, postgres: dict[str, str]) -> list[tuple[str, str]]:
    """What to say of this run, a line each.

    Args:
        folder: Where the databases are.
        postgres: The server's settings, if there is one.
    """
    lines = [
        ("date", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("commit", _output("git", "rev-parse", "--short=12", "HEAD") or "unknown"),
        ("machine", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {_processor()}"),
        ("load average at the start", _load()),
        ("disk", f"{_file_system(folder)}, fsync of 4 KiB {fsync_ms(folder):.2f} ms"),
        ("Python", f"{platform.python_version()}, SQLite {sqlite3.sqlite_version}"),
        ("Everstep's environment", ", ".join(f"{name} {version(name)}" for name in OURS)),
        ("peers' environment", _peers()),
    ]
    if postgres:
        lines.append(("PostgreSQL", ", ".join(f"{name} {value}" for name, value in postgres.items())))
    return lines


def _load() -> str:
    return ", ".join(f"{part:.2f}" for part in os.getloadavg()) + " (1, 5, 15 minutes)"


def _peers() -> str:
    if not Path(PEERS).exists():
        return "not there"
    return _output(PEERS, "-c", _ASK, *THEIRS) or "incomplete"


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def _file_system(folder: Path) -> str:
    if sys.platform != "linux":
        return "file system unknown"
    return _output("stat", "--file-system", "--format=%T", str(folder)) or "file system unknown"


def _output(*command: str) -> str:
    try:
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""
