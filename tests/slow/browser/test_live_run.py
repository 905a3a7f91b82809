"""A training run is shown live, without reloading the page."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from tests.slow.browser.conftest import Live, Serve, Visit
from tests.slow.browser.processes import SECONDS, ask, read_link, rounds_done, training
from tests.slow.browser.visitor import BOXES, NOT_THERE, ROUND, WATCH, Visitor, shown

pytestmark = pytest.mark.slow


def open_overview(visitor: Visitor, link: str, run: str) -> int:
    """Open a run with charts from the list, and return its round."""
    visitor.open(link)
    visitor.page.get_by_role("link", name=run, exact=True).click()
    visitor.page.locator("[data-test=chart-ops] canvas").wait_for()
    return visitor.page.evaluate(ROUND)


def wait_for_rounds(visitor: Visitor, n_updates: int) -> int:
    """Wait until the round has changed several times, and return it."""
    last = visitor.page.evaluate(ROUND)
    for _ in range(n_updates):
        last = visitor.until(
            f"(last) => {{ const now = ({ROUND})(); return now > last && now; }}", last
        )
    return last


def chart_words(visitor: Visitor, chart: str) -> str:
    label = visitor.find(f"chart-{chart}").get_by_role("img").get_attribute("aria-label")
    assert label is not None
    return label


def chart_picture(visitor: Visitor, chart: str) -> str:
    canvas = visitor.find(f"chart-{chart}").locator("canvas")
    return canvas.evaluate("(canvas) => canvas.toDataURL()")


def test_numbers_and_charts_update_without_reloading(live: Live, visit: Visit) -> None:
    visitor = visit()
    first = open_overview(visitor, live.served.link, "live")
    visitor.page.evaluate("() => { window.mark = 'the same page'; }")
    pictures = [chart_picture(visitor, name) for name in ("return", "score", "parameters")]
    last = wait_for_rounds(visitor, 3)
    assert first + 3 <= last <= rounds_done(live.run_dir)
    after = [chart_picture(visitor, name) for name in ("return", "score", "parameters")]
    assert all(one != other for one, other in zip(pictures, after, strict=True))
    # The last point of a chart is the mean return that the run recorded for that round.
    found = re.search(r"training: from .*? to (\S+) in round (\d+)", chart_words(visitor, "return"))
    assert found is not None
    assert int(found[2]) >= last
    rows = ask(live.run_dir, "SELECT ep_rew_mean FROM rounds WHERE round = ?", int(found[2]))
    assert found[1] == shown(rows[0][0])
    assert visitor.page.evaluate("window.mark") == "the same page"
    assert visitor.find("connection").inner_text() == "connected"


def test_updates_do_not_shift_the_layout(live: Live, visit: Visit) -> None:
    visitor = visit()
    open_overview(visitor, live.served.link, "live")
    visitor.page.evaluate(WATCH)
    before = visitor.page.evaluate(BOXES, "[data-test^=chart-]")
    assert len(before) == 9
    wait_for_rounds(visitor, 5)
    assert visitor.page.evaluate(BOXES, "[data-test^=chart-]") == before
    assert visitor.page.evaluate("window.moved") == []


def test_a_zoom_survives_new_rounds(live: Live, visit: Visit) -> None:
    visitor = visit()
    open_overview(visitor, live.served.link, "live")
    visitor.until(f"() => ({ROUND})() >= 4")
    box = visitor.find("chart-return").locator(".u-over").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    visitor.page.mouse.move(box["x"] + 0.2 * box["width"], middle)
    visitor.page.mouse.down()
    visitor.page.mouse.move(box["x"] + 0.7 * box["width"], middle, steps=4)
    visitor.page.mouse.up()
    words = visitor.page.locator(".zoom-words")
    zoomed = visitor.until(
        "() => document.querySelector('.zoom-words').textContent.match(/rounds \\d+ to \\d+/)?.[0]"
    )
    wait_for_rounds(visitor, 2)
    assert words.inner_text().strip() == zoomed
    visitor.page.get_by_role("button", name="Reset zoom").click()
    visitor.until("() => document.querySelector('.zoom-words').textContent.includes('all rounds')")


def test_all_hosts_are_shown_growing(live: Live, visit: Visit) -> None:
    visitor = visit()
    open_overview(visitor, live.served.link, "live")
    visitor.page.get_by_role("link", name="Environments").click()
    visitor.find("env-5").wait_for()
    cards = visitor.page.locator("[data-test^=env-]")
    assert cards.count() == 6
    visitor.page.evaluate(WATCH)
    boxes = visitor.page.evaluate(BOXES, "[data-test^=env-]")
    words = cards.evaluate_all("(all) => all.map((one) => one.getAttribute('aria-label'))")
    visitor.until(
        "(before) => [...document.querySelectorAll('[data-test^=env-]')]"
        ".every((one, k) => one.getAttribute('aria-label') !== before[k])",
        words,
    )
    assert visitor.page.evaluate(BOXES, "[data-test^=env-]") == boxes
    assert visitor.page.evaluate("window.moved") == []
    cards.nth(3).click()
    visitor.find("timeline").wait_for()
    assert visitor.page.evaluate("location.hash").startswith("#/run/live/growth/3/")


def test_a_new_run_appears_and_finishes_without_reloading(
    tmp_path: Path, serve: Serve, visit: Visit
) -> None:
    visitor = visit()
    visitor.open(serve(tmp_path).link)
    visitor.page.get_by_text("No runs yet.").wait_for()
    with training(tmp_path / "short", rounds=4):
        row = visitor.find("run-row")
        row.locator(".badge.running").wait_for()
        row.locator(".badge.done").wait_for()
    visitor.until("() => document.querySelector('.runs-progress').textContent.includes('4 of 4')")
    assert row.locator("th").inner_text() == "short"
    best = ask(
        tmp_path / "short",
        "SELECT ep_rew_mean FROM evaluations WHERE arm = 'learned' AND purpose = 'final'",
    )
    assert row.locator("[data-name='held-out return']").inner_text() == shown(best[0][0])
    row.get_by_role("link").click()
    # The comparison with other controllers comes with the run's end.
    visitor.page.get_by_role("heading", name="Comparison at the end").wait_for()


def test_the_dashboard_of_a_training_run_shows_it_from_start_to_end(
    tmp_path: Path, visit: Visit
) -> None:
    visitor = visit()
    with training(tmp_path / "runs" / "own", "--dashboard", rounds=30) as process:
        link, _ = read_link(process.stderr)
        visitor.open(link)  # before the run exists; its page fills by itself
        visitor.page.locator(".badge.running").wait_for()
        wait_for_rounds(visitor, 2)
        visitor.page.locator(".badge.done").wait_for()
        visitor.find("verdict").wait_for()
        assert visitor.page.evaluate(ROUND) == 30
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 0
    visitor.wait_for_connection("disconnected")
    assert visitor.page.locator(".badge.done").count() == 1
    visitor.forgive(*NOT_THERE)


def test_an_interrupted_training_run_is_shown_as_interrupted(tmp_path: Path, visit: Visit) -> None:
    visitor = visit()
    with training(tmp_path / "runs" / "own", "--dashboard", rounds=100_000) as process:
        link, _ = read_link(process.stderr)
        visitor.open(link)
        visitor.until(f"() => ({ROUND})() >= 2")
        process.send_signal(signal.SIGINT)
        visitor.page.locator(".badge.interrupted").wait_for()
        _, err = process.communicate()
        assert process.returncode == 130
        assert "interrupted and saved; resume with: " in err
    visitor.wait_for_connection("disconnected")
    assert visitor.page.evaluate(ROUND) == rounds_done(tmp_path / "runs" / "own")
    visitor.forgive(*NOT_THERE)
