"""Whose code makes a call, read from the stack: the user's, a library's, or one that is known to be harmless."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType

import everstep

_STANDARD = tuple(os.path.join(sysconfig.get_paths()[name], "") for name in ("stdlib", "platstdlib"))
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_EVERSTEP = os.path.join(os.path.dirname(os.path.abspath(everstep.__file__)), "")
_OURS = tuple(os.path.join(_EVERSTEP, folder, "") for folder in ("nodes", "checkpoints", "observability"))
"""Effects, verifications, the record, traces. Graphs that ship are looked at like anybody's."""

_WORKER = os.path.join(_EVERSTEP, "runtime", "")

_NODE = os.path.join("langgraph", "_internal", "_runnable.py")
_NODE_IN_THREAD = (os.path.join("langchain_core", "runnables", "config.py"), "wrapper")
_THREAD = (os.path.join("concurrent", "futures", "thread.py"), os.path.join("asyncio", "events.py"), "threading.py")
_HARMLESS_STANDARD = tuple(
    os.path.join(folder, name)
    for folder in _STANDARD
    for name in ("logging" + os.sep, "platform.py", os.path.join("ctypes", "util.py"), "uuid.py", "tempfile.py")
)
_HARMLESS_PACKAGES = tuple(
    f"{package}{name}{os.sep}"
    for package in _PACKAGES
    for name in ("opentelemetry", "langsmith", "langfuse", "loguru", "structlog", "sentry_sdk")
)
_FRAMEWORK = tuple(f"{package}{name}" for package in _PACKAGES for name in ("langgraph", "langchain_core"))
_INSIDE = {"os.posix_spawn": "subprocess.py", "os.remove": "shutil.py", "os.rmdir": "shutil.py"}
"""Events that are part of another one, which the named file of the standard library raises itself."""


FRAMES = 3


@dataclass(frozen=True)
class Maker:
    """Who made a call.

    Attributes:
        harmless: It is known to change nothing that matters, or an effect is under way.
        own: Some of the user's code is on the stack.
        library: The innermost code outside the standard library is an installed package's.
        where: `file:line in function` of the user's code, innermost first; empty if none of it is on the stack.
    """

    harmless: bool
    own: bool
    library: bool
    where: str


def in_node() -> bool:
    """Whether LangGraph's call of the node is on this very stack; not in a thread or task that the node started."""
    return any(_is_node(code) for code, _ in _stack())


def look(event: str, *, in_effect: bool = False) -> Maker:
    """Whose code raised the audit event that is being handled.

    Args:
        event: Its name.
        in_effect: An effect is being called: look no further than its function, and do not take it for harmless.
    """
    innermost = ""
    own: list[tuple[CodeType, int]] = []
    other: list[tuple[CodeType, int]] = []
    for code, line in _stack():
        file = code.co_filename
        if _is_node(code) or (in_effect and file.startswith(_OURS)):
            break
        if _is_harmless(code, event):
            return Maker(harmless=True, own=False, library=False, where="")
        if _is_standard(file):
            continue
        innermost = innermost or file
        if file.startswith(_WORKER):
            continue
        if not any(package in file for package in _PACKAGES):
            own.append((code, line))
        elif not any(name in file for name in _FRAMEWORK):
            other.append((code, line))
    is_library = any(package in innermost for package in _PACKAGES)
    return Maker(harmless=False, own=bool(own), library=is_library, where=_where(own or other[:1]))


def _stack() -> Iterator[tuple[CodeType, int]]:
    """The frames around the audited call, innermost first, up to where a thread or task begins."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    here = os.path.dirname(__file__)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(_THREAD):
            return
        if os.path.dirname(code.co_filename) != here:
            yield code, frame.f_lineno
        frame = frame.f_back


def _is_harmless(code: CodeType, event: str) -> bool:
    file = code.co_filename
    if file.startswith("<frozen importlib") or file.startswith(_HARMLESS_STANDARD):
        return True
    if event in _INSIDE and _is_standard(file) and file.endswith(os.sep + _INSIDE[event]):
        return True
    if any(package in file for package in _HARMLESS_PACKAGES):
        return True
    return file.startswith(_OURS)


def _is_node(code: CodeType) -> bool:
    if code.co_filename.endswith(_NODE):
        return True
    return code.co_filename.endswith(_NODE_IN_THREAD[0]) and code.co_name == _NODE_IN_THREAD[1]


def _is_standard(file: str) -> bool:
    return file.startswith("<frozen") or (
        file.startswith(_STANDARD) and not any(package in file for package in _PACKAGES)
    )


def _where(found: list[tuple[CodeType, int]]) -> str:
    here = os.getcwd() + os.sep
    shown = found if len(found) <= FRAMES else [*found[: FRAMES - 1], found[-1]]
    return " < ".join(f"{code.co_filename.removeprefix(here)}:{line} in {code.co_name}" for code, line in shown)
