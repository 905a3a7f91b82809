"""Training runs and dashboards as processes of the real command."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

LINK = re.compile(r"http://127\.0\.0\.1:(\d+)/login\?token=\S+")
SECONDS = 120
"""A generous timeout, because machines are shared."""

SMALL = [
    *("--preset", "spirals", "--envs", "6", "--n-steps", "8"),
    *("--evaluation.n-eval-episodes", "4", "--evaluation.n-final-episodes", "4"),
]
"""Options of a run whose rounds take a fraction of a second."""


@contextmanager
def esper(*words: str | Path, **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """Yield a command as a process, which is killed at the end if it is still running."""
    process = subprocess.Popen(
        [sys.executable, "-m", "esper", *map(str, words)],
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
        **streams,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def training(run_dir: Path, *words: str, rounds: int) -> Iterator[subprocess.Popen[str]]:
    """Yield a training run, which is interrupted at the end if it is still running."""
    given = ("train", *SMALL, "--rounds", str(rounds), "--run-dir", run_dir, "--quiet", *words)
    with esper(*given, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)


class Dashboard:
    """A running dashboard in its own process."""

    def __init__(self, process: subprocess.Popen[str], link: str, port: int) -> None:
        self.process = process
        self.link = link
        self.port = port
        self.place = link.partition("login")[0]

    def kill(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.wait(SECONDS)


@contextmanager
def dashboard(runs_dir: Path, *, port: int = 0) -> Iterator[Dashboard]:
    """Serve a folder of runs within the context."""
    words = ("dashboard", runs_dir, "--port", str(port))
    with esper(*words, stdout=subprocess.PIPE) as process:
        yield Dashboard(process, *read_link(process.stdout))


def read_link(stream: Any) -> tuple[str, int]:
    """Return the link that a process prints, and its port."""
    for line in stream:
        if found := LINK.search(line):
            return found[0], int(found[1])
    raise AssertionError("no link was printed")


def ask(run_dir: Path, query: str, *values: object) -> list[Any]:
    """Return rows of a run's telemetry, read with plain SQLite."""
    place = f"file:{run_dir / 'telemetry.sqlite'}?mode=ro"
    with closing(sqlite3.connect(place, uri=True, timeout=SECONDS)) as connection:
        connection.row_factory = sqlite3.Row
        return connection.execute(query, values).fetchall()


def rounds_done(run_dir: Path) -> int:
    """Return the number of recorded rounds."""
    return ask(run_dir, "SELECT COALESCE(MAX(round), 0) FROM rounds")[0][0]
