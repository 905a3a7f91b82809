"""Progress on stderr for commands that take more than a moment."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from esper.cli.output import raw_stream
from esper.progress import ProgressBar

if TYPE_CHECKING:
    from types import TracebackType

    from esper.evidence.evaluation import EvaluationProgress
    from esper.growing.timeline import TimelineStep

LOADING = "loading PyTorch"


class ProgressLine:
    """Shows progress on stderr: a bar on a terminal, a line for each arm elsewhere.

    Use it as a context; the bar is gone when the context ends.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        is_terminal = sys.stderr.isatty()
        self._prints, self._last = not quiet and not is_terminal, ""
        self._bar = ProgressBar(
            not quiet and is_terminal, title=LOADING, delay=0.0, stream=raw_stream(sys.stderr)
        )

    def __enter__(self) -> ProgressLine:
        """Show that the command has begun."""
        self._bar.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Erase the bar."""
        self._bar.__exit__(kind, error, traceback)

    def __call__(self, progress: EvaluationProgress) -> None:
        """Show the progress of an evaluation."""
        work = str(progress)
        self.show(work, progress.total)
        if self._prints and work != self._last:
            self._last = work
            with suppress(OSError):
                print(work, file=sys.stderr, flush=True)

    def show_epoch(self, step: TimelineStep, n_epochs: int) -> None:
        """Show the progress of a host that is grown."""
        self.show("growing", step.epoch / n_epochs, f", epoch {step.epoch}, score {step.score:.3f}")

    def show(self, work: str, share: float, details: str = "") -> None:
        """Show a piece of work and the share of all work that is done."""
        self._bar.show(work, share, details)
