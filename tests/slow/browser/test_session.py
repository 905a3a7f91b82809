"""A login works in every tab, and other servers learn nothing of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.dashboard.made_runs import make_run
from tests.slow.browser.conftest import Serve, Visit

pytestmark = pytest.mark.slow


class Eavesdropper:
    """Another server on this machine, which records the cookies that it gets."""

    def __init__(self) -> None:
        self.cookies: list[str] = []
        cookies = self.cookies

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cookies.append(self.headers.get("Cookie", ""))
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<link rel=icon href='data:,'>elsewhere")

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"http://127.0.0.1:{self.server.server_port}/"


@pytest.fixture
def other() -> Iterator[Eavesdropper]:
    """Return another server."""
    made = Eavesdropper()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def test_another_port_sees_no_secret(
    tmp_path: Path, serve: Serve, visit: Visit, other: Eavesdropper
) -> None:
    make_run(tmp_path / "one")
    served, visitor = serve(tmp_path), visit()
    visitor.open(served.link)
    visitor.find("run-row").first.wait_for()
    visitor.open(other.place)
    assert set(other.cookies) == {""}  # browsers send cookies to every port of a host
    assert visitor.page.evaluate("() => Object.keys(window.localStorage)") == []


def test_reloading_and_bookmarks_keep_the_login(tmp_path: Path, serve: Serve, visit: Visit) -> None:
    make_run(tmp_path / "one")
    served, visitor = serve(tmp_path), visit()
    visitor.open(served.link)
    visitor.find("run-row").first.wait_for()
    assert visitor.page.url == served.place  # the token is not left in the address
    visitor.page.reload()
    visitor.find("run-row").first.wait_for()
    visitor.wait_for_connection("connected")
    tab = visitor.context.new_page()
    tab.goto(f"{served.place}#/run/one/learned")
    tab.get_by_role("heading", name="When seeds are germinated").wait_for()
    assert tab.url == f"{served.place}#/run/one/learned"
