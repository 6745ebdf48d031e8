"""Asks a process for its metrics over HTTP, as Prometheus does, and reads them with prometheus-client's own parser."""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.cli import forked
from tests.cli.folder import environment
from tests.support.waiting import PATIENCE, until

_URL = re.compile(r"metrics: (http://\S+)")


class Page:
    """What a process tells at one moment.

    Attributes:
        text: The page.
        values: Every sample: its name, and its labels as they are sorted, to its value.
        types: The kind of each metric, by the name that its samples begin with.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.types: dict[str, str] = {}
        for family in text_string_to_metric_families(text):
            self.types[family.name] = family.type
            for sample in family.samples:
                self.values[sample.name, tuple(sorted(sample.labels.items()))] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that have these labels; 0 if there are none."""
        wanted = set(labels.items())
        return sum(value for (found, given), value in self.values.items() if found == name and wanted <= set(given))

    @property
    def names(self) -> set[str]:
        """Names of all samples."""
        return {name for name, _ in self.values}


def scrape(url: str) -> Page:
    """The page."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return Page(answer.read().decode())


class Serving:
    """A process of `everstep` that serves its metrics.

    Attributes:
        process: The process.
        url: Where.
    """

    def __init__(self, process: forked.Running, log: Path) -> None:
        self.process = process
        self._log = log
        self.url = until(self._said, "the address of the metrics")

    def _said(self) -> str | None:
        told = self._log.read_text()
        assert self.process.poll() is None, told
        found = _URL.search(told)
        return found[1] if found else None

    @property
    def page(self) -> Page:
        """What it tells now; the record's part may be ten seconds old."""
        return scrape(self.url)


@contextmanager
def serving(folder: Path, store_url: str, *command: str, **variables: str) -> Iterator[Serving]:
    """Run `everstep COMMAND` in the folder; ended at the end."""
    log = folder / f"{len(list(folder.glob('*.serving')))}.serving"
    given = environment(EVERSTEP_STORE=store_url, **variables)
    with log.open("wb") as written, open(os.devnull) as nothing:
        streams = [nothing.fileno(), written.fileno(), written.fileno()]
        process = forked.Running(command, folder=folder, environment=given, streams=streams)
    try:
        yield Serving(process, log)
    finally:
        process.kill()
        process.wait()
