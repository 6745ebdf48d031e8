"""The log of a process of Everstep's: lines for a person's terminal, or one JSON object a line, on stderr.

`logging` is the front for everybody (Everstep, nodes, libraries), structlog formats behind it. Importing this changes
nothing; commands call `configure`, and a program that wants its log to look the same may.

What a line may hold:
- The fields of `log_context.FIELDS`, and those that the configuration allows by name. Of any other field only its name
  and its type are shown, as `<str>`: what is allowed is listed, not what is forbidden.
- Texts (messages, exceptions, values of allowed fields) without credentials, as `everstep.credentials` tells them.
- No line breaks or control characters but its own: nothing that is logged can look like another line.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import threading
from collections.abc import Iterable, MutableMapping
from typing import Any, Final, Literal, TextIO, cast, get_args

from everstep.clock import rfc3339
from everstep.errors import ConfigInvalid
from everstep.observability import frames, log_context
from everstep.observability.attributes import bounded

FORMAT_VARIABLE: Final = "EVERSTEP_LOG_FORMAT"
LEVEL_VARIABLE: Final = "EVERSTEP_LOG_LEVEL"
LEVELS: Final = ("debug", "info", "warning", "error")
MESSAGE_LIMIT: Final = 16 * 1024
"""Bytes of UTF-8 in a message; an exception may have as many."""
FIELD_LIMIT: Final = 2 * 1024
MOST_FIELDS: Final = 32
CHATTY: Final = (
    "aiosqlite alembic asyncio botocore filelock google_genai httpcore httpcore2 httpx httpx2 langfuse openai"
    " anthropic opentelemetry urllib3 watchfiles"
).split()
"""Loggers that tell of each request or query at `info`; they are heard from `warning` on, unless the level is debug."""

Format = Literal["console", "json"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)

_Entry = MutableMapping[str, Any]
_STANDARD = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_OF_STRUCTLOG = frozenset({"event", "level", "logger", "timestamp", "exc_info", "stack_info", "exception"})
_NAME = re.compile(r"[A-Za-z][\w.-]{0,63}", re.ASCII)
_SET_IN = "    | "
_NOT_SHOWN = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, other line breaks, what turns the direction of a text around, and halves of characters."""


def configure(
    style: str | None = None, level: str | None = None, *, fields: Iterable[str] = (), default_level: str = "warning"
) -> Format:
    """Write the log of this process to stderr, in place of what an earlier call set up.

    Args:
        style: `console` or `json`; `EVERSTEP_LOG_FORMAT` when omitted, or else `console`.
        level: The least level that is written; `EVERSTEP_LOG_LEVEL` when omitted.
        fields: Names of `extra=` fields that are written as they are.
        default_level: The level when neither says one.

    Returns:
        The format.

    Raises:
        ConfigInvalid: A variable is neither of what it may be.
    """
    chosen = cast(Format, _one_of(FORMATS, style, FORMAT_VARIABLE, "console"))
    least = _one_of(LEVELS, level, LEVEL_VARIABLE, default_level)
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _Handler)]:
        root.removeHandler(handler)
    root.addHandler(_Handler(sys.stderr, chosen, frozenset(fields)))
    root.setLevel(least.upper())
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.NOTSET if least == "debug" else logging.WARNING)
    # It would warn of every class of the user's own in a state, on each read; which it rightly stores and restores.
    logging.getLogger("langgraph.checkpoint.serde.jsonplus").setLevel(logging.ERROR)
    return chosen


def own_process() -> None:
    """For a process that does nothing but run jobs: all that Python would print goes to the log as well.

    Warnings, exceptions that end a thread or nobody can catch, and the lines of structlog loggers, unless the program
    set structlog up itself.
    """
    import structlog

    logging.captureWarnings(True)
    python = logging.getLogger("python")

    def in_thread(ended: threading.ExceptHookArgs) -> None:
        name = ended.thread.name if ended.thread else "a thread"
        python.error("%s ended by an exception", name, exc_info=ended.exc_value)

    def unraisable(told: Any) -> None:
        python.error("%s", told.err_msg or "an exception nobody can catch", exc_info=told.exc_value)

    def uncaught(_kind: type[BaseException], error: BaseException, _trace: object) -> None:
        python.critical("the process ends by an exception", exc_info=error)

    threading.excepthook, sys.unraisablehook, sys.excepthook = in_thread, unraisable, uncaught
    if not structlog.is_configured():
        structlog.configure(
            processors=[structlog.stdlib.filter_by_level, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )


def _one_of(choices: tuple[str, ...], given: str | None, variable: str, otherwise: str) -> str:
    value = (given or os.environ.get(variable, "")).strip().lower() or otherwise
    if value not in choices:
        raise ConfigInvalid(f"{variable} is {value!r}", next_step=f"set it to one of: {', '.join(choices)}")
    return value


class _Handler(logging.StreamHandler[TextIO]):
    """Formats by structlog, which is loaded with the first line: most commands write none."""

    def __init__(self, stream: TextIO, style: Format, allowed: frozenset[str]) -> None:
        super().__init__(stream)
        self._style: Format = style
        self._allowed = allowed | frozenset(log_context.FIELDS)

    def format(self, record: logging.LogRecord) -> str:
        if self.formatter is None:
            import structlog

            self.formatter = structlog.stdlib.ProcessorFormatter(
                processors=[self._entry, _json if self._style == "json" else self._console(self.stream.isatty())],
            )
        try:
            return self.formatter.format(_readable(record))
        except Exception as error:  # `logging` would print the record as it is
            failed = logging.makeLogRecord({**record.__dict__, "exc_info": None, "stack_info": None, "args": ()})
            failed.msg = f"a line could not be formatted: {type(error).__name__}"
            return self.formatter.format(failed)

    def _entry(self, _logger: object, _level: str, event: _Entry) -> _Entry:
        """What of a record is written, in the order it is written in."""
        record: logging.LogRecord = event["_record"]
        if event["_from_structlog"]:
            extra = {name: value for name, value in event.items() if name not in _OF_STRUCTLOG}
        else:
            extra = {name: value for name, value in record.__dict__.items() if name not in _STANDARD}
        entry: dict[str, Any] = {
            "time": rfc3339(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": _text(record.name, FIELD_LIMIT),
            "message": _text(str(event.get("event", "")).rstrip(), MESSAGE_LIMIT),
            **log_context.fields(),
        }
        for name in [name for name in extra if _NAME.fullmatch(name) and name not in entry][:MOST_FIELDS]:
            if name in self._allowed:
                entry[name] = _value(extra[name])
            elif name == _text(name, FIELD_LIMIT):
                entry[name] = f"<{type(extra[name]).__name__}>"
        exception = _exception(event.get("exc_info"), event.get("stack_info"))
        return {**entry, "exception": exception} if exception else entry

    def _console(self, coloured: bool) -> Any:
        import structlog

        renderer = structlog.dev.ConsoleRenderer(
            colors=coloured and not os.environ.get("NO_COLOR"), pad_event_to=0, pad_level=False, sort_keys=False
        )

        def lines(logger: Any, level: str, entry: _Entry) -> str:
            """Short: what only programs look for is left out; further lines of a text are set in."""
            for name in ("worker", "trace_id", "span_id", "attempt"):
                entry.pop(name, None)
            shown = {name: _one_line(value) if isinstance(value, str) else value for name, value in entry.items()}
            shown["timestamp"], shown["event"] = shown.pop("time"), _set_in(entry["message"])
            if "exception" in entry:
                shown["exception"] = _SET_IN + _set_in(entry["exception"])
            del shown["message"]
            return str(renderer(logger, level, shown))

        return lines


def _json(_logger: object, _level: str, entry: _Entry) -> str:
    return json.dumps(entry, ensure_ascii=True, allow_nan=False)


def _readable(record: logging.LogRecord) -> logging.LogRecord:
    """The record with its message put together; one whose arguments do not fit is told, too."""
    if isinstance(record.msg, dict) and hasattr(record, "_logger"):  # of a structlog logger
        return record
    fit = logging.makeLogRecord(record.__dict__)
    try:
        fit.msg = record.getMessage()
    except Exception as error:
        fit.msg = f"{record.msg!r} (its arguments do not fit: {type(error).__name__})"
    fit.args = ()
    return fit


def _text(text: str, limit: int) -> str:
    from everstep.credentials import LONGEST_TEXT, without_secrets  # most commands log nothing

    return bounded(without_secrets(bounded(text, max(limit, LONGEST_TEXT))), limit)


def _value(value: object) -> object:
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return _text(value, FIELD_LIMIT)
        case _:
            return f"<{type(value).__name__}>"


def _exception(told: object, stack: object) -> str:
    """The stack trace of an exception, or of where the line was written."""
    if told is True:
        told = sys.exc_info()
    error = told[1] if isinstance(told, tuple) else told  # pyright: ignore[reportUnknownVariableType]
    lines = frames.python_s(error, MESSAGE_LIMIT) if isinstance(error, BaseException) else ""
    return _text(f"{lines}{stack or ''}".rstrip(), MESSAGE_LIMIT)


def _set_in(text: str) -> str:
    """The text for a terminal: further lines of it cannot be taken for lines of the log."""
    return f"\n{_SET_IN}".join(map(_one_line, text.replace("\r\n", "\n").split("\n")))


def _one_line(text: str) -> str:
    """What would not be seen, or would move the cursor, is spelt."""
    return _NOT_SHOWN.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode(), text)
