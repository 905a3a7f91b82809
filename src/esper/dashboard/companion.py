"""Serving the dashboard in a separate process while a run trains.

A separate process takes no time from the run's interpreter and does not share its signals. It reads
from a pipe and ends when the pipe is closed, on purpose or because the run was killed.
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
"""The module that the separate process runs."""

START_SECONDS = 20.0
"""How long the run waits for the link; an idle machine takes less than a second."""

END_SECONDS = 3.0
"""How long the run waits for the process to end."""

NICENESS = 5
"""Lower priority than training."""


@contextmanager
def companion_dashboard(runs_dir: Path, tell: Tell) -> Generator[None]:
    """Serve the dashboard of a folder of runs in another process within the context.

    If it cannot be started, a message says why and the run continues without it.

    Args:
        runs_dir: The folder of runs, which need not exist yet.
        tell: Shows the link, or the reason why there is none.
    """
    # In a new session, so that Ctrl-C does not reach it.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, str(runs_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        tell(_read_message(process))
        yield
    finally:
        _end(process)


def main(runs_dir: str) -> int:
    """Run the separate process."""
    from esper.dashboard.server import serving

    with suppress(OSError):
        os.nice(NICENESS)
    notes: list[str] = []
    try:
        with serving(runs_dir, tell=notes.append) as dashboard:
            _send({"link": dashboard.link, "notes": notes})
            threading.Thread(target=_stop_with_input, args=(dashboard,), daemon=True).start()
            dashboard.run()
    except EsperError as error:
        _send({"error": str(error)})
        return 1
    return 0


def _read_message(process: subprocess.Popen[bytes]) -> str:
    """Return the message for the user about the separate process."""
    assert process.stdout is not None, "stdout is a pipe"
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline() if ready else b""
    if not line:
        return "cannot start the dashboard; training continues without it"
    sent: dict[str, Any] = json.loads(line)
    if "error" in sent:
        return f"training continues without the dashboard: {sent['error']}"
    notes = "".join(f" ({note})" for note in sent["notes"])
    return f"dashboard at {sent['link']}{notes}"


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None, "stdin is a pipe"
    assert process.stdout is not None, "stdout is a pipe"
    process.stdin.close()
    process.stdout.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _stop_with_input(dashboard: Serving) -> None:
    """Wait until the run closes its end of the pipe, then stop the server."""
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    dashboard.server.stop()


def _send(message: dict[str, Any]) -> None:
    with suppress(OSError):  # the run may have ended already
        print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
