"""Who a worker is, and when one is surely dead."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from everstep.runtime import identity
from everstep.runtime.identity import is_surely_dead, part_of, surely_dead, was_booted_since, worker_id


def id_of(process: subprocess.Popen[bytes]) -> str:
    """The id a worker in another process has."""
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


def worker() -> subprocess.Popen[bytes]:
    """A process that tells its worker id and then waits."""
    code = "from everstep.runtime.identity import worker_id; print(worker_id(), flush=True); input()"
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_an_id_never_comes_back() -> None:
    """Two workers of one process have different ids, so an id is no fence and needs to be none."""
    ids = {worker_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(str(os.getpid()) in name.split(":") for name in ids)


def test_a_living_worker_is_not_dead() -> None:
    """This process, and another that runs, are alive."""
    process = worker()
    try:
        assert not is_surely_dead(id_of(process))
        assert not is_surely_dead(worker_id())
    finally:
        process.communicate(b"\n")


@pytest.mark.parametrize("reaped", [True, False])
def test_a_killed_worker_is_dead_at_once(reaped: bool) -> None:
    """A worker that was killed is dead, also while its parent has not yet asked how it ended."""
    process = worker()
    name = id_of(process)
    process.kill()
    if reaped:
        process.wait()
    else:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_surely_dead(name)
    process.communicate()


@pytest.fixture
def machine_with_an_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some containers have none."""
    monkeypatch.setattr(identity, "_machine_id", lambda: "0123456789abcdef")


def parts(**changed: str) -> str:
    """This process's worker id with some parts replaced."""
    names = ("host", "machine", "boot", "pid", "started", "random")
    given = dict(zip(names, worker_id().rsplit(":", 5), strict=True))
    return ":".join({**given, **changed}.values())


def test_another_process_with_the_same_number_proves_the_death() -> None:
    """If the process of that number started at another time, the worker's process is gone."""
    assert is_surely_dead(parts(started="1"))


@pytest.mark.usefixtures("machine_with_an_id")
def test_a_reboot_proves_the_death() -> None:
    """A worker of an earlier boot of this machine is dead, whatever runs under its number now."""
    assert is_surely_dead(parts(boot="00000000"))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "worker",
        "a:b:c",
        parts(machine="00000000", started="1"),
        parts(machine="00000000", boot="00000000"),
        parts(pid="x"),
        parts(pid="-1"),
        parts(pid="1" * 30),
    ],
    ids=["empty", "a word", "another form", "no machine", "no boot", "pid a letter", "pid negative", "pid too long"],
)
def test_without_proof_nobody_is_dead(name: str) -> None:
    """Another machine, another container, an id of another form: only the lease can tell."""
    assert not is_surely_dead(name)


@pytest.mark.usefixtures("machine_with_an_id")
def test_only_a_restarted_machine_explains_a_death() -> None:
    """A worker of an earlier boot died with its machine, and what it started as well; a killed one did not."""
    assert was_booted_since(parts(boot="00000000"))
    assert was_booted_since(parts(boot="00000000") + "/1:1:x")
    assert not was_booted_since(parts(started="1"))
    assert not was_booted_since(parts(machine="00000000", boot="00000000"))


def test_without_an_id_of_the_machine_another_boot_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hosts may have one name, and each its own boot; the lease alone can tell."""
    monkeypatch.setattr(identity, "_machine_id", str)
    assert not is_surely_dead(parts(boot="00000000", started="1"))
    assert not was_booted_since(parts(boot="00000000"))
    assert is_surely_dead(parts(started="1"))


@pytest.mark.parametrize("own", ["99999999:1:x", "x:1:x", "", ":"])
def test_a_worker_that_lives_looks_after_its_processes(own: str) -> None:
    """Nobody else takes over from the process of a job, dead or not, while the worker that started it lives."""
    assert not is_surely_dead(f"{worker_id()}/{own}")


def test_a_worker_and_its_processes_are_dead_together_or_not_at_all() -> None:
    """While one process of a dead worker is still there, none of them counts as dead; what others hold does."""
    dead, other = parts(started="1"), parts(started="2")
    gone, living = f"{dead}/{os.getpid()}:1:x", part_of(dead)
    assert is_surely_dead(gone)
    assert not is_surely_dead(living)
    assert surely_dead([dead, gone, other]) == [dead, gone, other]
    assert surely_dead([dead, gone, living, other]) == [other]
