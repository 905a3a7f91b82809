"""A report opens from disk, draws its charts, works by keyboard and requests nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.reports.run_report.samples import add_summary, make_run
from tests.slow.browser.conftest import Visit
from tests.slow.browser.visitor import SIZES, Visitor

from esper.reports.reporting import report

pytestmark = pytest.mark.slow

EVIL = "<script>alert(1)<\u2028script>"
N_LEVELS = """(canvas) => {
    const { width, height } = canvas;
    return new Set(canvas.getContext("2d").getImageData(0, 0, width, height).data).size;
}"""
"""Returns the number of colour levels in a drawing; an empty one has one."""
CHARTS = ("return", "score", "parameters", "flops", "kl", "entropy", "losses")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("runs")
    made = [make_run(place / name, seed=n) for n, name in enumerate((EVIL, "second"))]
    add_summary(made[0])
    return made


@pytest.fixture(scope="module")
def one(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the report on one run."""
    return report(runs[0], out=tmp_path_factory.mktemp("report") / "report.html")


def open_report(visitor: Visitor, path: Path) -> None:
    visitor.open(path.as_uri())
    visitor.page.locator('[data-report="episode"] [data-test="timeline"] svg').first.wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_a_report_draws_in_any_size_and_colour_scheme(
    visit: Visit, one: Path, size: str, theme: str
) -> None:
    visitor = visit(size, scheme="file", color_scheme=theme)
    open_report(visitor, one)
    assert "Report on <script>alert(1)<" in visitor.page.inner_text("h1")
    for name in CHARTS:
        assert visitor.find(f"chart-{name}").locator("canvas").count() >= 1
    for name in ("timeline", "decision", "network"):
        place = visitor.page.locator(f'[data-report="episode"] [data-test="{name}"]')
        assert place.count() == 2
    visitor.require_fit()


def test_a_chart_is_drawn_and_shows_values_at_the_cursor(visit: Visit, one: Path) -> None:
    visitor = visit(scheme="file")
    open_report(visitor, one)
    chart = visitor.find("chart-return").first
    chart.scroll_into_view_if_needed()
    assert chart.locator("canvas").evaluate(N_LEVELS) > 10
    value = chart.locator(".legend-value").first
    last = value.inner_text()
    box = chart.locator(".u-over").bounding_box()
    assert box is not None
    visitor.page.mouse.move(box["x"] + 2, box["y"] + 20)
    visitor.until(
        "(last) => document.querySelector('[data-test=chart-return] .legend-value')"
        ".textContent !== last",
        last,
    )


def test_the_steps_of_an_episode_open_by_keyboard(visit: Visit, one: Path) -> None:
    visitor = visit(scheme="file")
    open_report(visitor, one)
    episode = visitor.page.locator('[data-report="episode"]').first
    words = episode.locator(".player-words")
    episode.locator('input[type="range"]').focus()
    visitor.page.keyboard.press("Home")
    words.get_by_text("step 1 of").wait_for()
    first = episode.locator('[data-test="decision"]').inner_text()
    visitor.page.keyboard.press("ArrowRight")
    words.get_by_text("step 2 of").wait_for()
    assert episode.locator('[data-test="decision"]').inner_text() != first


def test_several_runs_are_overlaid_and_have_their_own_episodes(
    visit: Visit, runs: list[Path], tmp_path: Path
) -> None:
    visitor = visit(scheme="file")
    open_report(visitor, report(runs, out=tmp_path / "report.html"))
    places = visitor.page.locator("[data-report]")
    # Charts of all runs, five places in the part of each run, and the verdict of one.
    assert places.count() == 1 + 5 * 2 + 1
    for number in range(places.count()):
        assert places.nth(number).locator("canvas, svg, .interval-plot").count() >= 1


def test_text_and_tables_need_no_javascript(visit: Visit, runs: list[Path], one: Path) -> None:
    visitor = visit(scheme="file", java_script_enabled=False)
    visitor.open(one.as_uri())
    words = visitor.page.inner_text("main")
    summary = json.loads((runs[0] / "summary.json").read_text())
    assert summary["sentences"][0] in words
    assert "germinate" in words
    assert visitor.page.locator("main table").count() >= 6
