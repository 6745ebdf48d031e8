"""What must not enter the record: inputs no job can start from, and credentials, found by name or unmistakable form.

Passwords, cookies, sessions, payment data and keys are injected at run time, from the key store of the operating system
or of the CI; the record holds at most the name under which to find them. This is a net against mistakes, not a scanner:
a secret under an innocent name and of no known form passes. `everstep.credentials` tells names and forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from everstep.checkpoints.canonical import MAX_DEPTH, child_path
from everstep.credentials import LONGEST_TEXT as LONGEST_TEXT
from everstep.credentials import REDACTED as REDACTED
from everstep.credentials import holds_secret as holds_secret
from everstep.credentials import names_secret as names_secret
from everstep.credentials import without_secrets as without_secrets
from everstep.errors import PayloadInvalid, SecretInPayload


def check_input(value: object, allow_secret_keys: bool = False) -> None:
    """Refuse an input that no job can start from, or that seems to hold credentials.

    Args:
        value: The input, as JSON values.
        allow_secret_keys: As for `check_payload`.

    Raises:
        PayloadInvalid: It is null; to LangGraph `None` means to resume a thread.
        SecretInPayload: As of `check_payload`.
    """
    if value is None:
        raise PayloadInvalid(
            "the input is null, which tells LangGraph to resume a thread; no job can start from it",
            next_step="give what the graph starts with; for a graph that needs nothing: {}",
        )
    check_payload(value, allow_secret_keys)


def check_payload(value: object, allow_secret_keys: bool = False) -> None:
    """Refuse an input or an answer that seems to hold credentials.

    Args:
        value: The input or answer, as JSON values.
        allow_secret_keys: The caller has looked and takes the responsibility: nothing is refused.

    Raises:
        SecretInPayload: Names every suspect path, never a value; `ids["paths"]` lists them.
    """
    if allow_secret_keys:
        return
    paths = find_secrets(value)
    if paths:
        raise SecretInPayload(
            f"The input seems to hold credentials at {', '.join(paths)}; the record is no place for them.",
            next_step="Take them out and let the graph read them at run time from the environment or a key store, "
            "or pass --allow-secret-keys (allow_secret_keys=True) if they are none.",
            paths=paths,
        )


def find_secrets(value: object) -> list[str]:
    """The paths of what looks like a credential, by name or by form, in the order of the value.

    Below a suspect name nothing more is reported. A key that is itself a credential is shown as `<secret>`. Levels
    beyond `MAX_DEPTH` are not looked at; canonical JSON refuses them.

    Args:
        value: JSON values; other objects are passed over.
    """
    return list(_find(value, "$", MAX_DEPTH))


def _find(value: object, path: str, levels: int) -> Iterator[str]:
    if isinstance(value, str):
        if holds_secret(value):
            yield path
    elif isinstance(value, dict) and levels:
        named = _named_value(cast(dict[Any, Any], value))
        for key, member in cast(dict[Any, Any], value).items():
            name = str(key)
            if holds_secret(name):
                yield child_path(path, "<secret>")
            elif _can_be_secret(member, name) and (names_secret(name) or key == named):
                yield child_path(path, name)
            else:
                yield from _find(member, child_path(path, name), levels - 1)
    elif isinstance(value, list | tuple) and levels:
        for index, member in enumerate(cast(list[Any], value)):
            yield from _find(member, child_path(path, index), levels - 1)


def _named_value(value: dict[Any, Any]) -> str | None:
    """`value` in `{"name": "Authorization", "value": …}`: headers, cookies and variables are often written so."""
    name = value.get("name", value.get("key"))
    return "value" if isinstance(name, str) and names_secret(name) else None


def _can_be_secret(value: object, name: str) -> bool:
    if value is None or isinstance(value, bool):
        return False
    return not (isinstance(value, int | float) and name.lower().rstrip("0123456789").endswith(("token", "tokens")))
