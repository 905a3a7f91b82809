"""Requests to stop a run, honored before the next step, and the signals that make them.

A second signal only repeats the message. A third exits at once, which loses what is not saved and
damages nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 130
"""Exit code of an interrupted process."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request an exit: Ctrl-C, another process, a closed terminal."""


class StopRequest:
    """A request to stop that anything may make, including a signal handler."""

    def __init__(self, *, tell: Callable[[str], None] | None = None) -> None:
        """Create a request that has not been made yet.

        Args:
            tell: Shows the response to a signal; by default it is a line on stderr.
        """
        self.reason: str | None = None
        self.tell = tell

    def ask(self, reason: str) -> None:
        """Ask for a stop; the first reason is kept."""
        self.reason = self.reason or reason

    def check(self) -> None:
        """Raise :class:`Stopped` if a stop was asked for."""
        if self.reason is not None:
            raise Stopped(self.reason)


class Stopped(Exception):  # noqa: N818 - control flow, not an error
    """Raised where a requested stop takes effect."""


@contextmanager
def signals_ask(stop: StopRequest) -> Generator[None]:
    """Turn signals into a request to stop within the context, and print a message.

    Only the main thread can handle signals; in any other this does nothing.
    """
    received, tell = 0, stop.tell or _print_message

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        name = signal.Signals(number).name
        if received == 1:
            stop.ask(name)
            tell(f"{name}: finishing the step, then saving")
        elif received == 2:
            tell(f"{name}: still saving; a third signal exits at once and loses unsaved steps")
        else:
            end_at_once()

    with handling(handle):
        yield


@contextmanager
def handling(
    handle: Callable[[int, FrameType | None], None], *, ends_ignoring: bool = False
) -> Generator[None]:
    """Let a function handle these signals within the context.

    Ignored signals stay ignored, as nohup needs, and so do handlers that were not installed from
    Python, because they could not be restored.

    Args:
        handle: Called with the signal's number and the current frame.
        ends_ignoring: Whether to restore the handlers even if :func:`ignore_signals` was called
            within the context.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    replaced = {n: old for n, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in replaced:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            if ends_ignoring or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore these signals from now on, because the process has saved and is about to exit."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def end_at_once() -> None:
    """Exit the process immediately, showing the cursor that a live view may have hidden."""
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, b"\x1b[?25h\n")
    os._exit(INTERRUPTED)


def _print_message(message: str) -> None:
    # Unbuffered, because a handler may run in the middle of a buffered write.
    with suppress(OSError):  # the terminal may have been closed
        os.write(2, f"\nesper: {message}\n".encode())
