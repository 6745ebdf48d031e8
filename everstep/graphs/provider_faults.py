"""What is wrong with `[providers.NAME]` beyond the sections themselves: the files and classes that they name.

A worker and a server that start look, and `everstep doctor` and `everstep provider list`. Variables that are not set
are told apart from that: they may be set where the provider is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.errors import ConfigInvalid, EverstepError
from everstep.graphs.provider_sections import ProviderSection, own_class, providers_of
from everstep.nodes.price_list import read_price_list
from everstep.nodes.providers import signatures
from everstep.nodes.providers.http_description import read_description
from everstep.nodes.providers.registry import Providers

if TYPE_CHECKING:
    from everstep.graphs.loader import GraphCatalogue


def usable_providers(sections: Mapping[str, ProviderSection], graphs: GraphCatalogue) -> Providers:
    """The providers that sections describe, once all that they name is known to be there.

    Args:
        sections: By name.
        graphs: The graphs beside them: what a class of the user's own is imported from, and its environment.

    Raises:
        ConfigInvalid: A description, a price list or a class cannot be used; the message names the entry.
    """
    if sections:
        graphs.prepare()
    for name, section in sections.items():
        for fault in faults(name, section, graphs.folder):
            raise fault
    return providers_of(sections, graphs.folder)


def faults(name: str, section: ProviderSection, folder: Path) -> Iterator[ConfigInvalid]:
    """What is wrong with a provider wherever it is used.

    Args:
        name: Its name.
        section: Its section.
        folder: Where `everstep.toml` is.
    """
    checks = {
        "file": lambda: None if section.file is None else read_description(folder / section.file),
        "use": lambda: None if section.is_builtin else own_class(name, section, folder),
        "prices": lambda: None if section.prices is None else read_price_list(folder / section.prices),
    }
    for field, check in checks.items():
        try:
            check()
        except EverstepError as error:
            what = f"{folder / 'everstep.toml'}: providers.{name}.{field}: {error.message}"
            yield ConfigInvalid(what, next_step=error.next_step, path=str(folder / "everstep.toml"))


def in_environment(section: ProviderSection, environment: Mapping[str, str] = os.environ) -> Iterator[tuple[str, bool]]:
    """What is wrong with a provider's key and its webhook's secret in this process's environment.

    Yields:
        What is wrong; and whether that is wrong anywhere, and not only here.
    """
    if section.key_env is not None and not environment.get(section.key_env, "").strip():
        yield f"{section.key_env}, which holds its key, is not set here", False
    if section.webhook is None:
        return
    variable = section.webhook.secret_env
    secrets = signatures.secrets_in(variable, environment)
    if not secrets:
        yield f"{variable}, which holds its webhook's secret, is not set here", False
    elif signatures.is_malformed(section.webhook.scheme(), secrets):
        yield f"{variable}, which holds its webhook's secret, is not whsec_ and base64", True
