"""A real PgBouncer in front of the tests' PostgreSQL server, reached by a socket in a folder, on no network."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from psycopg import conninfo

from tests.support.postgres import server_url
from tests.support.waiting import until

PORT = 6432  # of the name of a socket in a folder of its own, not of the network


def _program() -> str:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    found = shutil.which("pgbouncer", path=path)
    if found is None:
        pytest.skip("no pgbouncer on PATH (Debian: apt-get install pgbouncer)")
    return found


def _owner(host: str) -> str:
    """Who may reach the server's socket, and is not root, as whom PgBouncer refuses to run."""
    owner = pwd.getpwuid(os.stat(host).st_uid).pw_name if os.path.isdir(host) else "root"
    return "nobody" if owner == "root" else owner


@contextmanager
def pooler(mode: str, **settings: str) -> Iterator[str]:
    """A PgBouncer; yields what a URL ends with that goes through it, after the database's name.

    Args:
        mode: `session`, `transaction` or `statement`.
        settings: More of its settings.
    """
    program, server = _program(), conninfo.conninfo_to_dict(server_url())
    folder = Path(tempfile.mkdtemp(prefix="everstep-pool-"))
    folder.chmod(0o777)  # it does not run as root
    known = {name: server[name] for name in ("host", "port", "user", "password") if server.get(name)}
    target = " ".join(f"{name}={value}" for name, value in known.items())
    wanted = {
        "listen_port": PORT,
        "unix_socket_dir": folder,
        "auth_type": "any",
        "pool_mode": mode,
        "default_pool_size": 10,
        "logfile": folder / "log",
        **settings,
    }
    lines = ["[databases]", f"* = {target}", "[pgbouncer]", *(f"{name} = {value}" for name, value in wanted.items())]
    (folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
    as_user = ["-u", _owner(str(known.get("host", "")))] if os.geteuid() == 0 else []
    process = subprocess.Popen([program, "-q", *as_user, str(folder / "pgbouncer.ini")])
    try:
        until(lambda: process.poll() is not None or (folder / f".s.PGSQL.{PORT}").exists())
        assert process.poll() is None, (folder / "log").read_text()
        yield f"?host={quote(str(folder), safe='')}&port={PORT}&user={known.get('user', 'postgres')}"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def through(url: str, pooled: str) -> str:
    """The URL of the same database through a pooler; any other parameters are lost."""
    return f"postgresql:///{conninfo.conninfo_to_dict(url)['dbname']}{pooled}"


def asked(url: str, statement: str) -> object:
    """The first value that a statement gives, if it gives any, on a connection of its own."""
    with psycopg.connect(url, autocommit=True) as connection:
        done = connection.execute(statement.encode())
        row = None if done.description is None else done.fetchone()
        return None if row is None else row[0]
