"""A report opens from disk, draws its charts, works by keyboard and requests nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.dashboard.report_samples import add_summary, make_run
from tests.slow.browser.conftest import Visit
from tests.slow.browser.visitor import SIZES, Visitor

from esper.dashboard.report import report

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
    visitor.find("timeline").locator("svg").first.wait_for()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_a_report_draws_in_any_size_and_colour_scheme(
    visit: Visit, one: Path, size: str, theme: str
) -> None:
    visitor = visit(size, scheme="file", color_scheme=theme)
    open_report(visitor, one)
    assert "<script>alert(1)<" in visitor.page.locator("h1").first.inner_text()
    for name in CHARTS:
        assert visitor.find(f"chart-{name}").locator("canvas").count() >= 1
    for name in ("timeline", "decision", "network"):
        assert visitor.find(name).count() == 2
    for name in ("verdict", "learned-verdict", "conclusion", "preset"):
        assert visitor.find(name).count() == 1
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
    episode = visitor.page.locator('.report-screen[id$="/growth"]')
    words = episode.locator(".player-words").first
    episode.locator('input[type="range"]').first.focus()
    visitor.page.keyboard.press("Home")
    words.get_by_text("step 1 of").wait_for()
    decision = visitor.find("decision").first
    first = decision.inner_text()
    visitor.page.keyboard.press("ArrowRight")
    words.get_by_text("step 2 of").wait_for()
    assert decision.inner_text() != first


def test_several_runs_are_compared_and_have_their_own_screens(
    visit: Visit, runs: list[Path], tmp_path: Path
) -> None:
    visitor = visit(scheme="file")
    open_report(visitor, report(runs, out=tmp_path / "report.html"))
    screens = visitor.page.locator(".report-screen")
    ids = screens.evaluate_all("(all) => all.map(({ id }) => id)")
    own = ["", "/growth", "/learned", "/health", "/settings"]
    assert ids == ["/compare", *(f"/run/{run}{name}" for run in (0, 1) for name in own)]
    for number in range(screens.count()):
        assert screens.nth(number).locator("canvas, svg, table").count() >= 1
    assert visitor.find("compare-verdict").count() == 1


def test_links_lead_to_the_screens(visit: Visit, one: Path) -> None:
    visitor = visit(scheme="file")
    open_report(visitor, one)
    visitor.page.locator(".tab", has_text="Settings").click()
    visitor.until(
        "() => Math.abs(document.getElementById('/run/0/settings').getBoundingClientRect().top)"
        " < window.innerHeight"
    )


def test_a_printed_report_has_all_screens_within_the_page(visit: Visit, one: Path) -> None:
    visitor = visit(scheme="file", color_scheme="dark")
    open_report(visitor, one)
    visitor.page.emulate_media(media="print")
    assert not visitor.page.locator(".bar").is_visible()
    assert not visitor.page.locator(".chart-tools").first.is_visible()
    assert visitor.page.pdf(format="A4").startswith(b"%PDF")


def test_without_javascript_the_page_says_what_it_needs(visit: Visit, one: Path) -> None:
    visitor = visit(scheme="file", java_script_enabled=False)
    visitor.open(one.as_uri())
    assert "esper show" in visitor.page.inner_text("noscript")
