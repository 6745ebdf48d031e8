"""Graphs that cannot be loaded or whose state cannot be stored: told by name, and no other job suffers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.folder import Folder, Ran, is_refused

FILES = {
    "syntax": "x = 1\ndef broken(:\n",
    "uninstalled": "import no_such_package\n",
    "renamed": "from graphs import nothing_of_this_name\n",
    "raises": 'key = "x"\nraise RuntimeError("the licence server\\nis away")\n',
    "leaves": "import sys\nsys.exit(3)\n",
    "skips": "class Skipped(BaseException):\n    pass\n\nraise Skipped('not here')\n",
    "interrupts": "raise KeyboardInterrupt\n",
    "things": "number = 42\ndef fails():\n    raise LookupError('no model')\ndef empty():\n    return None\n",
    "loud": "print('stdout is not mine')\nfrom graphs import count\n",
}
BAD: dict[str, tuple[str, tuple[str, ...]]] = {
    "nofile": ("./nofile.py:graph", ("no file", "nofile.py")),
    "nomodule": ("no.such.module:graph", ("ModuleNotFoundError", "Install 'no'")),
    "noname": ("./graphs.py:cuont", ("has no 'cuont'", "count")),
    "syntax": ("./syntax.py:graph", ("syntax.py:2", "SyntaxError")),
    "uninstalled": ("./uninstalled.py:graph", ("uninstalled.py:1", "no_such_package", "Install")),
    "renamed": ("./renamed.py:graph", ("renamed.py:1", "ImportError", "nothing_of_this_name")),
    "raises": ("./raises.py:graph", ("raises.py:2", "RuntimeError: the licence server")),
    "leaves": ("./leaves.py:graph", ("leaves.py:2", "SystemExit", "__main__")),
    "skips": ("./skips.py:graph", ("skips.py:4", "Skipped: not here")),
    "interrupts": ("./interrupts.py:graph", ("interrupts.py:1", "KeyboardInterrupt")),
    "number": ("./things.py:number", ("int", "neither a graph")),
    "fails": ("./things.py:fails", ("things.py:3", "LookupError: no model")),
    "empty": ("./things.py:empty", ("NoneType", "no graph")),
}
"""Graphs that do not load: where they are to come from, and what is said of them."""


@dataclass(frozen=True)
class Bad:
    """What `doctor --json` and a worker did with bad graphs, and the jobs by graph."""

    doctor: Ran
    worker: Ran
    jobs: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Bad:
    """A folder with bad graphs and two good ones, and what came of them."""
    path = tmp_path_factory.mktemp("bad")
    (path / "graphs.py").write_text(Path(__file__).with_name("graphs.py").read_text())
    graphs = {name: target for name, (target, _) in BAD.items()}
    folder = Folder(path).write(**FILES).configure(**graphs, loud="./loud.py:count", count="./graphs.py:count")
    folder.enqueue(*graphs, "loud", "count")
    doctor, worker = folder.all(("doctor", "--json"), ("worker", "--until-idle", "--json", "--concurrency", "3"))
    return Bad(doctor, worker, {job["graph"]: job for job in folder.json("jobs")})


@pytest.mark.parametrize("name", BAD)
def test_a_graph_that_does_not_load_is_told_by_file_and_line(name: str, bad: Bad) -> None:
    """`doctor` and the job, which waits in review, name the graph, the user's file and line, and the exception."""
    (finding,) = (found for found in bad.doctor.value["findings"] if found["detail"].startswith(f"{name}: "))
    assert finding["level"] == "wrong"
    job = bad.jobs[name]
    assert (job["status"], job["error"]["code"]) == ("review", "graph_load_failed")
    for part in BAD[name][1]:
        assert part in finding["detail"] + finding["advice"]
        assert part in job["error"]["message"] + job["error"]["next_step"]


def test_a_bad_graph_harms_no_other(bad: Bad) -> None:
    """A worker with bad graphs goes on to the end without a traceback, and the good graphs' jobs are done."""
    assert (bad.doctor.code, bad.worker.code) == (1, 0)
    assert "Traceback" not in bad.doctor.out + bad.doctor.err + bad.worker.out + bad.worker.err
    states = {graph: job["status"] for graph, job in bad.jobs.items()}
    assert states == {**dict.fromkeys(BAD, "review"), "loud": "done", "count": "done"}


def test_what_graphs_print_does_not_mix_with_json(bad: Bad) -> None:
    """What a module prints as it is imported goes to stderr when stdout is JSON; a worker's is a line an event."""
    assert isinstance(bad.doctor.value, dict)
    events = [json.loads(line) for line in bad.worker.out.splitlines()]
    assert [event["event"] for event in events].count("done") == 2
    assert "stdout is not mine" in bad.doctor.err
    assert "stdout is not mine" in bad.worker.err


def test_a_mended_graph_goes_on(folder: Folder) -> None:
    """After the file is mended, approving the review of the failed load lets the job run."""
    folder.write(late="raise RuntimeError('not yet')\n").configure(late="./late.py:graph")
    job = folder.submit("late")
    assert folder.run("worker", "--until-idle").code == 0
    (review,) = (review for review in folder.json("review") if review["job"] == job)
    folder.write(late="from graphs import count as graph\n")
    folder.json("review", "approve", review["id"])
    assert folder.run("worker", "--until-idle").code == 0
    assert folder.json("show", job)["status"] == "done"


UNSTORABLE = {
    "lock": ("threading.Lock()", "$.n.orders[1] ", "lock"),
    "holder": ("Holder()", "$.n.orders[1] ", "unstorable.Holder"),
    "integer": ("2**64", "$.n.orders[1] ", "64 bits"),
    "function": ("lambda: 1", "$.n.orders[1] ", "function"),
    "generator": ("(n for n in [1])", "$.n.orders[1] ", "generator"),
}


@pytest.fixture(scope="module")
def unstorable(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The jobs, by graph, after a worker ran graphs whose state cannot be stored, and one good graph."""
    code = (
        "import threading\nfrom typing import Any, TypedDict\nfrom langgraph.graph import END, START, StateGraph\n"
        "class State(TypedDict, total=False):\n    n: Any\n"
        "class Holder:\n    def __init__(self):\n        self.lock = threading.Lock()\n"
        "def made(make):\n    work = lambda state: {'n': {'orders': [{'id': 1}, make()]}}\n"
        "    return StateGraph(State).add_node('work', work).add_edge(START, 'work').add_edge('work', END)\n"
        "good = made(lambda: 2)\n"
    )
    lines = [f"{name} = made(lambda: ({value}))" for name, (value, _, _) in UNSTORABLE.items()]
    folder = Folder(tmp_path_factory.mktemp("unstorable")).write(unstorable=code + "\n".join(lines))
    folder.configure(**{name: f"./unstorable.py:{name}" for name in (*UNSTORABLE, "good")})
    folder.enqueue(*UNSTORABLE, "good")
    ran = folder.run("worker", "--until-idle", "--concurrency", "2")
    assert (ran.code, "Traceback" in ran.err) == (0, False), ran
    return {job["graph"]: job for job in folder.json("jobs")}


@pytest.mark.parametrize("name", UNSTORABLE)
def test_a_state_that_cannot_be_stored_is_named_by_path(name: str, unstorable: dict[str, dict[str, Any]]) -> None:
    """A job whose state holds what cannot be stored has failed, with the path and type, and what to do; others run."""
    job, (_, path, what) = unstorable[name], UNSTORABLE[name]
    assert (job["status"], job["error"]["code"]) == ("failed", "state_not_serializable")
    assert path in job["error"]["message"]
    assert what in job["error"]["message"]
    assert "everstep retry" in job["error"]["next_step"]
    assert unstorable["good"]["status"] == "done"


CONFIGURATIONS: dict[str, tuple[str | bytes | None, str]] = {
    "missing": (None, "There is no"),
    "not json": ('{"graphs": {"a": "./a.py:g",}}', "line 1 column"),
    "empty": ("", "line 1 column 1"),
    "a list": ("[]", "no object"),
    "no graphs": ("{}", "names no graphs"),
    "graphs is a list": ('{"graphs": ["./a.py:g"]}', "names no graphs"),
    "an entry is a number": ('{"graphs": {"a": 5}}', "'a'"),
    "no variable": ('{"graphs": {"a": "./a.py"}}', "names no variable"),
    "a graph twice": ('{"graphs": {"a": "./a.py:g", "a": "./b.py:g"}}', "'a' stands there twice"),
    "javascript": ('{"graphs": {"a": "./agent.ts:graph"}}', "JavaScript"),
    "dependencies is a text": ('{"graphs": {"a": "./a.py:g"}, "dependencies": "."}', "dependencies"),
    "a dependency that is not there": ('{"graphs": {"a": "./a.py:g"}, "dependencies": ["./nowhere"]}', "nowhere"),
    "env is a number": ('{"graphs": {"a": "./a.py:g"}, "env": 1}', "env"),
    "not text": (b"\xff\xfe\x00", "cannot be read"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_wrong_configuration_is_refused(name: str, tmp_path: Path) -> None:
    """A `langgraph.json` that is missing or wrong exits 78 with what is wrong and where; no record is made."""
    content, says = CONFIGURATIONS[name]
    if content is not None:
        (tmp_path / "langgraph.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    folder = Folder(tmp_path)
    submit, as_json = folder.all(("submit", "a", "--input", "{}"), ("submit", "a", "--input", "{}", "--json"))
    is_refused(submit, 78, "config_invalid")
    assert says in submit.err
    assert as_json.error["code"] == "config_invalid"
    assert not (tmp_path / "everstep.db").exists()


def test_a_wrong_configuration_stops_a_worker_and_is_found_by_doctor(tmp_path: Path) -> None:
    """A worker with a wrong configuration exits 78 before it touches a record; `doctor` says what is wrong with it."""
    folder = Folder(tmp_path)
    (tmp_path / "other.json").write_text('{"graphs": {"a": "./agent.ts:graph"}}')
    worker, doctor = folder.all(("worker", "--config", "other.json"), ("doctor", "--config", "other.json"))
    is_refused(worker, 78, "config_invalid")
    assert doctor.code == 1
    assert "✗ graphs" in doctor.out
    assert "JavaScript" in doctor.out
    by_variable = folder.run("submit", "a", "--input", "{}", EVERSTEP_CONFIG="other.json")
    assert "JavaScript" in by_variable.err
    assert not (tmp_path / "everstep.db").exists()
