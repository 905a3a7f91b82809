"""Names and messages of runs are shown as text and never executed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.dashboard.report_samples import make_run
from tests.slow.browser.conftest import Visit
from tests.slow.browser.processes import Dashboard, dashboard
from tests.slow.browser.visitor import Visitor

from esper.telemetry import TelemetryWriter
from esper.telemetry.records import NoticeRecord

pytestmark = pytest.mark.slow

EVIL = "<img src=x onerror=alert(1)><script>alert(2)"
NAMES = [
    EVIL,
    "&lt;b&gt; \"quoted\" 'and' `so`",
    "a#b?c%20d&e=f+g,h",
    "javascript:alert(3)",
    "${alert(4)}{{alert(5)}}",
    "\u202egnp.nur\u2028 %",
]
"""Folder names, which can have any character but a slash."""

SCREENS = {
    "": "[data-test=chart-ops] canvas",
    "/growth": "[data-test=network]",
    "/environments": "[data-test=env-2]",
    "/health": "[data-test=chart-memory] canvas",
    "/learned": ".bar-table",
    "/settings": "table.settings",
}


def spoil(folder: Path) -> None:
    """Put markup into every text of a run."""
    with TelemetryWriter(folder / "telemetry.sqlite") as writer:
        writer.start_session(first_round=9, threads=1, torch_version=EVIL)
        writer.write(NoticeRecord(round=8, kind=EVIL, message=f"</script>{EVIL}"))
        writer.end_session("failed", message=EVIL)
    with closing(sqlite3.connect(folder / "telemetry.sqlite")) as connection:
        connection.execute("UPDATE governor_events SET reason = ?", (EVIL,))
        connection.execute("UPDATE steps SET refusal = ? WHERE refusal IS NOT NULL", (EVIL,))
        for name, evil in {"blocks.0": f"slot {EVIL}", "widen": f"blueprint {EVIL}"}.items():
            for column in ("slots", "blueprints", "choices", "host"):
                change = f"UPDATE runs SET {column} = REPLACE({column}, ?, ?)"
                connection.execute(change, (name, evil))
            for column in ("slot", "blueprint"):
                change = f"UPDATE seed_events SET {column} = REPLACE({column}, ?, ?)"
                connection.execute(change, (name, evil))
        connection.commit()


@pytest.fixture(scope="module")
def served(browser: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Return a dashboard of runs with such names, the first with such texts too."""
    place = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(NAMES):
        make_run(place / name, seed=seed)
    spoil(place / EVIL)
    with dashboard(place) as found:
        yield found


def texts(visitor: Visitor, selector: str) -> list[str]:
    return visitor.page.locator(selector).evaluate_all("(all) => all.map((one) => one.textContent)")


def require_no_markup(visitor: Visitor) -> None:
    """Fail if a text became an element."""
    assert visitor.page.locator("img, script:not([src^=static])").count() == 0


def test_hostile_names_are_text_and_link_to_their_runs(served: Dashboard, visit: Visit) -> None:
    visitor = visit()
    visitor.open(served.link)
    links = visitor.page.locator("[data-test=run-row] a")
    links.nth(len(NAMES) - 1).wait_for()
    assert sorted(texts(visitor, "[data-test=run-row] a")) == sorted(NAMES)
    for name in NAMES:
        places = texts(visitor, "[data-test=run-row] a")
        links.nth(places.index(name)).click()
        visitor.find("round").wait_for()
        assert texts(visitor, "h1") == [name]
        require_no_markup(visitor)
        visitor.page.go_back()
        links.first.wait_for()
    for box in visitor.page.get_by_role("checkbox").all():
        box.check()
    visitor.page.get_by_role("button", name="Compare").click()
    visitor.page.locator(".chart canvas").first.wait_for()
    assert sorted(texts(visitor, "table.headlines thead a")) == sorted(NAMES)
    require_no_markup(visitor)


@pytest.mark.parametrize("size", ["desk", "phone"])
def test_hostile_messages_are_text_on_every_screen(
    served: Dashboard, visit: Visit, size: str
) -> None:
    visitor = visit(size)
    visitor.open(served.link)
    for end, sign in SCREENS.items():
        visitor.go(f"#/run/{quote(EVIL, '')}{end}")
        visitor.page.locator(sign).first.wait_for()
        assert EVIL in visitor.page.locator("body").inner_text()
        require_no_markup(visitor)
        visitor.require_fit()
    visitor.go(f"#/run/{quote(EVIL, '')}/health")
    visitor.page.get_by_text(f"</script>{EVIL}").wait_for()
    visitor.go(f"#/run/{quote(EVIL, '')}/growth")
    visitor.find("timeline").wait_for()
    for step in visitor.page.locator("[data-test^=step-]").all():
        step.focus()
        require_no_markup(visitor)
