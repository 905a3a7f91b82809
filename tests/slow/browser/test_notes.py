"""Notes are edited on the page, their tags find and group runs, and charts can be searched."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.dashboard.made_runs import make_run
from tests.slow.browser.conftest import Serve, Visit

pytestmark = pytest.mark.slow


def test_notes_are_saved_and_their_tags_group_runs(
    serve: Serve, visit: Visit, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        make_run(tmp_path / name)
    (tmp_path / "two/notes.md").write_text("# Heading\nthe wide one #wide")
    visitor = visit()
    visitor.open(serve(tmp_path).link)
    visitor.go("#/run/one/settings")
    panel = visitor.find("notes")
    panel.get_by_role("button", name="Edit").click()
    panel.get_by_role("textbox").fill("narrow <b> #wide #slow")
    panel.get_by_role("button", name="Save").click()
    panel.get_by_text("narrow <b> #wide #slow").wait_for()
    assert (tmp_path / "one/notes.md").read_text() == "narrow <b> #wide #slow"

    visitor.go("#/")
    visitor.page.get_by_label("group by").select_option("tag")
    groups = visitor.page.locator(".runs-group th")
    visitor.until("() => document.querySelectorAll('.runs-group').length === 2")
    assert [text.split()[:2] for text in groups.all_inner_texts()] == [
        ["#slow", "1"],
        ["#wide", "2"],
    ]
    visitor.page.get_by_role("button", name="#slow").first.click()
    visitor.until("() => document.querySelectorAll('[data-test=run-row]').length === 2")
    rows = visitor.page.locator("[data-test=run-row]").all_inner_texts()
    assert all("one" in row for row in rows)  # in both of its groups


def test_charts_can_be_searched(serve: Serve, visit: Visit, tmp_path: Path) -> None:
    make_run(tmp_path / "one")
    visitor = visit()
    visitor.open(serve(tmp_path).link)
    visitor.go("#/run/one")
    visitor.find("chart-entropy").wait_for()
    visitor.page.get_by_label("charts").fill("Entropy")
    visitor.until("() => document.querySelectorAll('.chart').length === 1")
    assert visitor.find("chart-entropy").is_visible()
