"""Importing the module of a graph and finding the graph in it, with failures that name file, line and exception.

A file is imported under the name its neighbours would import it by, if the import path leads to it: then a class has
one identity, and one stored in a checkpoint is found again by any program that has the folder on its path. Otherwise
its name is made from its path below the configuration's folder, so that two files of one name do not meet. A file
inside a package (a folder with `__init__.py`) is imported as the package's module, so that its relative imports work.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from difflib import get_close_matches
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from everstep.errors import GraphLoadFailed
from everstep.graphs.configuration import GraphEntry

_importing = RLock()
_OUR_FRAMES = ("<frozen importlib", str(Path(importlib.__file__).parent), str(Path(__file__).parent))
_LIBRARIES = ("site-packages", "dist-packages", sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"])


def import_graph(entry: GraphEntry, folder: Path) -> Any:
    """Whatever the entry's variable holds: a graph, a builder or a factory.

    Args:
        entry: The entry of the configuration.
        folder: The configuration's folder.

    Raises:
        GraphLoadFailed: The file or module does not exist, its import raised or left, or it has no such variable.
    """
    target = entry.target
    with _importing:
        try:
            module = _import_file(target.file, folder) if target.file else importlib.import_module(target.source)
        except BaseException as error:  # also what leaves programs and tests: it must not leave the worker
            raise load_failed(entry.name, str(target), error) from error
    value: Any = module
    for name in target.variable.split("."):
        if not hasattr(value, name):
            raise _no_variable(entry, value, name)
        value = getattr(value, name)
    return value


def load_failed(name: str, target: str, error: BaseException) -> GraphLoadFailed:
    """The error that tells of a graph whose code raised while it was loaded.

    Args:
        name: The graph's name.
        target: Where it was to come from.
        error: What was raised.
    """
    if isinstance(error, GraphLoadFailed):
        return error
    file, line = _place(error)
    where = f" at {file}:{line}" if file else ""
    text = (error.msg if isinstance(error, SyntaxError) else str(error)).strip().partition("\n")[0]
    return GraphLoadFailed(
        f"Graph {name!r} ({target}) could not be loaded{where}: {type(error).__qualname__}: {text}",
        next_step=_next_step(error),
        graph=name,
        target=target,
        file=file,
        line=line,
        exception=type(error).__qualname__,
    )


def _import_file(file: Path, folder: Path) -> ModuleType:
    if not file.is_file():
        raise FileNotFoundError(f"there is no file {file}")
    if (file.parent / "__init__.py").is_file() and (module := _import_from_package(file)):
        return module
    if natural := _import_by_path(file):
        return natural
    name = _module_name(file, folder)
    loaded = sys.modules.get(name)
    if loaded is not None and not _is_file_of(loaded, file):
        name = f"{name}_{hashlib.sha256(str(file).encode()).hexdigest()[:8]}"
        loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded
    specification = importlib.util.spec_from_file_location(name, file)
    if specification is None or specification.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_from_package(file: Path) -> ModuleType | None:
    """The file as a module of its package; None when another package of that name is in the way."""
    root = file.parent
    while (root.parent / "__init__.py").is_file():
        root = root.parent
    name = ".".join(file.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    if str(root.parent) not in sys.path:
        sys.path.insert(0, str(root.parent))
    package = importlib.import_module(root.name)
    if not _is_file_of(package, root / "__init__.py"):
        return None
    return importlib.import_module(name)


def _import_by_path(file: Path) -> ModuleType | None:
    """The file under the name that its nearest folder on the import path gives it; None if the path leads elsewhere."""
    file = file.resolve()
    roots = [root for root in map(_resolved, sys.path) if root is not None and root in file.parents]
    if not roots:
        return None
    parts = file.relative_to(max(roots, key=lambda root: len(root.parts))).with_suffix("").parts
    if not all(part.isidentifier() for part in parts):
        return None
    name = ".".join(parts)
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if found is None or not found.origin or Path(found.origin).resolve() != file:
        return None
    module = importlib.import_module(name)
    return module if _is_file_of(module, file) else None


def _resolved(entry: str) -> Path | None:
    path = Path(entry or ".")
    return path.resolve() if path.is_dir() else None


def _module_name(file: Path, folder: Path) -> str:
    path = Path(os.path.relpath(file, folder.resolve())).with_suffix("")
    return "everstep_graph__" + re.sub(r"\W", "_", "__".join(path.parts).replace("..", "up"))


def _is_file_of(module: ModuleType, file: Path) -> bool:
    return bool(module.__file__) and Path(str(module.__file__)).resolve() == file.resolve()


def _no_variable(entry: GraphEntry, value: Any, name: str) -> GraphLoadFailed:
    members: dict[str, Any] = getattr(value, "__dict__", {})
    public = {key: item for key, item in members.items() if not key.startswith("_")}
    graphs = [key for key, item in public.items() if isinstance(item, Pregel | StateGraph)]
    candidates = list(dict.fromkeys([*graphs, *get_close_matches(name, public, 3)]))
    known = f" to one of: {', '.join(candidates)}" if candidates else ", or define it there"
    return GraphLoadFailed(
        f"Graph {entry.name!r}: {entry.target.source} has no {name!r}.",
        next_step=f"Correct the name in the configuration{known}.",
        graph=entry.name,
        target=str(entry.target),
        candidates=candidates,
    )


def _place(error: BaseException) -> tuple[str | None, int | None]:
    """The user's innermost line: that of a syntax error, else of the last frame that is no library's."""
    if isinstance(error, SyntaxError):
        return error.filename, error.lineno
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OUR_FRAMES)
    ]
    own = [frame for frame in frames if not any(place in frame.filename for place in _LIBRARIES)] or frames
    return (own[-1].filename, own[-1].lineno) if own else (None, None)


def _next_step(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return (
            f"Install {error.name!r} in the environment that runs everstep, or, if it is a folder of yours, add its "
            "parent to dependencies in langgraph.json."
        )
    if isinstance(error, SystemExit):
        return 'The file ended the program while it was imported; put that part under `if __name__ == "__main__":`.'
    return "Correct it; `everstep doctor` loads every graph and says whether it works."
