"""The rules of all libraries, and which of them count: those of libraries that the process has imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from everstep.runtime.rules.agents import AGENTS
from everstep.runtime.rules.aws import AWS
from everstep.runtime.rules.databases import DATABASES
from everstep.runtime.rules.google import GOOGLE
from everstep.runtime.rules.http_clients import HTTP_CLIENTS
from everstep.runtime.rules.providers import PROVIDERS
from everstep.runtime.rules.rule import Rule

LIBRARIES: dict[str, dict[str, Rule]] = {**HTTP_CLIENTS, **PROVIDERS, **GOOGLE, **AWS, **DATABASES, **AGENTS}
"""Rules by module and by the name the type has there."""


def loaded_library_rules() -> dict[type[BaseException], tuple[str, Rule]]:
    """The rules of the libraries that are imported, by type, each with its name."""
    return {kind: (name, rule) for kind, name, rule in _loaded()}


def _loaded() -> Iterator[tuple[type[BaseException], str, Rule]]:
    for module_name, rules in LIBRARIES.items():
        module = sys.modules.get(module_name)
        if module is None:
            continue
        for name, rule in rules.items():
            kind = getattr(module, name, None)
            if isinstance(kind, type) and issubclass(kind, BaseException):
                yield kind, f"{module_name}.{name}", rule
