"""The page in a browser: quick, reachable by keyboard, and inert whatever the model said."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ragen_pl.report.page import build_report
from ragen_pl.report.run_data import RunReader
from ragen_pl.runtime.durable_files import write_text
from tests.support.report_runs import HOSTILE, record, write_records, write_run

playwright = pytest.importorskip("playwright.sync_api", reason="pip install -e '.[browser]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.run,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)
ADDRESS = "location.hash"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with 500 trajectories in which the model says hostile things."""
    folder = tmp_path_factory.mktemp("browser")
    run = write_run(folder / "run", HOSTILE, num_groups=20)
    for iteration in range(20, 100, 10):
        records = [
            record(seed=group, group=group, member=member, iteration=iteration, text=text)
            for group in range(7)
            for member, text in enumerate(HOSTILE[:8])
        ]
        write_records(run, f"rollout-{iteration:05d}.jsonl", records)
    data = RunReader(run).read()
    assert len(data.entries) > 500
    write_text(folder / "report.html", build_report([data]))
    return folder / "report.html"


class View:
    """An open page, with what it complained of."""

    def __init__(self, browser: Any, path: Path, fragment: str = "", **options: Any) -> None:
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page = browser.new_context(**options).new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.said.append("dialog"))
        self.page.goto(f"{path.as_uri()}{fragment}")
        self.page.wait_for_selector("html[data-ready]", state="attached")
        self.seconds = int(self.page.evaluate("document.documentElement.dataset.ready")) / 1000
        """From the navigation until the page can be used."""

    def hash(self) -> str:
        return str(self.page.evaluate(ADDRESS))


def test_it_opens_quickly_with_charts_and_without_a_word(browser: Any, path: Path) -> None:
    view = View(browser, path)
    view.page.wait_for_selector(".js-plotly-plot .main-svg")
    assert view.seconds < 2.0
    assert view.said == []
    assert [url for url in view.requests if not url.startswith("data:")] == [path.as_uri()]


def test_every_trajectory_is_reachable_by_keyboard_and_nothing_runs(
    browser: Any, path: Path
) -> None:
    view = View(browser, path, "#/trajectories")
    page = view.page
    page.wait_for_selector("[data-turn-card]")
    count = page.locator("#rows li").count()
    assert 400 < count <= 500
    seen = {view.hash()} if "/0." in view.hash() else set()
    page.keyboard.press("Home")
    for _ in range(count):
        page.wait_for_timeout(1)
        seen.add(view.hash())
        page.keyboard.press("j")
    seen.add(view.hash())
    assert len({each for each in seen if "/0." in each}) == count
    assert page.evaluate("window.hit") is None
    assert view.said == []


def test_hostile_text_is_shown_as_text(browser: Any, path: Path) -> None:
    view = View(browser, path, "#/trajectories")
    view.page.wait_for_selector("[data-turn-card]")
    view.page.keyboard.press("/")
    view.page.keyboard.type("onerror")
    view.page.wait_for_selector("#found:has-text(' of ')")
    view.page.keyboard.press("Enter")
    view.page.wait_for_selector("#detail .said:has-text('<img src=x onerror')")
    assert view.page.locator("#detail img:not([src^='data:image/'])").count() == 0
    assert view.page.evaluate("window.hit") is None


def test_turns_and_tokens_by_keyboard(browser: Any, path: Path) -> None:
    view = View(browser, path, "#/trajectories")
    page = view.page
    page.wait_for_selector("[data-turn-card]")
    page.keyboard.press("l")
    assert page.locator(".turn.current").get_attribute("data-turn-card") == "1"
    page.keyboard.press("h")
    assert page.locator(".turn.current").get_attribute("data-turn-card") == "0"
    page.locator(".token").nth(1).focus()
    page.keyboard.press("ArrowRight")
    assert "log-prob" in page.locator("#tip").inner_text()
    page.keyboard.press("c")
    assert page.locator("[data-mode][aria-checked='true']").count() == 1
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "part", ["overview", "trajectories", "trajectories/0.rollout-00010.1.1", "configuration"]
)
def test_a_phone_needs_no_sideways_scrolling(
    browser: Any, path: Path, scheme: str, part: str
) -> None:
    size = {"width": 390, "height": 844}
    view = View(browser, path, f"#/{part}", viewport=size, color_scheme=scheme)
    view.page.wait_for_timeout(500)
    assert view.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert view.said == []
