"""What `langgraph.json` says about the server, in its `http` and `auth`: read here, honoured by `everstep.server`.

Each field is honoured, or `unsupported` has a sentence about it, which the server logs when it starts; what would make
an unsafe server if it were left out is refused. `everstep worker` has no use for any of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, cast

from everstep.errors import ConfigInvalid

GROUPS = ("assistants", "threads", "runs", "store", "meta")
CREDENTIAL_HEADERS = ("authorization", "x-api-key", "cookie", "proxy-authorization")
"""Headers no run is told: they would stand in the record."""

_NOT_SERVED = {
    "app": "its routes are not served; serve Everstep from your own application instead: docs/server.md",
    "middleware_order": "there is no application of yours here to order",
    "enable_custom_route_auth": "there are no routes of yours here",
    "logging_headers": "the server logs no headers",
}
_NOTHING_TO_SHUT = {"disable_mcp": "MCP", "disable_a2a": "A2A"}


@dataclass(frozen=True)
class Cors:
    """Which web pages may call the server from a browser, and how (`http.cors`); by default none.

    Attributes:
        allow_origins: Origins such as `https://app.example.com`; `*`: every page.
        allow_origin_regex: Origins that match it as a whole, too.
        allow_methods: With which methods.
        allow_headers: With which headers.
        allow_credentials: Whether with cookies.
        expose_headers: Which headers of answers they see, besides those LangGraph's clients need.
        max_age: How long a browser may go without asking again, seconds.
    """

    allow_origins: tuple[str, ...] = ()
    allow_origin_regex: str | None = None
    allow_methods: tuple[str, ...] = ("*",)
    allow_headers: tuple[str, ...] = ("*",)
    allow_credentials: bool = False
    expose_headers: tuple[str, ...] = ()
    max_age: int = 600

    def allows(self, origin: str) -> bool:
        """Whether pages of this origin may call."""
        if "*" in self.allow_origins or origin in self.allow_origins:
            return True
        return self.allow_origin_regex is not None and bool(re.fullmatch(self.allow_origin_regex, origin))


@dataclass(frozen=True)
class HeaderPatterns:
    """Which headers of a request its run is told (`http.configurable_headers`): those included and not excluded.

    Attributes:
        includes: Patterns such as `x-tenant-*`.
        excludes: Patterns of those that are not told all the same.
    """

    includes: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    def fit(self, name: str) -> bool:
        """Whether a run is told the header of this name, in lower case."""
        if name in CREDENTIAL_HEADERS or any(fnmatchcase(name, pattern) for pattern in self.excludes):
            return False
        return any(fnmatchcase(name, pattern) for pattern in self.includes)


@dataclass(frozen=True)
class HttpConfiguration:
    """What `http` and `auth` say.

    Attributes:
        cors: `http.cors`; None where it says nothing.
        mount_prefix: `http.mount_prefix`: a path such as `/agents`, or empty.
        header_patterns: `http.configurable_headers`; None where it says nothing.
        shut: The groups of paths that `http.disable_…` names.
        webhooks: Whether runs may name a webhook (`http.disable_webhooks`).
        auth_path: `auth.path`, as written.
        auth_openapi: `auth.openapi`: security schemes for the description of the interface.
        unsupported: A sentence about each field that is not honoured.
    """

    cors: Cors | None = None
    mount_prefix: str = ""
    header_patterns: HeaderPatterns | None = None
    shut: frozenset[str] = frozenset()
    webhooks: bool = True
    auth_path: str | None = None
    auth_openapi: Mapping[str, Any] | None = None
    unsupported: tuple[str, ...] = ()


def read_http(content: Mapping[str, Any]) -> HttpConfiguration:
    """What the content of a `langgraph.json` says about the server.

    Raises:
        ConfigInvalid: A value is not what the format allows, or the file asks for what would be missing dangerously.
    """
    if content.get("encryption"):
        raise ConfigInvalid(
            "encryption: the record would not be encrypted as this file asks",
            next_step="leave encryption out of this file, and encrypt the disk or the database",
        )
    http, auth = _object(content, "http"), _object(content, "auth")
    told = [*_of_http(http), *_of_auth(auth)]
    prefix = _text(http, "http", "mount_prefix") or ""
    if prefix and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+/?", prefix):
        raise _invalid("http.mount_prefix", f"{prefix!r} is no path", 'write it as "/agents"')
    if auth and not _text(auth, "auth", "path"):
        raise _invalid("auth", "it has no path", 'write "path": "./auth.py:auth"')
    cors = http.get("cors")
    patterns = http.get("configurable_headers")
    return HttpConfiguration(
        cors=None if cors is None else _cors(_object(http, "cors")),
        mount_prefix=prefix.rstrip("/"),
        header_patterns=None if patterns is None else _patterns(_object(http, "configurable_headers")),
        shut=frozenset(group for group in GROUPS if _flag(http, f"disable_{group}")),
        webhooks=not _flag(http, "disable_webhooks"),
        auth_path=_text(auth, "auth", "path"),
        auth_openapi=_object(auth, "openapi") or None,
        unsupported=tuple(told),
    )


def _of_http(http: Mapping[str, Any]) -> list[str]:
    told = [f"http.{name}: {why}" for name, why in _NOT_SERVED.items() if http.get(name)]
    told += [f"http.{name}: Everstep does not speak {what}" for name, what in _NOTHING_TO_SHUT.items() if name in http]
    known = {"cors", "mount_prefix", "configurable_headers", "disable_webhooks", *_NOT_SERVED, *_NOTHING_TO_SHUT}
    known |= {f"disable_{group}" for group in GROUPS}
    return told + [f"http.{name}: there is no such field" for name in sorted(http.keys() - known)]


def _of_auth(auth: Mapping[str, Any]) -> list[str]:
    told = [f"auth.{name}: there is no such field" for name in sorted(auth.keys() - _AUTH_FIELDS)]
    if auth.get("cache"):
        told.append("auth.cache: your function is asked at every request")
    if auth.get("disable_studio_auth") is False:
        told.append("auth.disable_studio_auth: Studio has no other way in; your function decides about it, too")
    return told


_AUTH_FIELDS = {"path", "disable_studio_auth", "openapi", "cache"}


def _cors(given: Mapping[str, Any]) -> Cors:
    names = {field.name for field in fields(Cors)}
    if unknown := sorted(given.keys() - names):
        raise _invalid("http.cors", f"there is no field {unknown[0]!r}", f"there are: {', '.join(sorted(names))}")
    values: dict[str, Any] = {}
    for name, value in given.items():
        default: Any = getattr(Cors(), name)
        if isinstance(default, tuple):
            values[name] = _texts(value, f"http.cors.{name}")
        elif name == "allow_origin_regex":
            values[name] = _regex(value)
        elif type(value) is not type(default):
            raise _invalid(f"http.cors.{name}", f"{value!r} is not understood", "see docs/server.md")
        else:
            values[name] = value
    return Cors(**values)


def _regex(value: Any) -> str | None:
    try:
        if value is not None:
            re.compile(value)
    except (re.error, TypeError) as error:
        raise _invalid("http.cors.allow_origin_regex", f"it is no regular expression: {error}", "correct it") from error
    return value


def _patterns(given: Mapping[str, Any]) -> HeaderPatterns:
    if unknown := sorted(given.keys() - {"includes", "include", "excludes", "exclude"}):
        where = "http.configurable_headers"
        raise _invalid(where, f"there is no field {unknown[0]!r}", "there are: includes, excludes")
    lists = {name: _texts(value or [], f"http.configurable_headers.{name}") for name, value in given.items()}
    includes = tuple(name.lower() for name in lists.get("includes", lists.get("include", ())))
    excludes = tuple(name.lower() for name in lists.get("excludes", lists.get("exclude", ())))
    if secret := sorted({*includes} & {*CREDENTIAL_HEADERS}):
        raise _invalid(
            "http.configurable_headers",
            f"{secret[0]} holds credentials, and what a run is told stands in the record",
            "leave it out; let the auth function check it, and the graph read what it needs from a key store",
        )
    return HeaderPatterns(includes, excludes)


def _object(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = content.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid(name, "it is no object", f'write "{name}": {{…}}')
    return cast(dict[str, Any], value)


def _text(content: Mapping[str, Any], where: str, name: str) -> str | None:
    value = content.get(name)
    if value is not None and not isinstance(value, str):
        raise _invalid(f"{where}.{name}", f"{value!r} is no text", "write it in quotation marks")
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in cast(list[Any], value)):
        raise _invalid(where, "it is no list of texts", 'write ["…"]')
    return tuple(cast(list[str], value))


def _flag(http: Mapping[str, Any], name: str) -> bool:
    value = http.get(name, False)
    if not isinstance(value, bool):
        raise _invalid(f"http.{name}", f"{value!r} is neither true nor false", "write true or false")
    return value


def _invalid(where: str, what: str, next_step: str) -> ConfigInvalid:
    return ConfigInvalid(f"{where}: {what}", next_step=next_step, field=where)
