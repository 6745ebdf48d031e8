"""Inputs that must be refused: a code, the place, the next step, and nothing written, not even an empty record."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.conftest import with_graphs
from tests.cli.folder import Folder, Ran, is_refused


@dataclass(frozen=True)
class Refusal:
    """An `--input`, and what the refusal says; `given` is standard input."""

    input: str
    says: tuple[str, ...]
    given: bytes = b""
    error: str = "payload_invalid"


REFUSALS = {
    "broken": Refusal('{"a": 1,', ("line 1, column 9",)),
    "broken in a later line": Refusal('{\n "a": 1\n "b": 2}', ("line 3, column 2", '"b": 2')),
    "broken after the last line": Refusal('{"a":\n', ("line 2, column 1",)),
    "single quotes": Refusal("{'a': 1}", ("line 1, column 2", "double quotes")),
    "more than one value": Refusal("{} {}", ("line 1, column 4",)),
    "far in a long line": Refusal(f'["{"x" * 500}", nope]', ("column 506", "nope")),
    "nothing": Refusal("", ("--input is empty",)),
    "white space": Refusal(" \n", ("--input is empty",)),
    "nothing on standard input": Refusal("-", ("standard input is empty",)),
    "null": Refusal("null", ("the input is null", "{}")),
    "null on standard input": Refusal("-", ("the input is null",), given=b" null\n"),
    "not a number": Refusal('{"a": NaN}', ("NaN",)),
    "infinite": Refusal("[-Infinity]", ("-Infinity",)),
    "too large a fraction": Refusal('{"a": [1e999]}', ("$.a[0]", "inf")),
    "a name twice": Refusal('{"a": {"b": 1, "b": 2}}', ("'b' twice",)),
    "an integer too large": Refusal('{"a": {"b": 9007199254740992}}', ("$.a.b ", "2^53")),
    "an integer of 5000 digits": Refusal("1" * 5000, ("5000 digits",)),
    "half a character": Refusal('{"a": ["\\ud800"]}', ("$.a[0] ", "surrogate")),
    "half a character in a name": Refusal('{"\\udfff": 1}', ("surrogate",)),
    "deep": Refusal("[" * 201 + "]" * 201, ("200 levels",)),
    "very deep": Refusal("-", ("nested too deeply",), given=b"[" * 200_000),
    "no file": Refusal("nowhere.json", ("nowhere.json", "No such file")),
    "a folder": Refusal(".", ("Is a directory",)),
    "a name that is too long": Refusal("x" * 5000, ("File name too long",)),
    "a broken file": Refusal("broken.json", ("the file broken.json", "line 2, column 1")),
    "a file of another encoding": Refusal("latin.json", ("the file latin.json", "UTF-8")),
    "standard input of another encoding": Refusal("-", ("standard input", "UTF-8"), given=b'"\xe5"'),
    "a password": Refusal('{"a": [{"dbPassword": "x"}]}', ("$.a[0].dbPassword",), error="secret_in_payload"),
    "a key": Refusal('{"note": "sk-proj-0123456789abcdefghij"}', ("$.note",), error="secret_in_payload"),
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Folder, dict[str, Ran]]:
    """The folder, and what `submit` did with each of the inputs."""
    folder = with_graphs(tmp_path_factory.mktemp("refused"))
    (folder.path / "broken.json").write_text('{"a":\n')
    (folder.path / "latin.json").write_bytes(b'{"a": "\xe5"}')
    ran = {
        name: folder.run("submit", "count", "--input", refusal.input, given=refusal.given)
        for name, refusal in REFUSALS.items()
        if refusal.given
    }
    others = [name for name in REFUSALS if name not in ran]
    commands = [("submit", "count", "--input", REFUSALS[name].input) for name in others]
    return folder, {**ran, **dict(zip(others, folder.all(*commands), strict=True))}


@pytest.mark.parametrize("name", REFUSALS)
def test_an_input_without_one_exact_meaning_is_refused(name: str, refused: tuple[Folder, dict[str, Ran]]) -> None:
    """Broken JSON is refused with its position, a value without an exact form and a credential with its path."""
    ran = refused[1][name]
    is_refused(ran, 64, REFUSALS[name].error)
    for part in REFUSALS[name].says:
        assert part in ran.err
    assert "sk-proj" not in ran.err


def test_a_refused_input_leaves_nothing_behind(refused: tuple[Folder, dict[str, Ran]]) -> None:
    """After all those refusals there is still no record."""
    names = {path.name for path in refused[0].path.iterdir()} - {"__pycache__"}
    assert names == {"broken.json", "graphs.py", "langgraph.json", "latin.json"}


def test_credentials_can_be_let_through_on_purpose(folder: Folder) -> None:
    """A secret-looking key is named by path, its value never shown; --allow-secret-keys accepts it."""
    given = '{"a": {"api_key": "hunter2hunter2", "max_tokens": 5}, "token": "hunter3hunter3"}'
    ran = folder.run("submit", "count", "--input", given, "--json")
    assert ran.code == 64
    assert "hunter" not in ran.err
    assert (ran.error["code"], ran.error["paths"]) == ("secret_in_payload", ["$.a.api_key", "$.token"])
    assert "--allow-secret-keys" in ran.error["next_step"]
    folder.submit("count", "--allow-secret-keys", given=given)
    (job,) = folder.json("jobs")
    assert job["input"] == json.loads(given)


def test_an_unknown_graph_is_refused_with_the_known_ones(folder: Folder) -> None:
    """An unknown graph exits 66, names the near miss and all known graphs, and leaves no record."""
    folder.configure(agent="./graphs.py:count", reporter="./graphs.py:mail")
    near, far = folder.run("submit", "agnet", "--input", "{}"), folder.run("submit", "zzz", "--input", "{}")
    for ran in (near, far):
        is_refused(ran, 66, "graph_not_found")
        assert "agent, reporter" in ran.err
    assert "Did you mean agent?" in near.err
    assert "Did you mean" not in far.err
    error = folder.run("submit", "agnet", "--input", "{}", "--json").error
    assert (error["graph"], error["known"], error["close"]) == ("agnet", ["agent", "reporter"], ["agent"])
    assert not (folder.path / "everstep.db").exists()


def test_a_file_that_may_not_be_read_is_told(folder: Folder) -> None:
    """An input file or a configuration without read permission is refused by name, as what it is."""
    secret = folder.path / "secret.json"
    secret.write_text("{}")
    secret.chmod(0)
    ran = folder.run("submit", "count", "--input", "secret.json", unprivileged=True)
    is_refused(ran, 64, "payload_invalid")
    assert "secret.json" in ran.err
    assert "Permission denied" in ran.err
    (folder.path / "langgraph.json").chmod(0)
    ran = folder.run("submit", "count", "--input", "{}", unprivileged=True)
    is_refused(ran, 78, "config_invalid")
    assert "Permission denied" in ran.err


def test_the_demo_leaves_other_folders_alone(folder: Folder) -> None:
    """`demo` refuses a folder with other things in it, and a file; nothing of them is changed."""
    before = sorted(folder.path.iterdir())
    for place in (".", "graphs.py"):
        is_refused(folder.run("demo", "--folder", place), 1, "demo_failed")
    assert sorted(folder.path.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nonsense",), "nonsense"),
        (("submit", "count"), "--input"),
        (("submit", "count", "--input", "{}", "--nonsense"), "--nonsense"),
        (("jobs", "--status", "sleeping"), "sleeping"),
        (("worker", "--concurrency", "0"), "--concurrency"),
        (("worker", "--lease", "soon"), "--lease"),
        (("show",), "JOB"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_usage_is_an_error_like_any_other(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    """A wrong command, option or value exits 64 with what is wrong, and with --json as an error object."""
    plain, as_json = Folder(tmp_path).all(arguments, (*arguments, "--json"))
    is_refused(plain, 64, "usage")
    assert says in plain.err
    assert (as_json.code, as_json.out, as_json.error["code"]) == (64, "", "usage")
    assert "--help" in as_json.error["next_step"]
    assert list(tmp_path.iterdir()) == []


def test_a_priority_out_of_range_is_refused_on_both_databases(folder: Folder) -> None:
    """Below 0, above 10 and what is no whole number exits 64 before the record is looked at, wherever that is."""
    nowhere = "postgresql://me@127.0.0.1:1/db"
    for priority in ("-1", "11", "2.5", "high", ""):
        for store in ("sqlite:///everstep.db", nowhere):
            ran = folder.run("submit", "count", "--input", "{}", "--store", store, "--priority", priority)
            is_refused(ran, 64, "usage")
            assert "--priority" in ran.err
    assert not (folder.path / "everstep.db").exists()
