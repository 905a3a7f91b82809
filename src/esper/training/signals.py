"""Signals as requests to stop: the step is finished, everything is saved, then it ends.

A second signal while that happens changes nothing; a third ends the process at once, which loses
what is not saved and damages nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esper.training.stopping import StopRequest

INTERRUPTED = 130
"""The exit code of a process that was interrupted."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a process to end: a key, another process, a terminal that is closed."""


@contextmanager
def signals_ask(stop: StopRequest) -> Generator[None]:
    """Turn signals into a request to stop, while the context lasts, and say so.

    Signals belong to the main thread; in another nothing is changed.
    """
    received, tell = 0, stop.tell or _tell

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        name = signal.Signals(number).name
        if received == 1:
            stop.ask(name)
            tell(f"{name}: finishing the step, then saving")
        elif received == 2:
            tell(f"{name}: still saving; another one ends it at once, without what is not saved")
        else:
            end_at_once()

    with handling(handle):
        yield


@contextmanager
def handling(
    handle: Callable[[int, FrameType | None], None], *, ends_ignoring: bool = False
) -> Generator[None]:
    """Let a function handle these signals while the context lasts.

    A signal that is ignored stays so, which is how nohup works, and one whose handler is not
    Python's is left alone, because it could not be given back.

    Args:
        handle: Called with a signal's number.
        ends_ignoring: Whether signals are handled as before afterwards even where
            :func:`ignore_signals` was called meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    kept = {n: old for n, old in before.items() if old not in (signal.SIG_IGN, None)}
    for number in kept:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in kept.items():
            if ends_ignoring or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)


def ignore_signals() -> None:
    """Ignore these signals from now on: everything is saved, and the process is about to end."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def end_at_once() -> None:
    """End the process as it stands, with the terminal's cursor shown, which a live view hides."""
    with suppress(OSError):
        if os.isatty(2):
            os.write(2, b"\x1b[?25h\n")
    os._exit(INTERRUPTED)


def _tell(message: str) -> None:
    # Straight to the descriptor: a handler may run in the middle of a buffered write.
    with suppress(OSError):  # the terminal may be the one that was closed
        os.write(2, f"\nesper: {message}\n".encode())
