"""The dashboard beside a training run: a process of its own, which ends when the run's does.

A process of its own takes no time from the run's interpreter, and the run's signals stay the run's.
It reads a pipe that nobody writes to; when its other end is closed, on purpose or because the run
was killed, it ends.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.errors import EsperError

if TYPE_CHECKING:
    from esper.dashboard.server import Serving, Tell

MODULE = "esper.dashboard.companion"
"""What the other process runs."""

START_SECONDS = 20.0
"""How long the run waits for the link, which takes less than a second on an idle machine."""

END_SECONDS = 3.0
"""How long the run waits for the dashboard to end."""

NICENESS = 5
"""Training comes first where both want the same core."""


@contextmanager
def dashboard_beside(runs_dir: Path, tell: Tell) -> Generator[None]:
    """Serve the dashboard of a folder of runs in another process while the context lasts.

    What keeps it from starting is told, and the context goes on: a run does not fail for it.

    Args:
        runs_dir: The folder of runs, which need not be there yet.
        tell: Says the link to the user, or why there is none.
    """
    # A session of its own: the keys that interrupt the run do not reach it.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, str(runs_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        tell(_first_words(process))
        yield
    finally:
        _end(process)


def main(runs_dir: str) -> int:
    """Be the other process."""
    from esper.dashboard.server import serving

    with suppress(OSError):
        os.nice(NICENESS)
    notes: list[str] = []
    try:
        with serving(runs_dir, tell=notes.append) as made:
            _say({"link": made.link, "notes": notes})
            threading.Thread(target=_end_with_input, args=(made,), daemon=True).start()
            made.run()
    except EsperError as error:
        _say({"error": str(error)})
        return 1
    return 0


def _first_words(process: subprocess.Popen[bytes]) -> str:
    """Return what the user is told of the other process."""
    assert process.stdout is not None, "it has a pipe"
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline() if ready else b""
    if not line:
        return "the dashboard could not be started; training goes on without it"
    said: dict[str, Any] = json.loads(line)
    if "error" in said:
        return f"training goes on without the dashboard: {said['error']}"
    notes = "".join(f" ({note})" for note in said["notes"])
    return f"dashboard at {said['link']}{notes}"


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None, "it has a pipe"
    assert process.stdout is not None, "it has a pipe"
    process.stdin.close()
    process.stdout.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_with_input(made: Serving) -> None:
    """Wait until the run has closed its end of the pipe, then end the server."""
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    made.server.end()


def _say(words: dict[str, Any]) -> None:
    with suppress(OSError):  # the run may be gone already
        print(json.dumps(words), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
