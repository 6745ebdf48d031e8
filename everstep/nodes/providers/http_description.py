"""The file that describes a provider of HTTP and JSON: what to send, and where in its answers what stands."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from everstep.errors import ConfigInvalid
from everstep.nodes.mistakes import first_of, unreadable
from everstep.nodes.providers import templates

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_POINTER = "a place is written as a JSON Pointer, such as /data/id; ~ is ~0 there, and / within a name ~1"
_IN_HEADER = "a header takes printable ASCII alone: no line ends or other control characters, and no space around it"
_BLANK = re.compile(r"\{(\w*)\}")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _pointer(given: str) -> str:
    if not templates.is_pointer(given):
        raise ValueError(_POINTER)
    return given


def _path(given: str) -> str:
    if not given.startswith("/") or not given.isprintable() or any(letter in given for letter in " ?#"):
        raise ValueError("a path begins with / and has no space, ? or #; parameters go into query")
    return given


def _header_name(given: str) -> str:
    if not _HEADER.fullmatch(given):
        raise ValueError("a header's name is letters, digits and -, such as X-Api-Key")
    return given.lower()


def _message_pointer(given: str) -> str:
    if not (given == "/body" or given.startswith(("/body/", "/headers/"))):
        raise ValueError("a place in a message begins with /body or /headers, such as /body/id")
    given = given.lower() if given.startswith("/headers/") else given
    return _pointer(given)


Pointer = Annotated[str, AfterValidator(_pointer)]
MessagePointer = Annotated[str, AfterValidator(_message_pointer)]
HeaderName = Annotated[str, AfterValidator(_header_name)]


def _in_header(given: str) -> str:
    if not templates.fits_header(given.rstrip(" ")):
        raise ValueError(_IN_HEADER)
    return given


def _template(given: Any) -> Any:
    for place, table in _tables(given, ""):
        before = f"at {place}: " if place else ""
        if strange := sorted(table.keys() - {"path", "default"}):
            raise ValueError(
                f"{before}{{path = …}} may have a default besides, and has {strange[0]}; what is meant as it stands is"
                " written {value = {path = …}}"
            )
        if not templates.is_pointer(table["path"]):
            raise ValueError(f"{before}{table['path']!r} is no place: {_POINTER}")
    return given


def _headers(given: dict[str, Any]) -> dict[str, Any]:
    for name, template in given.items():
        stands = [template]
        if isinstance(template, dict):
            table = cast("dict[str, Any]", template)
            stands = [table[part] for part in ("default", "value") if part in table]
        for text in stands:
            if isinstance(text, str) and not templates.fits_header(text):
                raise ValueError(f"{name}: {_IN_HEADER}")
    return given


class Auth(_Strict):
    """`[auth]`: the header that the key goes into, and what stands before it there."""

    header: HeaderName = "authorization"
    prefix: Annotated[str, AfterValidator(_in_header)] = "Bearer "


class Request(_Strict):
    """A request; its templates know `/request`, `/key` and `/id`, and its path `{key}` and `{id}`.

    Attributes:
        method: Its method.
        path: Its path, added to `base_url`.
        query: Parameters.
        headers: Headers, besides the key's.
        body: The JSON that is sent; none when omitted.
    """

    method: Method = "GET"
    path: Annotated[str, AfterValidator(_path)]
    query: Annotated[dict[str, Any], AfterValidator(_template)] = {}
    headers: Annotated[dict[HeaderName, Any], AfterValidator(_template), AfterValidator(_headers)] = {}
    body: Annotated[Any, AfterValidator(_template)] = None

    def known(self) -> set[str]:
        """What its path and templates ask for: `request`, `key`, `id`, or what they should not."""
        asked = set(_BLANK.findall(self.path))
        return asked | {
            pointer.split("/")[1] if pointer else ""
            for part in (self.query, self.headers, self.body)
            for pointer in (table["path"] for _, table in _tables(part, ""))
        }


class Submit(Request):
    """`[submit]`: how work is asked for; `id` is where the answer has the task's id, as `[task]` says when omitted."""

    method: Method = "POST"
    id: Pointer | None = None


class Find(Request):
    """`[find]`: how a task is asked for by our key; `item` is where it stands in the answer. 404: it is not there."""

    item: Pointer = ""


class Cancel(Request):
    """`[cancel]`: how a task is ended; `[task]` is not read from the answer."""

    method: Method = "POST"


class Words(_Strict):
    """`[task.words]`: which of the provider's words mean what."""

    pending: list[str] = Field(min_length=1)
    succeeded: list[str] = Field(min_length=1)
    failed: list[str] = Field(min_length=1)

    @model_validator(mode="after")
    def _each_once(self) -> Words:
        words = [*self.pending, *self.succeeded, *self.failed]
        if twice := sorted({word for word in words if words.count(word) > 1}):
            raise ValueError(f"{twice[0]!r} stands there twice")
        return self


class Task(_Strict):
    """`[task]`: where in JSON that is a task its parts stand.

    Attributes:
        id: Its id.
        state: The word for its state.
        result: What it gave; people and graphs see it, so leave the provider's ids out.
        error: Why it failed.
        progress: How far it is.
        progress_full: The number that stands for all of it.
        words: What the words for its state mean.
    """

    id: Pointer = "/id"
    state: Pointer = "/status"
    result: Pointer
    error: Pointer | None = None
    progress: Pointer | None = None
    progress_full: float = Field(default=100.0, gt=0, allow_inf_nan=False)
    words: Words


class Webhook(_Strict):
    """`[webhook]`: how messages are read; places begin with `/body` or `/headers`. It says `task`, `key` or both.

    Attributes:
        event_id: What tells one message from another, the same whenever it is sent again.
        task: Where the task stands; all of the body, where only `key` is said.
        key: Where our key stands, if it is told.
        thin: Whether messages do not tell what came of the task, so that it has to be asked for.
    """

    event_id: MessagePointer
    task: MessagePointer = "/body"
    key: MessagePointer | None = None
    thin: bool = False

    @model_validator(mode="after")
    def _tells_of_a_task(self) -> Webhook:
        if not self.model_fields_set & {"task", "key"}:
            raise ValueError('say where the task stands, such as task = "/body/data" (or task = "/body": all of it)')
        return self


class Description(_Strict):
    """The whole file."""

    auth: Auth = Auth()
    submit: Submit
    query: Request
    find: Find | None = None
    cancel: Cancel | None = None
    task: Task
    webhook: Webhook | None = None

    @model_validator(mode="after")
    def _asks_for_what_there_is(self) -> Description:
        allowed = {"submit": {"request", "key"}, "query": {"id"}, "find": {"key"}, "cancel": {"id"}}
        for name, known in allowed.items():
            request = cast("Request | None", getattr(self, name))
            for asked in sorted(request.known() - known) if request else []:
                there = ", ".join(f"/{one}" for one in sorted(known))
                raise ValueError(f"{name} asks for /{asked}; its templates know {there}")
        if "id" not in self.query.known():
            raise ValueError("query asks for no task: put {id} into its path, or /id into its parameters")
        if self.find is not None and "key" not in self.find.known():
            raise ValueError("find asks for no key: put {key} into its path, or /key into its parameters")
        return self


def read_description(path: Path) -> Description:
    """Read the description of a provider, TOML or JSON by its name's ending.

    Raises:
        ConfigInvalid: It cannot be read, or an entry is not what it can be; the message names the entry.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        content: Any = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise _invalid(path, unreadable(error), "Correct `file` of the provider in everstep.toml.") from error
    except (ValueError, RecursionError) as error:
        raise _invalid(path, unreadable(error), "Correct it there.") from error
    try:
        return Description.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where, said = first_of(error)
        advice = "Correct it there."
        if first["type"] == "extra_forbidden":
            advice = f"It may be one of: {', '.join(_fields(first['loc'][:-1]))}."
        raise _invalid(path, f"{where}: {said}" if where else said, advice) from error


def _fields(place: tuple[int | str, ...]) -> list[str]:
    sections: dict[str, type[BaseModel]] = {
        "auth": Auth,
        "submit": Submit,
        "query": Request,
        "find": Find,
        "cancel": Cancel,
        "task": Task,
        "words": Words,
        "webhook": Webhook,
    }
    named = [sections[part] for part in place if isinstance(part, str) and part in sections]
    return list((named[-1] if named else Description).model_fields)


def _tables(template: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tables in a template that name places, each with where it stands."""
    if isinstance(template, dict):
        table = cast("dict[str, Any]", template)
        if isinstance(table.get("path"), str):
            yield place, table
        elif not templates.is_constant(table):
            for name, member in table.items():
                yield from _tables(member, f"{place}.{name}" if place else name)
    elif isinstance(template, list):
        for number, member in enumerate(cast("list[Any]", template)):
            yield from _tables(member, f"{place}.{number}" if place else str(number))


def _invalid(path: Path, what: str, next_step: str) -> ConfigInvalid:
    return ConfigInvalid(f"{path}: {what}", next_step=next_step, path=str(path))
