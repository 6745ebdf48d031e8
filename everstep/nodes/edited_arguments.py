"""The arguments a person edited, as values the function takes.

A person edits JSON. What was not changed stays the value the node gave; what was changed is read by the parameter's
type, strictly: an amount annotated `Decimal` may be edited to "12.50", and to nothing that is no amount.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from everstep.checkpoints.jobs import loose_digest

Changes = Mapping[str, Any]
UNCHANGED: Changes = {}


class NotUsable(Exception):
    """An answer that cannot be acted on; the message tells why, and follows "an earlier answer"."""


def changes(edited: Mapping[str, Any], exact: Mapping[str, Any], given: Mapping[str, Any], types: Changes) -> Changes:
    """What to call the function with in place of what the node gave, by name.

    Args:
        edited: The arguments as the person left them; JSON data.
        exact: The arguments as they were asked about: in canonical form.
        given: The arguments as the node gave them.
        types: The types of the parameters, as far as they are known.

    Raises:
        NotUsable: An argument is missing, unknown, or nothing its parameter takes.
    """
    if set(edited) != set(exact):
        missing, unknown = sorted(set(exact) - set(edited)), sorted(set(edited) - set(exact))
        told = [f"without {', '.join(missing)}"] * bool(missing) + [f"with {', '.join(unknown)}"] * bool(unknown)
        raise NotUsable(f"edited the arguments to ones {' and '.join(told)}, which are not those of the call")
    changed = [name for name in exact if loose_digest(edited[name]) != loose_digest(exact[name])]
    return {name: _read(name, edited[name], given[name], types.get(name, Any)) for name in changed}


def applied(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], changes: Changes
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments with the changes made."""
    if not changes:
        return args, kwargs
    call = inspect.signature(function).bind(*args, **kwargs)
    call.apply_defaults()
    call.arguments.update(changes)
    return call.args, call.kwargs


def types_of(function: Callable[..., Any]) -> Changes:
    """The types of a function's parameters, where it says what they are."""
    try:
        hints = typing.get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
    except Exception:  # an annotation that only a type checker can read
        return UNCHANGED
    kinds = {name: parameter.kind for name, parameter in inspect.signature(function).parameters.items()}
    whole = {inspect.Parameter.VAR_POSITIONAL: "tuple", inspect.Parameter.VAR_KEYWORD: "dict"}
    types = dict[str, Any]()
    for name, hint in hints.items():
        kind = whole.get(kinds.get(name, inspect.Parameter.POSITIONAL_OR_KEYWORD))
        types[name] = tuple[hint, ...] if kind == "tuple" else dict[str, hint] if kind == "dict" else hint
    return types


def _read(name: str, edited: Any, given: Any, hint: Any) -> Any:
    if hint in (Any, object):
        if _is_plain(given):
            return edited
        raise NotUsable(f"edited {name}, which is a {type(given).__qualname__} and has no type to read the change by")
    try:
        return TypeAdapter(hint).validate_json(json.dumps(edited), strict=True)
    except ValidationError as error:
        raise NotUsable(f"edited {name} to what it cannot be: {error.errors()[0]['msg']}") from None
    except Exception as error:  # a type that pydantic does not know, or a validator of the user's
        raise NotUsable(f"edited {name}, which cannot be edited: {type(error).__name__}") from None


def _is_plain(value: Any) -> bool:
    try:
        return repr(json.loads(json.dumps(value))) == repr(value)
    except (TypeError, ValueError, RecursionError):
        return False
