"""Reads out of a PromQL query which series it asks for: enough of the language for our own alerts and dashboard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"'  # text
    r"|\[[^\]]*\]"  # a range
    r"|[a-zA-Z_:][a-zA-Z0-9_:]*"  # a name
    r"|[0-9][0-9.eE+-]*"
    r"|=~|!~|!=|==|>=|<=|\S"
)
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan"}
_GROUPING = {"by", "without", "on", "ignoring", "group_left", "group_right"}


@dataclass(frozen=True)
class Selector:
    """A series that is asked for.

    Attributes:
        name: Its name.
        labels: Labels it must have: how each is compared, and with what; nothing for one that is only grouped by.
    """

    name: str
    labels: dict[str, tuple[str, str]] = field(default_factory=dict)

    def matches(self, name: str, labels: dict[str, str]) -> bool:
        """Whether a series is one of those asked for."""
        return name == self.name and all(
            {
                "": lambda found, _: True,
                "=": lambda found, given: found == given,
                "!=": lambda found, given: found != given,
                "=~": lambda found, given: re.fullmatch(given, found) is not None,
                "!~": lambda found, given: re.fullmatch(given, found) is None,
            }[how](labels.get(label, ""), given)
            for label, (how, given) in self.labels.items()
        )


def selectors(query: str) -> Iterator[Selector]:
    """The selectors of a query; one in an aggregation has the labels it is grouped by as well."""
    tokens = _TOKEN.findall(query)
    grouped: dict[str, tuple[str, str]] = {}
    position = 0
    while position < len(tokens):
        token, position = tokens[position], position + 1
        following = tokens[position] if position < len(tokens) else ""
        if token in _GROUPING:
            end = tokens.index(")", position)
            names = [name for name in tokens[position + 1 : end] if name != ","]
            grouped = dict.fromkeys(names, ("", ""))
            position = end + 1
        elif re.fullmatch(r"[a-zA-Z_:]\w*", token) and following not in ("(", *_GROUPING) and token not in _WORDS:
            labels: dict[str, tuple[str, str]] = {}
            if following == "{":
                end = tokens.index("}", position)
                within = [one for one in tokens[position + 1 : end] if one != ","]
                labels = {name: (how, text[1:-1]) for name, how, text in zip(*[iter(within)] * 3, strict=True)}
                position = end + 1
            yield Selector(token, {**labels, **{name: how for name, how in grouped.items() if name not in labels}})
            grouped = {}
