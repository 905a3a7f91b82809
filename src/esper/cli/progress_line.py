"""A progress bar on stderr, with the time left, for commands that take more than a moment."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from esper.cli.output import raw_stream
from esper.cli.progress import clock_text
from esper.errors import escape_controls

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress

    from esper.evidence.evaluation import EvaluationProgress
    from esper.growing.timeline import TimelineStep

LOADING = "loading PyTorch"


class Pace:
    """Estimates the time left by the pace of the work so far.

    What was cached takes no time, so only progress within one piece of work counts.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._piece, self._at, self.share = "", clock(), 0.0
        self._seconds = self._moved = 0.0

    def add(self, piece: str, share: float) -> None:
        """Note the share of all work that is done, and the piece that is being done."""
        now, share = self._clock(), max(share, self.share)
        if piece == self._piece:
            self._seconds += now - self._at
            self._moved += share - self.share
        self._piece, self._at, self.share = piece, now, share

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds left; None if unknown yet."""
        if self._moved <= 0.0:
            return None
        left = self._seconds / self._moved * (1.0 - self.share)
        return max(0.0, left - (self._clock() - self._at))


class ProgressLine:
    """Shows progress on stderr: a bar on a terminal, a line for each arm elsewhere.

    Use it as a context; the bar is gone when the context ends.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet, self._last, self._pace = quiet, "", Pace()
        self._bar: Progress | None = None
        if not quiet and sys.stderr.isatty():
            self._bar = _make_bar()

    def __enter__(self) -> ProgressLine:
        """Show that the command has begun."""
        if self._bar is not None:
            self._bar.add_task(LOADING, total=None, left=self._left)
            self._bar.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Erase the bar."""
        if self._bar is not None:
            with suppress(OSError):
                self._bar.stop()

    def __call__(self, progress: EvaluationProgress) -> None:
        """Show the progress of an evaluation."""
        work = f"{progress.number} of {progress.n_arms}: {progress.work}"
        self.show(work, progress.total)
        if self._bar is None and not self._quiet and work != self._last:
            self._last = work
            with suppress(OSError):
                print(work, file=sys.stderr, flush=True)

    def show_epoch(self, step: TimelineStep, n_epochs: int) -> None:
        """Show the progress of a host that is grown."""
        self.show("growing", step.epoch / n_epochs, f", epoch {step.epoch}, score {step.score:.3f}")

    def show(self, work: str, share: float, details: str = "") -> None:
        """Show a piece of work and the share of all work that is done."""
        self._pace.add(work, share)
        if self._bar is not None:
            text = escape_controls(work + details)
            self._bar.update(self._bar.task_ids[0], description=text, total=1, completed=share)

    def _left(self) -> str:
        left = self._pace.seconds_left
        return "" if left is None else f"{clock_text(left)} left"


def _make_bar() -> Progress:
    """Return a bar that fits the terminal: what is done, the share, time taken and time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Times(ProgressColumn):
        max_refresh = 0.5

        def render(self, task: Task) -> Text:
            share = "" if task.total is None else f"{task.percentage:3.0f}%  "
            left: Any = task.fields["left"]()
            return Text(f"{share}{clock_text(task.elapsed or 0.0)}{', ' if left else ''}{left}")

    return Progress(
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
        BarColumn(bar_width=16),
        Times(table_column=Column(no_wrap=True)),
        console=Console(file=raw_stream(sys.stderr)),
        transient=True,
        expand=True,
    )
