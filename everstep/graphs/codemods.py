"""The operations the repository agent can carry out on a file: text in, text out, the same program afterwards.

Each operation is a pure function that reaches a fixed point in one application, so applying it again after a crash
changes nothing. None may alter what a file means; `everstep.graphs.same_code` is the proof, and no edit without it is
kept.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

PYTHON = frozenset({".py", ".pyi"})
PLAIN = PYTHON | {".cfg", ".ini", ".json", ".rst", ".toml"}

_GENERATED = re.compile(r"@generated|\bdo not edit\b", re.IGNORECASE)
_GENERATED_WITHIN = 1000
_ENCODING = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_ENCODING_ONLY = re.compile(
    r"#[ \t]*(?:-\*-[ \t]*)?(?:en)?coding[:=][ \t]*utf[-_]?8[ \t]*(?:-\*-)?[ \t]*", re.IGNORECASE
)
_LICENSE_TAG = "SPDX-License-Identifier:"
_SIMPLE_STRING = re.compile(r"(?P<prefix>[rbuRBU]{0,2})'(?P<body>[^'\"\\\n]*)'")
_STRING_OPENS = {"FSTRING_START", "TSTRING_START"}
_STRING_CLOSES = {"FSTRING_END", "TSTRING_END"}


class CannotRewrite(ValueError):
    """The operation does not suit this file; the message says why."""


@dataclass(frozen=True)
class Operation:
    """Something the agent can do to a file.

    Attributes:
        name: As a payload names it.
        summary: What it does, in a clause that follows "This operation".
        subject: First line of the commit message.
        suffixes: File name endings it applies to.
        needs_license: Whether the payload must say which licence.
        change: The rewrite: `(suffix, text, license) -> text`.
    """

    name: str
    summary: str
    subject: str
    suffixes: frozenset[str]
    change: Callable[[str, str, str], str]
    needs_license: bool = False

    def applies_to(self, path: str) -> bool:
        """Whether a file of this name is of a kind the operation handles."""
        return PurePosixPath(path).suffix in self.suffixes

    def rewrite(self, path: str, data: bytes, license_id: str = "") -> bytes:
        """What the file should hold.

        Args:
            path: The file's path; its suffix decides how the text is read.
            data: What it holds now.
            license_id: An SPDX licence expression, for the operation that needs one.

        Raises:
            CannotRewrite: The file is of another kind, not UTF-8, generated, or does not parse.
        """
        if not self.applies_to(path):
            raise CannotRewrite(f"{self.name} handles {', '.join(sorted(self.suffixes))} files only")
        if b"\0" in data:
            raise CannotRewrite("it is a binary file")
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise CannotRewrite(f"it is not UTF-8 (byte {error.start})") from error
        if _GENERATED.search(text[:_GENERATED_WITHIN]):
            raise CannotRewrite("it says that it is generated; change its source instead")
        if re.search(r"\r(?!\n)", text):
            raise CannotRewrite("it has bare carriage returns, so its lines are unclear")
        mark, text = ("\ufeff", text[1:]) if text.startswith("\ufeff") else ("", text)
        return (mark + self.change(PurePosixPath(path).suffix, text, license_id)).encode()


def _lines(text: str) -> list[str]:
    """The lines with their ends; unlike `str.splitlines`, a line ends at a line feed only, as in Python source."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    try:
        return list(tokenize.generate_tokens(io.StringIO(text, newline="").readline))
    except (tokenize.TokenError, SyntaxError) as error:
        raise CannotRewrite(f"it is not valid Python here: {error}") from error


def _lines_inside_strings(text: str) -> set[int]:
    """Numbers, from 1, of the lines whose end lies inside a string, where white space is data."""
    inside: set[int] = set()
    opened: list[int] = []
    for token in _tokens(text):
        kind = tokenize.tok_name[token.type]
        if kind in _STRING_OPENS:
            opened.append(token.start[0])
        elif kind in _STRING_CLOSES:
            inside.update(range(opened.pop(), token.end[0]))
        elif token.type == tokenize.STRING:
            inside.update(range(token.start[0], token.end[0]))
    return inside


def _tidy_whitespace(suffix: str, text: str, _: str) -> str:
    lines = re.split(r"\r?\n", text)
    untidy = {number for number, line in enumerate(lines, 1) if line.endswith((" ", "\t"))}
    keep = _lines_inside_strings(text) if suffix in PYTHON and untidy else set[int]()
    tidy = [line.rstrip(" \t") if number in untidy - keep else line for number, line in enumerate(lines, 1)]
    while tidy and not tidy[-1]:
        tidy.pop()
    return "\n".join(tidy) + "\n" if tidy else ""


def _remove_encoding_line(_suffix: str, text: str, _: str) -> str:
    lines = _lines(text)
    for number, line in enumerate(lines[:2]):
        if _ENCODING_ONLY.fullmatch(line.rstrip("\r\n")):
            del lines[number]
            while number == 0 and lines and not lines[0].strip():
                del lines[0]
            return "".join(lines)
        if number == 0 and line.strip() and not line.lstrip().startswith("#"):
            break
    return text


def _add_license_identifier(_suffix: str, text: str, license_id: str) -> str:
    if _LICENSE_TAG in text or not text.strip():
        return text
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = _lines(text)
    place = 1 if lines[0].startswith("#!") else 0
    place += len(lines) > place and _ENCODING.match(lines[place]) is not None
    if place and not lines[place - 1].endswith("\n"):
        lines[place - 1] += newline
    lines.insert(place, f"# {_LICENSE_TAG} {license_id}{newline}")
    return "".join(lines)


def _use_double_quotes(_suffix: str, text: str, _: str) -> str:
    lines = _lines(text)
    nested = 0
    plain: list[tokenize.TokenInfo] = []
    for token in _tokens(text):
        kind = tokenize.tok_name[token.type]
        nested += (kind in _STRING_OPENS) - (kind in _STRING_CLOSES)
        if token.type == tokenize.STRING and not nested:
            plain.append(token)
    for token in reversed(plain):
        if simple := _SIMPLE_STRING.fullmatch(token.string):
            (row, start), (_row, end) = token.start, token.end
            line = lines[row - 1]
            if {line[start - 1 : start], line[end : end + 1]} & {"'", '"'}:  # ''"a" would become a triple quote
                continue
            lines[row - 1] = f'{line[:start]}{simple["prefix"]}"{simple["body"]}"{line[end:]}'
    return "".join(lines)


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            "tidy-whitespace",
            "strips white space at the end of lines and files, ends files with a newline, turns CRLF into LF",
            "Tidy white space",
            PLAIN,
            _tidy_whitespace,
        ),
        Operation(
            "remove-encoding-lines",
            "removes `# -*- coding: utf-8 -*-` lines, which say the default since Python 3 (PEP 3120)",
            "Remove needless encoding lines",
            PYTHON,
            _remove_encoding_line,
        ),
        Operation(
            "double-quotes",
            "writes plain single-quoted strings with double quotes",
            "Use double quotes for strings",
            PYTHON,
            _use_double_quotes,
        ),
        Operation(
            "add-license-identifiers",
            "adds an SPDX licence identifier as a comment at the top of source files that lack one",
            "Add SPDX licence identifiers",
            PYTHON,
            _add_license_identifier,
            needs_license=True,
        ),
    )
}
"""Every operation, by the name a payload uses."""
