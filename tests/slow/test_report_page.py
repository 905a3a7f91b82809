"""A report opens from the disk in a browser, draws, is used by keyboard, and asks for nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.reports.run_report.samples import add_summary, make_run

from esper.runs.reporting import report

pytestmark = pytest.mark.slow

EVIL = "<script>alert(1)<\u2028script>"
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("there is no chromium here")
    with driver.sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("runs")
    made = [make_run(place / name, seed=n) for n, name in enumerate((EVIL, "second"))]
    add_summary(made[0])
    return made


class Opened:
    """A page, and what it said and asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector('[data-report="episode"] [data-test="timeline"]')

    def is_quiet(self, path: Path) -> bool:
        """Return whether nothing was said, and nothing asked for but the file and its parts."""
        outside = [url for url in self.asked if not url.startswith(("data:", path.as_uri()))]
        return not self.said and not outside


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
def test_a_report_draws_in_any_size_and_scheme_without_a_word_to_the_console(
    browser: Any, runs: list[Path], tmp_path: Path, size: tuple[int, int], scheme: str
) -> None:
    path = report(runs[0], out=tmp_path / "report.html")
    viewport = {"width": size[0], "height": size[1]}
    opened = Opened(browser, path, viewport=viewport, color_scheme=scheme)
    page = opened.page
    assert "Report on <script>alert(1)<" in page.inner_text("h1")
    for name in ("return", "score", "parameters", "flops", "kl", "entropy", "losses"):
        assert page.locator(f'[data-test="chart-{name}"] canvas').count() >= 1
    assert page.locator('[data-report="episode"] [data-test="timeline"]').count() == 2
    assert page.locator('[data-report="episode"] [data-test="decision"]').count() == 2
    width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1]
    assert opened.is_quiet(path)
    opened.context.close()


def test_a_step_of_an_episode_is_opened_by_keyboard(
    browser: Any, runs: list[Path], tmp_path: Path
) -> None:
    path = report(runs[0], out=tmp_path / "report.html")
    opened = Opened(browser, path)
    slider = opened.page.locator('[data-report="episode"] input[type="range"]').first
    decision = opened.page.locator('[data-report="episode"] [data-test="decision"]').first
    slider.focus()
    opened.page.keyboard.press("Home")
    opened.page.wait_for_timeout(200)
    first = decision.inner_text()
    opened.page.keyboard.press("ArrowRight")
    opened.page.wait_for_timeout(200)
    assert decision.inner_text() != first
    assert opened.is_quiet(path)
    opened.context.close()


def test_several_runs_are_overlaid_and_each_has_its_episodes(
    browser: Any, runs: list[Path], tmp_path: Path
) -> None:
    path = report(runs, out=tmp_path / "report.html")
    opened = Opened(browser, path)
    places = opened.page.locator("[data-report]")
    assert places.count() == 1 + 5 * 2
    for number in range(places.count()):
        assert places.nth(number).locator("canvas, svg").count() >= 1
    assert opened.is_quiet(path)
    opened.context.close()


def test_without_scripts_the_words_and_tables_are_there(
    browser: Any, runs: list[Path], tmp_path: Path
) -> None:
    path = report(runs[0], out=tmp_path / "report.html")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    words = page.inner_text("main")
    assert "Growth helped" in words
    assert "germinate" in words
    assert page.locator("main table").count() >= 6
    context.close()
