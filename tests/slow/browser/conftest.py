"""Debian's Chromium, and visitors that fail on any problem of the page."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.slow.browser.processes import SECONDS, Dashboard, dashboard, training
from tests.slow.browser.visitor import SIZES, Visitor

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NOWHERE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
"""No host name resolves, whatever the page requests."""

Visit = Callable[..., Visitor]
Serve = Callable[..., Dashboard]


@dataclass(frozen=True, kw_only=True)
class Live:
    """A run that trains as long as the tests need it, and its dashboard."""

    run_dir: Path
    served: Dashboard


def what_is_missing() -> str | None:
    """Return what must be installed to use a browser."""
    if importlib.util.find_spec("playwright") is None:
        return 'Playwright is missing; install it with `pip install -e ".[browser]"`'
    if shutil.which("chromium") is None:
        return "chromium is not on PATH; install it with `apt-get install chromium`"
    return None


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return a browser, for one module because other tests need the thread's event loop."""
    missing = what_is_missing()
    if missing is not None:
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=[NOWHERE]
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def live(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Return a training run called live."""
    run_dir = tmp_path_factory.mktemp("runs") / "live"
    with training(run_dir, rounds=100_000), dashboard(run_dir.parent) as served:
        yield Live(run_dir=run_dir, served=served)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts dashboards, which stop after the test."""
    with ExitStack() as stack:
        yield lambda runs_dir, **options: stack.enter_context(dashboard(runs_dir, **options))


@pytest.fixture
def visit(browser: Browser, serve: Serve) -> Iterator[Visit]:
    """Return a function that makes visitors, which must not have met any problem at the end."""
    visitors: list[Visitor] = []

    def start(size: str = "desk", *, scheme: str = "http", **options: Any) -> Visitor:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, has_touch=size == "phone", **options
        )
        context.set_default_timeout(1000 * SECONDS)
        visitor = Visitor(context, scheme)
        visitors.append(visitor)
        return visitor

    yield start
    for visitor in visitors:
        visitor.context.close()
    for visitor in visitors:
        visitor.require_clean()
