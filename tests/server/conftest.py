"""A server that LangGraph's clients talk to: over real HTTP, with a worker beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.chat_graphs import catalogue
from tests.support.live import live
from tests.support.record import fresh


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with the graphs of `tests.support.chat_graphs`, one for all tests of a module."""
    with fresh(tmp_path_factory.mktemp("served")) as store, live(store, catalogue()) as url:
        yield url
