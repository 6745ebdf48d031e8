"""An exception as a service could have caused it, made from its type alone, to see what it would mean for a job."""

from __future__ import annotations

import importlib
import sys
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from everstep.errors import ExceptionTypeInvalid
from everstep.runtime.attributes import read


class _Response(dict[str, Any]):
    """A response that keeps status and headers where httpx, requests, aiohttp and botocore keep them."""

    def __init__(self, status: int | None, headers: dict[str, str], code: str | None) -> None:
        super().__init__(ResponseMetadata={"HTTPStatusCode": status, "HTTPHeaders": headers}, Error={"Code": code})
        self.status_code = status
        self.headers = headers


def find_exception_type(name: str) -> type[BaseException]:
    """The exception type of a dotted name, such as `openai.RateLimitError`; a bare name is one of Python's own.

    Its module is imported, from the working folder too.

    Raises:
        ExceptionTypeInvalid: There is no such module or name, the import failed, or it is no exception type.
    """
    module, path = _imported(name)
    value: Any = module
    for part in path:
        if not hasattr(value, part):
            close = get_close_matches(part, dir(value), 1)
            raise ExceptionTypeInvalid(
                f"{module.__name__} has no {'.'.join(path)}",
                next_step=f"did you mean {module.__name__}.{close[0]}?" if close else "look the name up in its docs",
                name=name,
            )
        value = getattr(value, part)
    if not (isinstance(value, type) and issubclass(value, BaseException)):
        raise ExceptionTypeInvalid(
            f"{name} is no exception type", next_step="name a class that can be raised", name=name
        )
    return value


def specimen(
    kind: type[BaseException], status: int | None = None, retry_after: str | None = None, code: str | None = None
) -> BaseException:
    """An exception of a type, with a response if anything of one is given. Its constructor is not run.

    Args:
        kind: The type.
        status: The response's HTTP status.
        retry_after: The response's `Retry-After` header.
        code: The code in the service's answer, such as `insufficient_quota`.

    Raises:
        ExceptionTypeInvalid: One of this type cannot be made from nothing.
    """
    try:
        make: Any = getattr(kind, "from_exception_data", None)  # pydantic's, which has no constructor
        error: BaseException = make("nothing", []) if make else kind.__new__(kind)
    except TypeError as failure:
        raise ExceptionTypeInvalid(
            f"no {kind.__qualname__} can be made from nothing: {failure}",
            next_step="a group is judged by its members; name one of their types",
            name=f"{kind.__module__}.{kind.__qualname__}",
        ) from failure
    if status is not None or retry_after is not None or code is not None:
        headers = {} if retry_after is None else {"retry-after": retry_after}
        if not _set(error, "response", _Response(status, headers, code)):
            _set(error, "_response", _Response(status, headers, code))  # google-api-core's property reads this
    if status is not None and read(error, "status_code") is not None:
        _set(error, "status_code", status)
    if code is not None:
        _set(error, "error_code", code)
    return error


def _set(error: BaseException, name: str, value: Any) -> bool:
    try:
        setattr(error, name, value)
    except Exception:
        return False
    return True


def _imported(name: str) -> tuple[ModuleType, list[str]]:
    """The longest importable beginning of a dotted name, and the names that follow it."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ExceptionTypeInvalid(f"{name!r} is no dotted name", next_step="write package.module.Error", name=name)
    if len(parts) == 1:
        return importlib.import_module("builtins"), parts
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        try:
            return importlib.import_module(module), parts[end:]
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise _import_failed(module, name, error) from error
        except (Exception, SystemExit) as error:
            raise _import_failed(module, name, error) from error
    raise ExceptionTypeInvalid(
        f"there is no module {parts[0]!r}",
        next_step="install it where Everstep runs, or call everstep from the folder that holds it",
        name=name,
    )


def _import_failed(module: str, name: str, error: BaseException) -> ExceptionTypeInvalid:
    return ExceptionTypeInvalid(
        f"{module} cannot be imported: {type(error).__name__}: {error}",
        next_step=f"python -c 'import {module}' shows where it fails",
        name=name,
    )
