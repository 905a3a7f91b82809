"""Serving the dashboard in a separate process while a run trains, and afterwards.

A separate process takes no time from the run's interpreter and does not share its signals. It reads
from a pipe and ends after the pipe is closed, on purpose or because the run was killed.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.errors import EsperError
from esper.training.signals import handling

if TYPE_CHECKING:
    from esper.dashboard.server import Server, Tell

MODULE = "esper.dashboard.companion"
"""The module that the separate process runs."""

START_SECONDS = 20.0
"""How long the run waits for the link; an idle machine takes less than a second."""

LAST_SECONDS = 2.0
"""How long pages may still ask after the run has ended; they hear of it within a second."""

END_SECONDS = LAST_SECONDS + 3.0
"""How long the run waits for the process to end."""

WATCH_SECONDS = 0.5
"""Time between two checks whether the process has died."""

NICENESS = 5
"""Lower priority than training."""


class Companion:
    """The dashboard of a run, in its own process.

    Args:
        process: The process.
        link: The address of the run's page; None if the dashboard could not be started.
    """

    def __init__(self, process: subprocess.Popen[bytes], link: str | None) -> None:
        self.process = process
        self.link = link
        self._is_settled = False

    def wait(self, tell: Tell) -> None:
        """Serve the finished run until a signal; return at once if there is no dashboard.

        Args:
            tell: Shows the link, and how to stop.
        """
        if self.link is None or self.process.poll() is not None:
            return
        stop = threading.Event()
        with handling(lambda _number, _frame: stop.set()):
            tell(f"dashboard at {self.link} until you press Ctrl-C")
            while not stop.wait(WATCH_SECONDS) and self.process.poll() is None:
                pass
        self._is_settled = True

    def end(self) -> None:
        """End the process, after open pages have shown the run's last state."""
        process = self.process
        assert process.stdin is not None, "stdin is a pipe"
        assert process.stdout is not None, "stdout is a pipe"
        if self._is_settled:
            process.terminate()
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def companion_dashboard(runs_dir: Path, run: str, tell: Tell) -> Generator[Companion]:
    """Serve the dashboard of a folder of runs in another process within the context.

    If it cannot be started, a message says why and the run continues without it.

    Args:
        runs_dir: The folder of runs, which need not exist yet.
        run: The name of the run whose page the link opens; it need not exist yet either.
        tell: Shows the link, or the reason why it cannot be shown.
    """
    # In a new session, so that Ctrl-C does not reach it.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE, str(runs_dir), run],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    companion = Companion(process, None)
    try:
        companion.link, message = _read_start(process)
        tell(message)
        yield companion
    finally:
        companion.end()


def main(runs_dir: str, run: str) -> int:
    """Run the separate process."""
    from esper.dashboard.server import serving

    with suppress(OSError):
        os.nice(NICENESS)
    notes: list[str] = []
    try:
        with serving(runs_dir, tell=notes.append) as server:
            _send({"link": server.link_to(run), "notes": notes})
            threading.Thread(target=_stop_with_input, args=(server,), daemon=True).start()
            server.run()
    except EsperError as error:
        _send({"error": str(error)})
        return 1
    return 0


def _read_start(process: subprocess.Popen[bytes]) -> tuple[str | None, str]:
    """Return the link, if there is one, and the message for the user."""
    assert process.stdout is not None, "stdout is a pipe"
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline() if ready else b""
    if not line:
        return None, "cannot start the dashboard; training continues without it"
    sent: dict[str, Any] = json.loads(line)
    if "error" in sent:
        return None, f"training continues without the dashboard: {sent['error']}"
    notes = "".join(f" ({note})" for note in sent["notes"])
    return sent["link"], f"dashboard at {sent['link']}{notes}"


def _stop_with_input(server: Server) -> None:
    """Wait until the run closes its end of the pipe, then stop the server."""
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    if server.dashboard.watch.n_streams:
        time.sleep(LAST_SECONDS)
    server.stop()


def _send(message: dict[str, Any]) -> None:
    with suppress(OSError):  # the run may have ended already
        print(json.dumps(message), flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
