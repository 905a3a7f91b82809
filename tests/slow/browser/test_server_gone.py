"""A page whose server is gone says so, keeps its content and recovers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.slow.browser.conftest import Live, Serve, Visit
from tests.slow.browser.processes import Dashboard, dashboard
from tests.slow.browser.visitor import NOT_SIGNED_IN, NOT_THERE, ROUND, Visitor

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.slow


def kill_in_mid_question(visitor: Visitor, served: Dashboard) -> None:
    """Kill a server between a request and its response."""
    held: list[Route] = []
    with visitor.page.expect_request("**/metrics*"):
        visitor.page.route("**/metrics*", lambda route: held.append(route))
    served.kill()
    visitor.page.unroute("**/metrics*")
    for route in held:
        route.continue_()


def test_a_page_shows_a_killed_server_and_recovers_with_the_next_link(
    live: Live, serve: Serve, visit: Visit
) -> None:
    visitor = visit()
    runs_dir = live.run_dir.parent
    with dashboard(runs_dir) as served:
        visitor.open(served.link)
        visitor.go("#/run/live")
        visitor.until(f"() => ({ROUND})() >= 1")
        visitor.page.evaluate("() => { window.mark = 'the same page'; }")
        assert visitor.find("connection").inner_text() == "connected"
        kill_in_mid_question(visitor, served)
        visitor.wait_for_connection("disconnected")
        # It is said once, whatever was being asked for, and what was shown is still there.
        banner = visitor.page.get_by_role("alert")
        banner.wait_for()
        last = visitor.page.evaluate(ROUND)
        assert last >= 1
        assert visitor.find("chart-return").is_visible()
        visitor.go("#/run/live/learned")
        visitor.page.get_by_text("is esper dashboard still running?").first.wait_for()
        visitor.forgive(*NOT_THERE)
    again = serve(runs_dir, port=served.port)
    assert again.link != served.link
    # The token of the server before is worth nothing to this one.
    visitor.page.locator(
        ".banner", has_text="open the link that esper dashboard printed"
    ).wait_for()
    assert visitor.find("connection").inner_text() == "disconnected"
    other = visitor.context.new_page()
    other.goto(again.link)
    other.locator("[data-test=run-row]").first.wait_for()
    visitor.page.bring_to_front()
    visitor.wait_for_connection("connected")
    visitor.until("() => document.querySelector('[role=alert]') === null")
    visitor.page.get_by_role("heading", name="When seeds are germinated").wait_for()
    visitor.page.get_by_role("link", name="Overview").click()
    visitor.until(f"(last) => ({ROUND})() > last", last)
    assert visitor.page.evaluate("window.mark") == "the same page"
    visitor.forgive(*NOT_THERE, NOT_SIGNED_IN)


def test_the_link_of_an_earlier_start_is_rejected(live: Live, serve: Serve, visit: Visit) -> None:
    with dashboard(live.run_dir.parent) as served:
        port, link = served.port, served.link
    serve(live.run_dir.parent, port=port)
    visitor = visit()
    visitor.open(link)
    visitor.page.get_by_text("Open the link that").wait_for()
    assert visitor.find("run-row").count() == 0
    visitor.forgive(NOT_SIGNED_IN)
