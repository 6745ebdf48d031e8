"""LangGraph's JavaScript clients, unchanged, against the server. What is done and expected is in `tests/server/js`."""

from __future__ import annotations

from tests.support.javascript import scenarios


def test_the_sdk(url: str) -> None:
    """Every call of the SDK's client is answered as it expects: assistants, threads, runs, questions, store, crons."""
    scenarios("sdk.mjs", url)


def test_use_stream(url: str) -> None:
    """The hook behind LangGraph's chat pages, under React, shows what happens, asks people and takes their answers."""
    scenarios("use_stream.mjs", url)


def test_remote_graph(url: str) -> None:
    """A graph of the server is used from JavaScript as if it were there, and as a node of another."""
    scenarios("remote_graph.mjs", url)
