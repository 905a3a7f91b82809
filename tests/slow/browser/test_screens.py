"""Every screen fits its window in light and dark, and shows what the run recorded."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.dashboard.report_samples import add_summary, make_run
from tests.slow.browser.conftest import Visit
from tests.slow.browser.processes import SECONDS, Dashboard, ask, dashboard, training
from tests.slow.browser.visitor import SIZES, Visitor, shown

from esper.telemetry import TelemetryWriter
from esper.telemetry.records import NoticeRecord

pytestmark = pytest.mark.slow

LONG = "a_run_whose_name_is_as_long_as_the_folder_of_somebody_who_writes_all_settings_into_it"
TRAINED = "trained"
SCREENS = {
    "": "[data-test=chart-ops] canvas",
    "/growth": "[data-test=network] .block, [data-test=network] .empty-slot",
    "/environments": "[data-test=env-2] .sparkline",
    "/health": "[data-test=chart-memory] canvas",
    "/learned": ".bar-table >> nth=1",
    "/settings": "table.settings",
}
"""Screens of a run by the end of their URL, with an element that appears once they are drawn."""


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a trained run and a simulated awkward one."""
    place = tmp_path_factory.mktemp("runs")
    with training(place / TRAINED, rounds=3) as process:
        process.communicate(timeout=SECONDS)
        assert process.returncode == 0
    made = make_run(place / LONG)
    add_summary(made)
    with TelemetryWriter(made / "telemetry.sqlite") as writer:
        writer.write(NoticeRecord(round=8, kind="test", message="x" * 300))
    return place


@pytest.fixture(scope="module")
def served(browser: object, runs_dir: Path) -> Iterator[Dashboard]:
    with dashboard(runs_dir) as found:
        yield found


def luminance(visitor: Visitor) -> float:
    """Return the lightness of the page's background, from 0 to 1."""
    text = visitor.page.evaluate("getComputedStyle(document.body).backgroundColor")
    levels = [int(level) for level in text.removeprefix("rgb(").removesuffix(")").split(",")]
    return sum(levels) / (3 * 255)


def number(text: str) -> int:
    return int("".join(letter for letter in text if letter.isdigit()))


def facts(visitor: Visitor) -> dict[str, str]:
    """Return the numbers at the top of a screen by name."""
    return visitor.page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('.fact')].map((fact) =>"
        " [fact.querySelector('dt').firstChild.textContent, fact.querySelector('dd').textContent]))"
    )


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_every_screen_fits_and_follows_the_system_theme(
    served: Dashboard, visit: Visit, size: str, theme: str
) -> None:
    visitor = visit(size, color_scheme=theme)
    visitor.open(served.link)
    visitor.find("run-row").nth(1).wait_for()
    visitor.require_fit()
    for run in (TRAINED, LONG):
        for end, sign in SCREENS.items():
            visitor.go(f"#/run/{run}{end}")
            visitor.page.locator(sign).first.wait_for()
            visitor.require_fit()
            assert (luminance(visitor) > 0.5) == (theme == "light")
    visitor.go(f"#/compare?runs={TRAINED},{LONG}")
    visitor.page.locator(".chart canvas").first.wait_for()
    visitor.require_fit()


def test_a_chosen_theme_persists(served: Dashboard, visit: Visit) -> None:
    visitor = visit(color_scheme="light")
    visitor.open(served.link)
    wait = "(end) => document.querySelector('[data-test=theme]')?.textContent.endsWith(end)"
    for theme, is_light in (("light", True), ("dark", False)):
        visitor.find("theme").click()
        visitor.until(wait, theme)
        assert (luminance(visitor) > 0.5) == is_light
    visitor.page.reload()
    visitor.until(wait, "dark")
    assert luminance(visitor) < 0.5
    visitor.find("theme").click()
    visitor.until(wait, "auto")
    assert luminance(visitor) > 0.5


@pytest.mark.parametrize("run", [TRAINED, LONG])
def test_health_shows_the_recorded_counts(
    served: Dashboard, visit: Visit, runs_dir: Path, run: str
) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go(f"#/run/{run}/health")
    visitor.find("health").wait_for()
    queries = {
        "hosts rolled back": "SELECT COUNT(*) FROM governor_events",
        "updates rejected": "SELECT COUNT(*) FROM updates WHERE was_refused",
        "updates stopped early": "SELECT COUNT(*) FROM updates WHERE stopped_early",
        "illegal actions": "SELECT SUM(n_illegal) FROM rounds",
        "rejected by gates": "SELECT SUM(n_refused) FROM rounds",
    }
    displayed = facts(visitor)
    stored = {name: ask(runs_dir / run, query)[0][0] for name, query in queries.items()}
    assert {name: number(displayed[name]) for name in queries} == stored


def test_health_lists_rollbacks_with_links(served: Dashboard, visit: Visit) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go(f"#/run/{LONG}/health")
    visitor.find("health").get_by_text("x" * 300).wait_for()
    visitor.find("health").get_by_role("link").first.click()
    visitor.find("timeline").wait_for()


def test_the_overview_shows_the_recorded_numbers(
    served: Dashboard, visit: Visit, runs_dir: Path
) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go(f"#/run/{TRAINED}")
    visitor.page.locator("[data-test=chart-ops] canvas").wait_for()
    final = "SELECT ep_rew_mean FROM evaluations WHERE arm = 'learned' AND purpose = 'final'"
    assert facts(visitor)["return, test split"].strip() == shown(
        ask(runs_dir / TRAINED, final)[0][0]
    )
    chart = visitor.find("chart-return")
    chart.locator("summary").click()
    rows = chart.locator("tbody tr")
    rows.first.wait_for()
    written = [row.split("\t")[:2] for row in rows.all_inner_texts()]
    stored = ask(runs_dir / TRAINED, "SELECT round, ep_rew_mean FROM rounds ORDER BY round DESC")
    assert written == [[str(row[0]), shown(row[1])] for row in stored]


def test_learned_shows_the_recorded_ops(served: Dashboard, visit: Visit, runs_dir: Path) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go(f"#/run/{TRAINED}/learned")
    row = visitor.page.locator("tr", has_text="episodes").first
    row.wait_for()
    displayed = [number(text) for text in row.locator("td").all_inner_texts()]
    stored = ask(runs_dir / TRAINED, "SELECT COUNT(*) FROM episodes GROUP BY round ORDER BY round")
    assert displayed == [one[0] for one in stored]


def n_values(table: dict[str, Any]) -> int:
    return sum(n_values(one) if isinstance(one, dict) else 1 for one in table.values())


def test_settings_are_shown_and_can_be_searched(
    served: Dashboard, visit: Visit, runs_dir: Path
) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go(f"#/run/{TRAINED}/settings")
    rows = visitor.page.locator("table.settings tbody tr")
    rows.first.wait_for()
    config = tomllib.loads((runs_dir / TRAINED / "config.toml").read_text())
    assert rows.count() == n_values(config)
    visitor.page.get_by_role("searchbox").fill("learning_rate")
    visitor.until("() => document.querySelectorAll('table.settings tbody tr').length < 9")
    displayed = dict(text.split("\t")[:2] for text in rows.all_inner_texts())
    assert float(displayed["ppo.learning_rate"]) == config["ppo"]["learning_rate"]
    assert all("learning_rate" in name or "rate" in name for name in displayed)


def test_selected_runs_are_compared(served: Dashboard, visit: Visit) -> None:
    visitor = visit()
    visitor.open(served.link)
    compare = visitor.page.get_by_role("button", name="Compare")
    visitor.page.get_by_role("checkbox", name=f"compare {TRAINED}").check()
    assert compare.is_disabled()
    visitor.page.get_by_role("checkbox", name=f"compare {LONG}").check()
    compare.click()
    visitor.page.locator(".chart canvas").first.wait_for()
    heads = visitor.page.locator("table.headlines thead a").all_inner_texts()
    assert sorted(heads) == sorted([TRAINED, LONG])
    names = visitor.page.locator(".chart").first.locator(".legend-item").all_inner_texts()
    assert all(any(run in name for name in names) for run in (TRAINED, LONG))
    differing = visitor.page.locator("section", has_text="Settings that differ")
    differing.get_by_role("row", name="rounds").first.wait_for()
    visitor.page.get_by_role("checkbox", name=LONG).uncheck()
    visitor.page.get_by_text("Choose two or more runs.").wait_for()
    visitor.page.go_back()
    visitor.find("run-row").first.wait_for()


def test_runs_are_found_by_their_notes_and_sorted(
    served: Dashboard, visit: Visit, runs_dir: Path
) -> None:
    (runs_dir / TRAINED / "notes.md").write_text("# Seed of the month\n\nand more\n")
    visitor = visit()
    visitor.open(served.link)
    rows = visitor.find("run-row")
    visitor.until(
        "() => document.querySelector('.runs-notes')?.textContent === 'Seed of the month'"
    )
    visitor.page.get_by_role("button", name="run", exact=True).click()
    names = [text.splitlines()[0] for text in rows.locator("th").all_inner_texts()]
    assert names == sorted([TRAINED, LONG])
    visitor.page.keyboard.press("/")
    visitor.page.keyboard.type("MONTH done")
    visitor.until("() => document.querySelectorAll('[data-test=run-row]').length === 1")
    assert rows.locator("th a").inner_text() == TRAINED
    gap = rows.locator("[data-name='vs fixed'] span")
    (summary,) = json.loads((runs_dir / TRAINED / "summary.json").read_text())["verdicts"]
    (fixed,) = [one for one in summary["findings"] if one["against"] == "fixed"]
    assert gap.inner_text().lstrip("+") == shown(fixed["returns"]["mean"])
    # Four hosts are too few to tell anything, so the number has no colour.
    assert gap.get_attribute("class") == ""
    visitor.page.get_by_role("searchbox").fill("nothing like it")
    visitor.page.get_by_text("No matching run.").wait_for()


def test_a_chart_says_the_round_and_can_be_enlarged_and_saved(
    served: Dashboard, visit: Visit, runs_dir: Path
) -> None:
    visitor = visit(accept_downloads=True)
    visitor.open(served.link)
    visitor.go(f"#/run/{LONG}")
    chart = visitor.find("chart-return")
    chart.locator("canvas").wait_for()
    box = chart.locator(".u-over").bounding_box()
    assert box is not None
    visitor.page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 20)
    tip = chart.locator(".chart-tip.shown strong")
    tip.wait_for()
    assert re.fullmatch(r"round \d+", tip.inner_text())
    chart.get_by_role("button", name="enlarge").click()
    large = visitor.find("chart-return-large")
    large.locator("canvas").wait_for()
    with visitor.page.expect_download() as saved:
        large.get_by_role("button", name="PNG").click()
    assert saved.value.path().read_bytes().startswith(b"\x89PNG")
    with visitor.page.expect_download() as saved:
        large.get_by_role("button", name="CSV").click()
    header, *lines = saved.value.path().read_text().splitlines()
    assert header == "round,training,held-out,fixed schedule"
    stored = ask(runs_dir / LONG, "SELECT round, ep_rew_mean FROM rounds ORDER BY round")
    values = {int(line.split(",")[0]): line.split(",")[1] for line in lines}
    for number_, mean in stored:
        assert values[number_] == "" if mean is None else float(values[number_]) == mean
    visitor.page.keyboard.press("Escape")
    large.wait_for(state="detached")


def test_smoothing_draws_means_and_keeps_the_numbers(
    served: Dashboard, visit: Visit, runs_dir: Path
) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go(f"#/run/{LONG}")
    chart = visitor.find("chart-explained-variance")
    chart.locator("canvas").wait_for()
    visitor.page.get_by_label("smoothing").select_option("5")
    rows = ask(runs_dir / LONG, "SELECT explained_variance FROM updates ORDER BY round")
    known = [one[0] for one in rows if one[0] is not None]
    mean = shown(sum(known[-5:]) / 5)
    visitor.until(
        "(mean) => document.querySelector('[data-test=chart-explained-variance] .legend-value')"
        ".textContent === mean",
        mean,
    )
    chart.locator("summary").click()
    assert chart.locator("tbody td").first.inner_text() in ("", shown(known[-1]))


def test_a_question_mark_shows_keys_and_words(served: Dashboard, visit: Visit) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.find("run-row").first.wait_for()
    visitor.page.keyboard.press("?")
    help_ = visitor.page.get_by_role("dialog", name="Help")
    help_.get_by_text("play or pause").wait_for()
    help_.get_by_role("searchbox").fill("embargo")
    help_.get_by_text("slot stays closed").wait_for()
    help_.get_by_text("A recipe for a seed").wait_for(state="detached")
    visitor.page.keyboard.press("Escape")  # empties the box
    visitor.page.keyboard.press("Escape")
    help_.wait_for(state="detached")


def test_hosts_are_sorted_and_those_that_finished_come_first_after_a_run(
    served: Dashboard, visit: Visit, runs_dir: Path
) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go(f"#/run/{TRAINED}/environments")
    visitor.find("env-2").wait_for()
    last = "SELECT MAX(seq) FROM episodes GROUP BY env"
    query = f"SELECT env, final_score FROM episodes WHERE seq IN ({last})"
    scores = dict(tuple(row) for row in ask(runs_dir / TRAINED, query))
    visitor.page.get_by_label("sort by").select_option("best")
    order = sorted(scores, key=lambda env: (-scores[env], env))
    visitor.until(
        "(first) => document.querySelector('.host').dataset.test === first", f"env-{order[0]}"
    )
    cards = visitor.page.locator(".host")
    assert cards.evaluate_all("(all) => all.map((one) => one.dataset.test)") == [
        f"env-{env}" for env in order
    ]
    assert cards.evaluate_all("(all) => all.filter((one) => one.tabIndex === 0).length") == 1
    assert "finished after epoch" in (cards.first.get_attribute("aria-label") or "")
    visitor.page.get_by_role("button", name="at the end").click()
    visitor.page.get_by_text("when the run ended").first.wait_for()


def test_health_and_settings_begin_with_a_conclusion(served: Dashboard, visit: Visit) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go(f"#/run/{LONG}/health")
    visitor.find("conclusion").get_by_text("to look at.").wait_for()
    visitor.go(f"#/run/{TRAINED}/settings")
    words = visitor.find("preset")
    words.get_by_text("spirals").wait_for()
    assert "rounds" in words.inner_text()
    visitor.page.get_by_label("only what differs").check()
    visitor.page.locator("table.settings tbody tr:not(.differs)").first.wait_for(state="detached")
    rows = visitor.page.locator("table.settings tbody tr")
    displayed = dict(text.split("\t")[:2] for text in rows.all_inner_texts())
    assert displayed["rounds"] == "3"


def test_runs_of_different_settings_are_not_ranked(served: Dashboard, visit: Visit) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go(f"#/compare?runs={TRAINED},{LONG}")
    verdict = visitor.find("compare-verdict")
    verdict.wait_for()
    assert "different" in verdict.inner_text()
    assert visitor.page.locator("table.headlines .best").count() == 0


@pytest.mark.parametrize("address", ["#/run/nowhere", "#/elsewhere", f"#/run/{quote('../x', '')}"])
def test_missing_pages_and_runs_are_reported(served: Dashboard, visit: Visit, address: str) -> None:
    visitor = visit()
    visitor.open(served.link)
    visitor.go(address)
    visitor.page.get_by_text("no such").first.wait_for()
    visitor.forgive("the server responded with a status of 404")
