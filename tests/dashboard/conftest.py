"""Runs and a dashboard shared by the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.made_runs import make_run
from tests.dashboard.served import Served, serve

HOSTILE = "<script>alert(1)<img src=x onerror=alert(2)>"
"""A run name with markup, as far as folder names allow."""


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two runs, which tests must not change."""
    place = tmp_path_factory.mktemp("runs")
    make_run(place / "a run")
    make_run(place / HOSTILE, seed=1, rounds=2)
    return place


@pytest.fixture(scope="module")  # it handles signals, which tests of other modules send
def served(runs_dir: Path) -> Iterator[Served]:
    """Return a dashboard that serves these runs."""
    with serve(runs_dir) as found:
        yield found
