"""Canonical JSON (RFC 8785), digests of it, and the idempotency keys made from such digests.

Two values have one digest exactly when they are the same JSON: key order and `1` against `1.0` do not matter,
everything else does. A value with no exact JSON form is refused with its path, since two different inputs must never
share a key. Strings are taken as they are: no Unicode normalisation, so a composed and a decomposed `é` are two inputs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import rfc8785

from everstep.errors import PayloadInvalid

MAX_DEPTH = 200
"""Levels of nesting allowed; a value that contains itself is refused by this limit too."""

MAX_INTEGER = 2**53 - 1
"""The largest integer every JSON reader keeps exactly (RFC 8785, section 3.2.2.3); the smallest is its negative."""

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


_EXACT = json.JSONEncoder(ensure_ascii=False, check_circular=False, sort_keys=True, separators=(",", ":"))
"""Writes as RFC 8785 says, in a fifth of the time, what has no float, and no key beyond ASCII for the order to tell."""


def canonical_json(value: object, *, path: str = "$", levels: int = MAX_DEPTH) -> str:
    """The one JSON text of a value, by RFC 8785.

    Args:
        value: None, bool, int, float, str, and lists, tuples (written as arrays) and dicts of these. Subclasses of the
            scalar types, such as members of an `Enum`, are refused: they would come back as something else.
        path: Where it is in what it belongs to.
        levels: How deeply it may be nested.

    Raises:
        PayloadInvalid: The value has no exact JSON form: NaN or infinity, an integer beyond ±(2^53−1), a key that is
            not a string, a lone surrogate, another type, or more than `MAX_DEPTH` levels. The message gives the path.
    """
    if _refuse_inexact(value, path, levels):
        return _EXACT.encode(value)
    return rfc8785.dumps(cast(Any, value)).decode()


def digest(value: object) -> str:
    """SHA-256 of the value's canonical JSON, as 64 lower-case hexadecimal digits.

    Raises:
        PayloadInvalid: See `canonical_json`.
    """
    return _sha256(canonical_json(value))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Submitted(NamedTuple):
    """What identifies an input that is submitted.

    Attributes:
        digest: By what two submissions of one key are compared: graph and input.
        key: The key where none is given; see `job_key`.
    """

    digest: str
    key: str


def submitted(graph: str, input: object, workflow_version: str) -> Submitted:
    """What identifies an input; both digests of it in one go, as it may be large.

    Raises:
        PayloadInvalid: See `canonical_json`.
    """
    name, version = canonical_json(graph, path="$.graph"), canonical_json(workflow_version, path="$.workflow_version")
    given = f'"graph":{name},"input":{canonical_json(input, path="$.input", levels=MAX_DEPTH - 1)}'
    return Submitted(_sha256(f"{{{given}}}"), _sha256(f'{{{given},"workflow_version":{version}}}'))


def job_key(graph: str, input: object, workflow_version: str) -> str:
    """The idempotency key of any job: the same graph, input and version are the same job.

    Args:
        graph: Name of the graph.
        input: What the graph is fed.
        workflow_version: A new version processes old input again, on purpose.

    Raises:
        PayloadInvalid: See `canonical_json`.
    """
    return submitted(graph, input, workflow_version).key


def repository_key(repository: str, branch: str, operation: str, input: object, workflow_version: str) -> str:
    """The idempotency key of one operation on one repository.

    The repository's name is normalised: lower case, no white space. Nothing else is; branch names differ by case.

    Args:
        repository: The repository, as `owner/name` or an address.
        branch: The branch the change is meant for.
        operation: What is done, such as `generate-tests`.
        input: What it is done with: ticket id, file paths. No random values and no times, or every call is a new job.
        workflow_version: A new version processes old input again, on purpose.

    Raises:
        PayloadInvalid: The repository's name is empty, or see `canonical_json`.
    """
    normalised = "".join(repository.split()).lower()
    if not normalised:
        raise PayloadInvalid("The repository's name is empty.", next_step="Name the repository.", path="$.repository")
    return digest(
        {
            "repository": normalised,
            "branch": branch,
            "operation": operation,
            "input": input,
            "workflow_version": workflow_version,
        }
    )


def child_path(path: str, key: str | int) -> str:
    """The path of a member: `$.orders[3].kind`, or `$.orders['first one']` where the key is not a plain name."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if _PLAIN_NAME.fullmatch(key) else f"{path}[{key!a}]"


def _refuse_inexact(value: object, path: str, levels: int) -> bool:
    """Refuse what has no exact form; whether `_EXACT` writes the rest as RFC 8785 says."""
    kind = type(value)
    if value is None or kind is bool:
        return True
    if kind is str:
        _refuse_surrogates(cast(str, value), path)
        return True
    if kind is int:
        if abs(cast(int, value)) > MAX_INTEGER:
            raise _invalid(path, "an integer beyond ±(2^53−1)", "Write it as a string.")
        return True
    if kind is float:
        if not math.isfinite(cast(float, value)):
            raise _invalid(path, f"{value}", "Use null, or a string.")
        return False
    if isinstance(value, dict | list | tuple):
        if levels == 0:
            raise _invalid(path, f"nested deeper than {MAX_DEPTH} levels, or contains itself", "Flatten it.")
        exact = not isinstance(value, dict) or all(map(_is_plain_key, cast(dict[object, object], value)))
        for key, member in _members(cast(Any, value), path):
            if _is_surely_exact(member):
                continue  # without its path
            exact &= _refuse_inexact(member, child_path(path, key), levels - 1)
        return exact
    raise _invalid(path, f"of type {kind.__qualname__}", "Convert it to strings, numbers, booleans, lists and objects.")


def _is_plain_key(key: object) -> bool:
    return type(key) is str and key.isascii()


def _is_surely_exact(value: object) -> bool:
    kind = type(value)
    if kind is str:
        return cast(str, value).isascii()
    return value is None or kind is bool or (kind is int and abs(cast(int, value)) <= MAX_INTEGER)


def _members(
    value: dict[object, object] | list[object] | tuple[object, ...], path: str
) -> Iterable[tuple[str | int, object]]:
    if not isinstance(value, dict):
        yield from enumerate(value)
        return
    for key, member in value.items():
        if type(key) is not str:
            raise _invalid(path, f"an object with a key of type {type(key).__qualname__}", "Make every key a string.")
        if not key.isascii():
            _refuse_surrogates(key, child_path(path, key))
        yield key, member


def _refuse_surrogates(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _invalid(
            path,
            f"text with a lone surrogate at position {error.start}, which UTF-8 cannot hold",
            "Replace it, or decode the bytes it came from with the right encoding.",
        ) from None


def _invalid(path: str, what: str, next_step: str) -> PayloadInvalid:
    return PayloadInvalid(f"The value at {path} is {what}; it has no exact JSON form.", next_step=next_step, path=path)
