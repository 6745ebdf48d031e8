"""Git's words turned into errors with a type, against real remotes and a real HTTP server on this machine."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from everstep.errors import (
    BranchMoved,
    EverstepError,
    GitFailed,
    RemoteDenied,
    RemoteUnavailable,
    RepositoryInvalid,
)
from everstep.graphs import repository_git
from everstep.runtime.classify import classify
from tests.support.repositories import add_commit, commits, git, make_remote
from tests.support.serving import serving


@contextmanager
def http_server(answer: int | Callable[[], None]) -> Iterator[str]:
    """An HTTP server that answers everything with one status; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if callable(answer):
                answer()
                return
            self.send_response(answer)
            if answer == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server):
        yield f"http://127.0.0.1:{server.server_address[1]}/shop.git"


@pytest.mark.parametrize(
    ("status", "error", "becomes"),
    [
        (401, RemoteDenied, "review"),
        (403, RemoteDenied, "review"),
        (404, RepositoryInvalid, "failed"),
        (429, RemoteUnavailable, "retry"),
        (500, RemoteUnavailable, "retry"),
        (503, RemoteUnavailable, "retry"),
    ],
)
def test_what_a_server_answers_has_a_type(status: int, error: type[EverstepError], becomes: str) -> None:
    """Refused, absent and unavailable are told apart, so that a job waits for a person, fails, or is tried again."""
    with http_server(status) as url, pytest.raises(error) as caught:
        repository_git.tip(url, "main")
    assert classify(caught.value).kind == becomes


def test_nobody_at_the_address_is_tried_again() -> None:
    """A refused connection and an unknown host are outages, not failures."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}/shop.git"
    for url in (closed, "http://nobody.invalid/shop.git", closed.replace("http", "git")):
        with pytest.raises(RemoteUnavailable) as caught:
            repository_git.tip(url, "main")
        assert classify(caught.value).kind == "retry"


def test_a_server_that_never_answers_does_not_hold_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time limit git and its helpers are killed, and the remote counts as unavailable."""
    monkeypatch.setattr(repository_git, "REMOTE_TIMEOUT", 0.3)
    release = threading.Event()
    with http_server(lambda: release.wait(10) and None) as url:
        try:
            with pytest.raises(RemoteUnavailable, match=r"longer than 0\.3 s"):
                repository_git.tip(url, "main")
        finally:
            release.set()


def test_a_push_moves_the_branch_from_one_commit_to_another_or_not_at_all(tmp_path: Path) -> None:
    """A branch that is ahead of, behind or beside the expected commit is left as it is."""
    remote = make_remote(tmp_path)
    (start,) = commits(remote)
    theirs = add_commit(remote)
    clone = tmp_path / "somebody"
    git(clone, "commit", "--quiet", "--allow-empty", "--message=ours")
    ours = git(clone, "rev-parse", "HEAD")
    for expected in (start, "0" * 40):
        with pytest.raises(BranchMoved):
            repository_git.push(clone, str(remote), "main", expected, ours)
        assert commits(remote)[0] == theirs
    git(remote, "update-ref", "refs/heads/main", start)
    with pytest.raises(BranchMoved):
        repository_git.push(clone, str(remote), "main", theirs, ours)
    assert commits(remote) == [start]


def test_a_refused_push_says_why(tmp_path: Path) -> None:
    """A hook of the remote, or a branch that is checked out there, refuses the push with a reason a person can read."""
    remote = make_remote(tmp_path)
    (start,) = commits(remote)
    source = tmp_path / "source"
    git(source, "commit", "--quiet", "--allow-empty", "--message=ours")
    ours = git(source, "rev-parse", "HEAD")
    hook = remote / "hooks" / "pre-receive"
    hook.write_text("#!/bin/sh\necho 'main is frozen' >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(RemoteDenied, match="pre-receive hook declined"):
        repository_git.push(source, str(remote), "main", start, ours)
    hook.unlink()
    other = tmp_path / "other"
    git(tmp_path, "clone", "--quiet", str(remote), str(other))
    with pytest.raises(RemoteDenied, match="checked out"):
        repository_git.push(source, str(other), "main", start, ours)
    assert commits(remote) == [start]


def test_variables_of_a_surrounding_git_have_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker started from a git hook has `GIT_DIR` set; the agent works on its own repository all the same."""
    remote = make_remote(tmp_path)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert repository_git.git("rev-parse", "main", cwd=remote).strip() == repository_git.tip(str(remote), "main")


def test_other_failures_are_for_a_person(tmp_path: Path) -> None:
    """What git says without a known reason is kept with its exit code, and a person decides."""
    remote = make_remote(tmp_path)
    with pytest.raises(GitFailed, match="exit code 128") as caught:
        repository_git.git("cat-file", "-p", "nonsense", cwd=remote)
    assert classify(caught.value).kind == "review"


def test_a_relative_path_means_the_same_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path is made absolute; URLs and `host:path` addresses are left as they are."""
    remote = make_remote(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert repository_git.address("remote.git") == str(remote)
    for address in ("https://example.invalid/a.git", "ssh://git@example.invalid/a.git", "git@example.invalid:a/b.git"):
        assert repository_git.address(address) == address
