"""The dashboard answers under idle, slow and many connections, with hostile runs in its folder."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from tests.campaign import N_CONNECTIONS
from tests.dashboard.made_runs import make_run
from tests.dashboard.served import Served, serve
from tests.telemetry.hostile import BY_SCHEMA, nest_pages

SECONDS = 10.0
"""Longest time for an answer about the good run, on a busy machine."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    place = tmp_path_factory.mktemp("served")
    make_run(place / "a run")
    for harm in (*BY_SCHEMA, nest_pages):
        harm(make_run(place / harm.__name__).telemetry_file)
    for name in ("telemetry.sqlite-journal", "summary.json", "notes.md", "config.toml"):
        strange = make_run(place / f"pipe as {name}").path / name
        strange.unlink(missing_ok=True)
        os.mkfifo(strange)
    with serve(place) as found:
        yield found


def require_answers(served: Served) -> None:
    """Ask for everything about the good run, which must not wait for the hostile ones."""
    for path in ("/api/runs", "/api/runs/a%20run", "/api/runs/a%20run/metrics"):
        start = time.monotonic()
        assert served.ask(path).status == 200
        assert time.monotonic() - start < SECONDS, path


def connect(served: Served) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.port), timeout=SECONDS)


def test_idle_and_slow_connections_hold_up_no_answer(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(N_CONNECTIONS["idle"]):
            stack.enter_context(connect(served))
        slow = [stack.enter_context(connect(served)) for _ in range(N_CONNECTIONS["slow"])]
        for letter in b"GET /api":
            for one in slow:
                try:
                    one.send(bytes([letter]))
                except OSError:  # closed, because there are too many
                    continue
            require_answers(served)


def test_many_requests_at_once_are_answered(served: Served) -> None:
    hostile = [harm.__name__ for harm in (*BY_SCHEMA, nest_pages)]
    paths = [f"/api/runs/{name}{end}" for name in hostile for end in ("", "/metrics", "/health")]
    paths += ["/api/runs", "/api/runs/a%20run"]
    with ThreadPoolExecutor(20) as threads:
        asked = [paths[k % len(paths)] for k in range(N_CONNECTIONS["at once"])]
        answers = list(threads.map(served.ask, asked))
    assert {answer.status for answer in answers} <= {200, 404}
    require_answers(served)
