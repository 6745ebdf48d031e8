"""Changed paths of a working copy: whatever was committed, staged, left, renamed, ignored or hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.errors import EverstepError
from everstep.graphs.changed_paths import changed_paths
from tests.support.repositories import git


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A working copy with one commit, tagged `start`."""
    place = tmp_path / "copy"
    for name, content in {"a.txt": "a\n" * 9, "sub/b.txt": "b\n" * 9, ".gitignore": "*.log\n", "c.txt": "c\n"}.items():
        write(place, name, content)
    git(tmp_path, "init", "--quiet", "--initial-branch=main", str(place))
    commit(place)
    git(place, "tag", "start")
    return place


def write(place: Path, name: str, content: str = "new\n") -> None:
    """Make or change a file."""
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_text(content)


def commit(place: Path) -> None:
    """Commit everything that is not ignored."""
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--message=work")


def changed(place: Path, base: str = "start") -> list[str]:
    """The paths that differ."""
    return list(changed_paths(place, base).paths)


def test_nothing_changed(copy: Path) -> None:
    """A clean working copy, also one whose files are only newer, has no changed path."""
    (copy / "a.txt").touch()
    assert changed(copy) == []


@pytest.mark.parametrize("how", ["left", "staged", "committed"])
def test_changes_count_wherever_they_are(copy: Path, how: str) -> None:
    """Changed, new and deleted files, in a folder of the copy too, in the files alone, staged or committed."""
    write(copy, "a.txt")
    write(copy, "sub/new.txt")
    (copy / "c.txt").unlink()
    if how == "staged":
        git(copy, "add", "--all")
    if how == "committed":
        commit(copy)
    assert changed(copy) == ["a.txt", "c.txt", "sub/new.txt"]
    assert changed(copy / "sub") == ["a.txt", "c.txt", "sub/new.txt"]


def test_what_is_committed_counts_though_the_files_do_not_show_it(copy: Path) -> None:
    """A change in a commit, or staged, that the working files no longer have is still a change."""
    write(copy, "a.txt")
    commit(copy)
    write(copy, "a.txt", "a\n" * 9)
    write(copy, "c.txt", "staged\n")
    git(copy, "add", "c.txt")
    write(copy, "c.txt", "c\n")
    assert changed(copy) == ["a.txt", "c.txt"]


def test_a_renamed_file_counts_under_both_names(copy: Path) -> None:
    """Neither the old nor the new name can hide behind the other."""
    git(copy, "mv", "a.txt", "z.txt")
    assert changed(copy) == ["a.txt", "z.txt"]
    commit(copy)
    assert changed(copy) == ["a.txt", "z.txt"]


def test_ignored_files_do_not_count_while_what_is_ignored_stays_as_it_was(copy: Path) -> None:
    """A log is no change; but once a `.gitignore` was changed, what it hides counts as well."""
    write(copy, "x.log")
    assert changed(copy) == []
    write(copy, "sub/.gitignore", "secret.txt\n")
    write(copy, "sub/secret.txt")
    assert changed(copy) == ["sub/.gitignore", "sub/secret.txt", "x.log"]


def test_what_hides_files_from_git_status_hides_nothing_here(copy: Path) -> None:
    """Flags of the index, sparse checkouts and excludes outside the tree are of no use to who would hide a change."""
    git(copy, "update-index", "--assume-unchanged", "a.txt")
    git(copy, "update-index", "--skip-worktree", "c.txt")
    write(copy, "a.txt")
    write(copy, "c.txt")
    write(copy, ".git/info/exclude", "hidden.txt\n")
    write(copy, "hidden.txt")
    assert git(copy, "status", "--porcelain") == ""
    git(copy, "config", "core.sparseCheckout", "true")
    write(copy, ".git/info/sparse-checkout", "/c.txt\n")
    assert changed(copy) == ["a.txt", "c.txt", "hidden.txt"]


def test_a_repository_inside_is_looked_into(copy: Path) -> None:
    """Files in a repository that was made inside the copy are named one by one."""
    write(copy, "inner/auth/login.py")
    git(copy / "inner", "init", "--quiet")
    assert changed(copy) == ["inner", "inner/auth/login.py"]


def test_odd_names(copy: Path) -> None:
    """Blanks, line ends, quotes and bytes that are no text are names as well."""
    write(copy, 'a "b"\nc.txt')
    with open(bytes(copy / "x") + b"\xff", "w") as file:
        file.write("new")
    (copy / "link").symlink_to("/nowhere")
    found = changed_paths(copy, "start")
    assert found.paths == ('a "b"\nc.txt', "link", "x\ufffd")
    assert found.digest(found.paths) == changed_paths(copy, "start").digest(found.paths)


def test_the_digest_tells_every_difference(copy: Path) -> None:
    """Content, mode, what is committed and what is staged are in it; what is beside the paths is not."""
    digests: set[str] = set()

    def note() -> None:
        digests.add(changed_paths(copy, "start").digest(["a.txt"]))

    write(copy, "a.txt", "1")
    note()
    write(copy, "a.txt", "2")
    note()
    (copy / "a.txt").chmod(0o755)
    note()
    git(copy, "add", "a.txt")
    note()
    git(copy, "commit", "--quiet", "--message=work")
    note()
    (copy / "a.txt").unlink()
    note()
    assert len(digests) == 6
    write(copy, "other.txt")
    note()
    assert len(digests) == 6


def test_the_working_copy_is_left_as_it_was(copy: Path) -> None:
    """Looking changes neither index nor files."""
    write(copy, "a.txt")
    before = (copy / ".git" / "index").read_bytes(), git(copy, "status", "--porcelain")
    changed(copy)
    assert before == ((copy / ".git" / "index").read_bytes(), git(copy, "status", "--porcelain"))


def test_a_base_that_was_replaced_is_the_one_that_was_named(copy: Path) -> None:
    """`git replace` cannot put another commit in the base's place."""
    base = git(copy, "rev-parse", "start")
    write(copy, "a.txt")
    commit(copy)
    git(copy, "replace", base, "HEAD")
    assert changed(copy, base) == ["a.txt"]


def test_a_repository_without_a_commit_of_its_own_branch(copy: Path) -> None:
    """Also where `HEAD` names a branch that does not exist yet, files and index are compared."""
    git(copy, "checkout", "--quiet", "--orphan", "other")
    write(copy, "a.txt")
    assert changed(copy) == ["a.txt"]


@pytest.mark.parametrize("base", ["nothing", "0" * 40, "--all", "", "start:a.txt", "HEAD\0"])
def test_an_unknown_base_is_an_error(copy: Path, base: str) -> None:
    """What names no commit is refused."""
    with pytest.raises((EverstepError, ValueError)):
        changed_paths(copy, base)


def test_no_repository_is_an_error(tmp_path: Path, copy: Path) -> None:
    """A folder outside of any repository, a missing one, or one whose files are said to be elsewhere, is refused."""
    (tmp_path / "plain").mkdir()
    for place in (tmp_path / "plain", tmp_path / "missing"):
        with pytest.raises((EverstepError, OSError)):
            changed_paths(place, "start")
    git(tmp_path, "clone", "--quiet", str(copy), "clean")
    git(copy, "config", "core.worktree", str(tmp_path / "clean"))
    with pytest.raises(EverstepError):
        changed_paths(copy, "start")
