"""A visitor: a browser page and the problems it must not have."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Dialog, Locator

SIZES = {"desk": (1280, 800), "phone": (390, 844)}
"""Window sizes that every screen must fit."""

ROUND = "() => Number(document.querySelector('[data-test=round]')?.textContent)"
"""Returns the round that a page shows."""

NOT_THERE = ("net::ERR_CONNECTION_", "net::ERR_EMPTY_RESPONSE", "net::ERR_INCOMPLETE_CHUNKED_")
"""Console message of a browser when a server does not respond, which a page cannot prevent."""

NOT_SIGNED_IN = "the server responded with a status of 401"
"""Console message of a browser when its token is rejected."""

BOXES = """(selector) => [...document.querySelectorAll(selector)].map((element) => {
    const { x, y, width, height } = element.getBoundingClientRect();
    return [element.dataset.test ?? null, x, y + window.scrollY, width, height];
})"""
"""Returns the positions and sizes of elements."""

WATCH = """() => {
    window.moved = [];
    const isElement = ({ node }) => node?.nodeType === Node.ELEMENT_NODE;
    const keep = (list) => list.getEntries().forEach(({ sources }) => window.moved.push(
        ...sources.filter(isElement).map(({ node }) => `${node.className} ${node.textContent}`)));
    new PerformanceObserver(keep).observe({ type: "layout-shift" });
}"""
"""Records elements that shift from now on; text after a number may."""


def shown(value: float) -> str:
    """Return a number as the page formats it, with a typographic minus."""
    return f"{value:.3f}".replace("-", "\N{MINUS SIGN}")


class Visitor:
    """Uses one page, and records errors, dialogs and requests of its browser context."""

    def __init__(self, context: BrowserContext, scheme: str) -> None:
        self.context = context
        self.scheme = scheme
        self.problems: list[str] = []
        self.addresses: list[str] = []
        context.on("console", self._hear)
        context.on("weberror", lambda error: self.problems.append(f"thrown: {error.error}"))
        context.on("dialog", self._refuse)
        context.on("request", lambda request: self.addresses.append(request.url))
        self.page = context.new_page()

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def _refuse(self, dialog: Dialog) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def open(self, link: str) -> None:
        """Open a link."""
        self.page.goto(link)
        self.page.bring_to_front()

    def go(self, hash_: str) -> None:
        """Go to another screen of the dashboard."""
        self.page.evaluate("(to) => { window.location.hash = to; }", hash_)

    def find(self, name: str) -> Locator:
        """Return the element with a test name."""
        return self.page.locator(f'[data-test="{name}"]')

    def until(self, condition: str, argument: Any = None) -> Any:
        """Wait until a JavaScript expression or function is truthy, and return its value."""
        return self.page.wait_for_function(condition, arg=argument).json_value()

    def wait_for_connection(self, state: str) -> None:
        """Wait until the page shows a connection state."""
        self.until(
            "(state) => document.querySelector('[data-test=connection]').textContent === state",
            state,
        )

    def focused(self) -> str:
        """Return the focused element: its test name, or its class and text."""
        return self.page.evaluate(
            "() => { const at = document.activeElement;"
            " return at.dataset.test ?? `${at.className} ${at.textContent.trim().slice(0, 40)}`; }"
        )

    def tab_to(self, selector: str, *, maximum: int = 80) -> None:
        """Press Tab until an element has the focus."""
        is_there = f"() => document.activeElement.matches({json.dumps(selector)})"
        passed: list[str] = []
        for _ in range(maximum):
            self.page.keyboard.press("Tab")
            if self.page.evaluate(is_there):
                return
            passed.append(self.focused())
        raise AssertionError(f"Tab does not reach {selector}; it came by {passed}")

    def require_fit(self) -> None:
        """Fail if the page is wider than its window."""
        width, window = self.page.evaluate(
            "() => [document.scrollingElement.scrollWidth, window.innerWidth]"
        )
        assert width <= window, f"{self.page.url}: {width} pixels in a window of {window}"

    def forgive(self, *texts: str) -> None:
        """Discard expected problems by a part of their text."""
        self.problems = [one for one in self.problems if not any(text in one for text in texts)]

    def require_clean(self) -> None:
        """Fail on any problem, or a request to another machine."""
        assert not self.problems, self.problems
        assert self.addresses
        host = "127.0.0.1" if self.scheme == "http" else None
        for address in self.addresses:
            parts = urlsplit(address)
            assert (parts.scheme, parts.hostname or None) in ((self.scheme, host), ("data", None))
