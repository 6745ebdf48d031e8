"""A real browser for tests that look at pages: the one on this machine, found on PATH (`scripts/setup-browser`)."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--disable-dev-shm-usage",
)


@contextmanager
def browser() -> Generator[Browser]:
    """The browser, with a profile of its own that is deleted afterwards; a test without one fails."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(f"no browser on PATH ({', '.join(NAMES)}); run scripts/setup-browser")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=[*FLAGS], timeout=60_000)
        try:
            yield started
        finally:
            started.close()
