"""The page of a trace, looked at with a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from everstep.runtime.trace.page import LIMIT, page
from everstep.runtime.trace.tree import Node, TraceTree, Use
from tests.support.browser import browser as started_browser
from tests.support.traces import SECOND, START, leg, step, tree

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "%%SCRIPT%% %%DATA%%",
    "\u2028\u2029 ' \" \\ \x00\x1b[31m\ud800 ‮drowssap",
)
RESUME = "everstep retry 01a22bd0"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser; it is gone before an asynchronous test of another module wants an event loop."""
    with started_browser() as started:
        yield started


@dataclass
class Looked:
    """A page that is open, and what the browser told of it."""

    page: Page
    requests: list[str] = field(default_factory=list[str])
    complaints: list[str] = field(default_factory=list[str])

    @property
    def rows(self) -> list[str]:
        """The names of the rows that are drawn."""
        return self.page.locator(".row .text").all_inner_texts()


@pytest.fixture
def look(browser: Browser, tmp_path: Path) -> Iterator[object]:
    """Write the page of a tree and open it, as a person would who was sent it."""
    contexts = []

    def open_(shown: TraceTree, scheme: str = "light") -> Looked:
        file = tmp_path / "trace.html"
        file.write_bytes(page(shown))
        context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 800})  # pyright: ignore
        contexts.append(context)
        looked = Looked(context.new_page())
        looked.page.on("request", lambda request: looked.requests.append(request.url))
        looked.page.on("console", lambda message: looked.complaints.append(message.text))
        looked.page.on("pageerror", lambda error: looked.complaints.append(str(error)))
        looked.page.goto(file.as_uri())
        return looked

    yield open_
    for context in contexts:
        context.close()


def _failed(*hostile: str) -> TraceTree:
    steps = [step(number, "plan") for number in range(1, 40)]
    wrong = step(40, "push", status="error", detail="ConnectionError: no route", resume=RESUME, stack="at agent.py:7")
    wrong.children = [Node("tool", text, wrong.started_ns, wrong.ended_ns, detail=text) for text in hostile]
    return tree(leg(1, [*steps, wrong], status="error", use=Use(1200, 34, 5600)), use=Use(1200, 34, 5600))


def test_the_page_loads_nothing_and_breaks_no_rule_of_its_own(look) -> None:
    """The page asks for nothing but itself, its policy is kept, and it shows each entry with its bar."""
    looked = look(_failed())
    assert looked.requests == [looked.page.url]
    assert looked.complaints == []
    assert looked.rows[0] == "✗ leg 1"
    assert len(looked.rows) == 41
    assert looked.page.locator(".bar").count() == 41
    assert "1,200 tokens in, 34 out" in looked.page.locator("#summary").inner_text()


def test_hostile_names_are_text(look) -> None:
    """Names and errors that look like markup, script, or the template's own places are shown, not run."""
    looked = look(_failed(*HOSTILE))
    assert looked.page.evaluate("window.hacked") is None
    assert looked.page.locator("img").count() == 0
    assert looked.page.locator("script").count() == 2
    assert HOSTILE[0] in looked.rows
    assert HOSTILE[2] in looked.rows
    assert looked.complaints == []


def test_filter_and_errors_only(look) -> None:
    """Text and errors filter the entries, with what they happened in; nothing that fits says so."""
    looked = look(_failed())
    looked.page.keyboard.press("/")
    looked.page.keyboard.type("push")
    assert looked.rows == ["✗ leg 1", "✗ step 40 push"]
    looked.page.keyboard.type(" and what never was")
    assert looked.rows == []
    assert looked.page.locator("#nothing").is_visible()
    looked.page.keyboard.press("Escape")
    assert len(looked.rows) == 41
    looked.page.locator("#errors").check()
    assert looked.rows == ["✗ leg 1", "✗ step 40 push"]


def test_the_keyboard_suffices(look) -> None:
    """From the list of entries: next error, its details with the command that resumes, folding, and back."""
    looked = look(_failed())
    details = looked.page.locator("#details")
    assert details.is_hidden()
    looked.page.keyboard.press("n")
    assert details.is_visible()
    assert RESUME in details.inner_text()
    assert "agent.py:7" in details.inner_text()
    focused = "document.activeElement.querySelector('.text').textContent"
    assert looked.page.evaluate(focused) == "✗ step 40 push"
    looked.page.keyboard.press("ArrowUp")
    assert looked.page.evaluate(focused) == "step 39 plan"
    looked.page.keyboard.press("Escape")
    assert details.is_hidden()
    looked.page.keyboard.press("ArrowLeft")
    looked.page.keyboard.press("ArrowLeft")
    assert looked.rows == ["✗ leg 1"]
    looked.page.keyboard.press("ArrowRight")
    assert len(looked.rows) == 41


def test_a_pause_of_days_leaves_room_for_what_ran(look) -> None:
    """A job that waited three days between two legs of a minute still shows both legs as wide bars."""
    days = 3 * 86_400 * SECOND
    first, second = leg(1, [step(1)]), leg(2, [step(2)], started=START + days)
    wait = Node("wait", "waits for a person", START + 60 * SECOND, START + days)
    looked = look(tree(first, wait, second))
    track = looked.page.locator(".track").first.bounding_box()
    bars = [looked.page.locator(".row.leg .bar").nth(number).bounding_box() for number in (0, 1)]
    assert track is not None
    assert all(bar is not None and bar["width"] > track["width"] / 3 for bar in bars)


def test_three_thousand_spans(look) -> None:
    """A trace of three thousand entries is drawn whole, and filtered to the one that failed."""
    steps = [step(number, "agent" if number % 2 else "tools") for number in range(3_000)]
    steps[1_500].status = "error"
    looked = look(tree(leg(1, steps, took=400 * SECOND, status="error")))
    assert looked.page.locator(".row").count() == 3_001
    looked.page.keyboard.press("e")
    assert looked.rows == ["✗ leg 1", "✗ step 1500 tools"]
    assert looked.complaints == []


def test_of_too_many_entries_the_errors_stay(look) -> None:
    """A page holds a limited number of entries, says how many it lacks, and lacks no error for it."""
    steps = [step(number) for number in range(LIMIT + 500)]
    steps[-100].status = "error"
    looked = look(tree(leg(1, steps, took=2_000 * SECOND, status="error")))
    assert looked.page.locator(".row").count() == LIMIT
    assert "501 more are not on this page" in looked.page.locator("#shown").inner_text()
    looked.page.keyboard.press("e")
    assert looked.rows == ["✗ leg 1", f"✗ step {LIMIT + 400} work"]


def test_light_and_dark(look) -> None:
    """The page follows the reader's colour scheme."""
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = (look(_failed(), scheme).page.evaluate(background) for scheme in ("light", "dark"))
    assert light == "rgb(251, 251, 250)"
    assert dark == "rgb(22, 24, 27)"
