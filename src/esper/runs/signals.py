"""SIGINT and SIGTERM as requests to stop: the step is finished, everything is saved, then it ends.

A second signal while that happens changes nothing; a third ends the process at once, which loses
what is not saved and damages nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from esper.simic.training import StopRequest

INTERRUPTED = 130
"""The exit code of a process that was interrupted."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
def handling(handle: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Let a function handle SIGINT and SIGTERM while the context lasts."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def end_at_once() -> None:
    """End the process as it stands, with the terminal's cursor shown, which a live view hides."""
    if os.isatty(2):
        os.write(2, b"\x1b[?25h\n")
    os._exit(INTERRUPTED)


def _tell(message: str) -> None:
    # Straight to the descriptor: a handler may run in the middle of a buffered write.
    os.write(2, f"\nesper: {message}\n".encode())
