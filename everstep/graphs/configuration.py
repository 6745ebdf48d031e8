"""Reading `langgraph.json`: which graphs there are, where they come from, and the environment they want.

Only reads and checks the file; nothing is imported and no environment changed. The format is LangGraph's own. Its
fields that concern image builds are accepted and left alone; a field that is not in the format gets a warning. What it
says about the server (`http`, `auth`) is kept as it stands: `everstep.graphs.http_configuration` reads it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from everstep.errors import ConfigInvalid, GraphNotFound

logger = logging.getLogger(__name__)

HONOURED_FIELDS = frozenset({"$schema", "graphs", "dependencies", "source", "env"})
OTHER_FIELDS = frozenset(
    "python_version node_version api_version base_image image_distro pip_config_file pip_installer dockerfile_lines"
    " keep_pkg_tools store checkpointer auth encryption priority http webhooks ui ui_config".split()
)
"""Fields of the format that say nothing to Everstep: they are about LangGraph's server and its images."""

_JAVASCRIPT = re.compile(r"\.[cm]?[jt]sx?$")
_ASK_FOR_FORM = 'Write it as "./file.py:variable" or "package.module:variable".'


@dataclass(frozen=True)
class Target:
    """Where a graph is found.

    Attributes:
        source: As written: `./file.py` or `package.module`.
        variable: The name in the module; dots reach into attributes.
        file: The file's absolute path, or None for a module.
    """

    source: str
    variable: str
    file: Path | None

    def __str__(self) -> str:
        return f"{self.source}:{self.variable}"


@dataclass(frozen=True)
class GraphEntry:
    """One entry of `graphs`."""

    name: str
    target: Target
    description: str = ""


@dataclass(frozen=True)
class Configuration:
    """What `langgraph.json` says.

    Attributes:
        path: The file.
        graphs: The entries by name, in the order of the file.
        import_folders: Folders to import from: local dependencies, their `src` folders, and the file's own folder.
        environment: Variables given in place.
        environment_file: A file of variables; it need not exist.
        unused_fields: Fields of the format that a worker has no use for.
        content: The file as it stands.
    """

    path: Path
    graphs: dict[str, GraphEntry]
    import_folders: tuple[Path, ...]
    environment: dict[str, str] = field(default_factory=dict[str, str])
    environment_file: Path | None = None
    unused_fields: tuple[str, ...] = ()
    content: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def folder(self) -> Path:
        """The folder that relative paths start from."""
        return self.path.parent


def read_configuration(path: str | Path) -> Configuration:
    """Read and check a `langgraph.json`.

    Args:
        path: The file.

    Raises:
        ConfigInvalid: The file is missing, unreadable, not JSON, or an entry is not what the format allows or Everstep
            can honour (a JavaScript graph); the message names the entry.
    """
    path = Path(path).absolute()
    content = _read_object(path)
    _warn_of_unknown_fields(path, content)
    environment, environment_file = _environment(path, content.get("env", {}))
    return Configuration(
        path=path,
        graphs=_graphs(path, content.get("graphs")),
        import_folders=_import_folders(path, content),
        environment=environment,
        environment_file=environment_file,
        unused_fields=tuple(sorted(OTHER_FIELDS & content.keys())),
        content=content,
    )


def require_name(name: str, names: Sequence[str], path: Path | None) -> None:
    """Refuse the name of a graph that is not there.

    Args:
        name: The name that was asked for.
        names: The names there are.
        path: The file they stand in, if any.

    Raises:
        GraphNotFound: Lists the names there are and the closest ones.
    """
    if name in names:
        return
    close = get_close_matches(name, names, 3)
    guess = f"Did you mean {' or '.join(close)}? " if close else ""
    place = f" (in {path})" if path else ""
    raise GraphNotFound(
        f"There is no graph {name!r}.",
        next_step=f"{guess}Known graphs: {', '.join(names) or 'none'}{place}.",
        graph=name,
        known=list(names),
        close=close,
    )


def parse_target(text: str, folder: Path) -> Target:
    """A target from `./file.py:variable` or `package.module:variable`.

    Raises:
        ConfigInvalid: The text has neither form.
    """
    source, _, variable = text.strip().rpartition(":")
    if not source or not all(part.isidentifier() for part in variable.split(".")):
        raise ConfigInvalid(f"The graph's path {text!r} names no variable.", next_step=_ASK_FOR_FORM, target=text)
    if _JAVASCRIPT.search(source):
        raise ConfigInvalid(
            f"The graph's path {text!r} is JavaScript; Everstep runs Python graphs.",
            next_step="Leave it out of this file, or point --config to a file with the Python graphs alone.",
            target=text,
        )
    if source.endswith(".py") or "/" in source:
        return Target(source, variable, (folder / source).resolve())
    if not all(part.isidentifier() for part in source.split(".")):
        raise ConfigInvalid(f"The graph's path {text!r} is no module.", next_step=_ASK_FOR_FORM, target=text)
    return Target(source, variable, None)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigInvalid(
            f"There is no {path}.",
            next_step="Go to the folder of your langgraph.json, or name it with --config.",
            path=str(path),
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path} cannot be read: {error}.", next_step="Check the path.", path=str(path)) from error

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        for name in names:
            if names.count(name) > 1:
                raise _invalid(path, f"{name!r} stands there twice", "Keep one of the two.")
        return dict(pairs)

    try:
        content = json.loads(text, object_pairs_hook=refuse_duplicates)
    except (json.JSONDecodeError, RecursionError) as error:
        raise _invalid(path, f"not valid JSON: {error}", "Correct it there.") from error
    if not isinstance(content, dict):
        raise _invalid(path, "its outermost value is no object", 'Begin it with {"graphs": {…}}.')
    return cast(dict[str, Any], content)


def _warn_of_unknown_fields(path: Path, content: Mapping[str, Any]) -> None:
    known = HONOURED_FIELDS | OTHER_FIELDS
    for name in content.keys() - known:
        close = get_close_matches(name, known, 1)
        logger.warning(
            "%s: unknown field %r is ignored%s", path, name, f"; did you mean {close[0]!r}?" if close else ""
        )


def _graphs(path: Path, value: Any) -> dict[str, GraphEntry]:
    if not isinstance(value, dict) or not value:
        raise _invalid(path, "it names no graphs", 'Add "graphs": {"agent": "./agent.py:graph"}.')
    entries: dict[str, GraphEntry] = {}
    for name, entry in cast(dict[str, Any], value).items():
        details = cast(dict[str, Any], entry if isinstance(entry, dict) else {"path": entry})
        target, description = details.get("path"), details.get("description") or ""
        if not name.strip() or not isinstance(target, str) or not isinstance(description, str):
            raise _invalid(path, f"the entry {name!r} of graphs is not understood", _ASK_FOR_FORM)
        entries[name] = GraphEntry(name, parse_target(target, path.parent), description)
    return entries


def _import_folders(path: Path, content: Mapping[str, Any]) -> tuple[Path, ...]:
    dependencies: Any = content.get("dependencies", [])
    source: Any = content.get("source")
    if not isinstance(dependencies, list):
        raise _invalid(path, "dependencies is no list", 'Write "dependencies": ["."].')
    places = [*cast(list[Any], dependencies)]
    if isinstance(source, dict):
        places.append(cast(dict[str, Any], source).get("root", "."))
    folders: dict[Path, None] = {}
    for place in places:
        if not isinstance(place, str):
            raise _invalid(path, f"the dependency {place!r} is no text", "Name a folder or a package.")
        folder = (path.parent / place).resolve()
        if not place.startswith((".", "/")):
            continue  # a package to be installed: the environment has it or its import fails by name
        if not folder.is_dir():
            raise _invalid(path, f"the dependency {place!r} is no folder ({folder})", "Correct the path.")
        folders[folder] = None
        if (folder / "src").is_dir():
            folders[folder / "src"] = None
    folders[path.parent.resolve()] = None
    return tuple(folders)


def _environment(path: Path, value: Any) -> tuple[dict[str, str], Path | None]:
    if isinstance(value, str):
        return {}, (path.parent / value).resolve()
    if not isinstance(value, dict):
        raise _invalid(path, "env is neither a file name nor an object", 'Write "env": ".env".')
    variables: dict[str, str] = {}
    for name, content in cast(dict[str, Any], value).items():
        if isinstance(content, bool) or not isinstance(content, str | int | float):
            raise _invalid(path, f"the variable {name!r} of env is no text", "Write its value in quotation marks.")
        variables[name] = str(content)
    return variables, None


def _invalid(path: Path, what: str, next_step: str) -> ConfigInvalid:
    return ConfigInvalid(f"{path}: {what}.", next_step=next_step, path=str(path))
