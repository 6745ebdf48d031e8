"""Small repositories with a bare remote, and chat models that say what a test wants, for the tests of the agent."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult

UNTIDY: Mapping[str, bytes] = {
    "shop/__init__.py": b"",
    "shop/cart.py": b"def total(items):  \n    return sum(items)\n",
    "shop/stock.py": b"LEFT = 3\r\n",
    "shop/tidy.py": b"x = 1\n",
    "tools/run.py": b"#!/usr/bin/env python\nprint('go')\n\n\n",
}
NEEDY = ["shop/cart.py", "shop/stock.py", "tools/run.py"]
"""The files of `UNTIDY` that `tidy-whitespace` changes."""


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder as nobody in particular, and return what it prints."""
    who = {f"GIT_{role}_{part}": "t@t.invalid" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    when = {"GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
    command = ["git", "-c", "core.autocrlf=false", *arguments]
    return subprocess.run(
        command, cwd=folder, env=os.environ | who | when, check=True, stdout=-1, stderr=subprocess.STDOUT, text=True
    ).stdout.strip()


def make_remote(folder: Path, files: Mapping[str, bytes] = UNTIDY, links: Mapping[str, str] | None = None) -> Path:
    """Make a bare repository whose branch `main` holds these files and symbolic links."""
    source, remote = folder / "source", folder / "remote.git"
    for path, data in files.items():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes(data)
        (source / path).chmod(0o755 if data.startswith(b"#!") else 0o644)
    for path, target in (links or {}).items():
        (source / path).symlink_to(target)
    git(folder, "init", "--quiet", "--initial-branch=main", str(source))
    git(source, "add", "--all")
    git(source, "commit", "--quiet", "--message=start")
    git(folder, "clone", "--quiet", "--bare", str(source), str(remote))
    return remote


def add_commit(remote: Path, path: str = "other.txt", data: str = "other\n") -> str:
    """Somebody else pushes a commit to the remote's `main`; returns it."""
    clone = remote.parent / "somebody"
    if not clone.exists():
        git(remote.parent, "clone", "--quiet", str(remote), str(clone))
    git(clone, "pull", "--quiet")
    (clone / path).write_text(data)
    git(clone, "add", path)
    git(clone, "commit", "--quiet", "--message=by somebody else")
    git(clone, "push", "--quiet", "origin", "main")
    return git(clone, "rev-parse", "HEAD")


def commits(remote: Path) -> list[str]:
    """The commits of the remote's `main`, newest first."""
    return git(remote, "log", "--format=%H", "main").split()


def content(remote: Path, path: str) -> bytes:
    """What a file of the remote's `main` holds."""
    return subprocess.run(["git", "cat-file", "blob", f"main:{path}"], cwd=remote, check=True, stdout=-1).stdout


class Scripted(BaseChatModel):
    """Says the next of its messages; a message may be made from the conversation."""

    script: Sequence[AIMessage | Callable[[list[BaseMessage]], AIMessage]]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
        said = sum(isinstance(message, AIMessage) for message in messages)
        entry = self.script[min(said, len(self.script) - 1)]
        message = entry if isinstance(entry, AIMessage) else entry(messages)
        return ChatResult(generations=[ChatGeneration(message=message.model_copy(update={"id": f"said-{said}"}))])


def calls(*wanted: tuple[str, dict[str, Any]], number: list[int] = [0]) -> AIMessage:  # noqa: B006 (a counter of its own)
    """A message that calls tools, each with an id of its own."""
    made = []
    for name, arguments in wanted:
        number[0] += 1
        made.append({"name": name, "args": arguments, "id": f"call-{number[0]}", "type": "tool_call"})
    return AIMessage("", tool_calls=made)
