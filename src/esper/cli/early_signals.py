"""Signals before a run can be stopped by them: while PyTorch is loaded, which takes seconds."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from esper.training.signals import end_at_once, handling

if TYPE_CHECKING:
    from esper.training.stopping import StopRequest


class EarlySignals:
    """Remembers a signal until there is something that it can stop.

    An exception in the middle of importing a compiled package would leave it half made, and what
    is said of that is of no use to anybody. A second signal ends the process at once: there is
    nothing yet that could be lost.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._received: str | None = None
        self._stop: StopRequest | None = None

    def make_stop_request(self) -> StopRequest:
        """Return a request to stop, which later signals make.

        Raises:
            KeyboardInterrupt: If there was a signal already.
        """
        from esper.training.stopping import StopRequest

        self._stop = StopRequest(tell=self._tell)
        if self._received is not None:
            raise KeyboardInterrupt
        return self._stop

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Remember a signal, or ask for a stop."""
        name = signal.Signals(number).name
        if self._stop is not None:
            self._stop.ask(name)
        elif self._received is not None:
            end_at_once()
        else:
            self._tell(f"{name}: stopping as soon as PyTorch is loaded")
        self._received = name


@contextmanager
def early_signals(tell: Callable[[str], None]) -> Generator[EarlySignals]:
    """Hold signals back while the context lasts; in another thread than the main one, do nothing.

    Args:
        tell: Says to whoever sends a signal what it does.
    """
    early = EarlySignals(tell)
    with handling(early.handle):
        yield early
