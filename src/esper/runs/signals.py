"""SIGINT and SIGTERM as requests to stop: the step is finished, everything is saved, then it ends.

A second signal while that happens changes nothing; a third ends the process at once, which loses
what is not saved and damages nothing.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from esper.simic.training import StopRequest

INTERRUPTED = 130
"""The exit code of a process that was interrupted."""


@contextmanager
def signals_ask(stop: StopRequest) -> Generator[None]:
    """Turn signals into a request to stop, while the context lasts, and say so on stderr.

    Signals belong to the main thread; in another nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received = 0

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        name = signal.Signals(number).name
        if received == 1:
            stop.ask(name)
            _tell(f"{name}: finishing the step, then saving")
        elif received == 2:
            _tell(f"{name}: still saving; another one ends it at once, without what is not saved")
        else:
            os._exit(INTERRUPTED)

    kept = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _tell(message: str) -> None:
    # Straight to the descriptor: a handler may run in the middle of a buffered write.
    os.write(2, f"\nesper: {message}\n".encode())
