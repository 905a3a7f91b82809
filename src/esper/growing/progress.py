"""A progress bar for `esper.grow`, in terminals and notebooks."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from esper.errors import ConfigError
from esper.growing.grower import Grower
from esper.growing.timeline import OnStep, TimelineStep


class _Bar:
    """Shows nothing."""

    def wrap(self, on_step: OnStep) -> OnStep:
        """Return a function that is called after each epoch."""
        return on_step

    def on_batch(self) -> None:
        """Note that a batch has been trained."""


class _RichBar(_Bar):
    """Shows epochs, the metric, what is growing and the time left."""

    def __init__(self, progress: Progress, grower: Grower) -> None:
        self._progress, self._grower = progress, grower
        self._task: TaskID = progress.add_task("", total=grower.epochs, what="first epoch")
        self._n_batches = self._per_epoch = 0

    def wrap(self, on_step: OnStep) -> OnStep:
        """Return a function that also updates the bar."""

        def update(step: TimelineStep) -> None:
            self._per_epoch, self._n_batches = max(self._per_epoch, self._n_batches), 0
            growing = [f"{slot} {stage}" for slot, stage in step.stages.items()]
            what = f"score {step.score:.4g}" + "".join(f", {each}" for each in growing[:3])
            self._progress.update(self._task, completed=step.epoch, what=what)
            on_step(step)

        return update

    def on_batch(self) -> None:
        """Move the bar by the share of an epoch, once it is known how many batches one has."""
        self._n_batches += 1
        if self._per_epoch:
            done = self._grower.epoch + min(1.0, self._n_batches / self._per_epoch)
            self._progress.update(self._task, completed=done)


@contextmanager
def shown_progress(wanted: bool | Literal["auto"], grower: Grower, label: str) -> Generator[_Bar]:
    """Show a bar inside the context.

    Args:
        wanted: Whether to show it; ``"auto"`` for terminals and notebooks.
        grower: The Grower whose epochs it shows.
        label: What is going on.

    Raises:
        ConfigError: If ``wanted`` is something else.
    """
    if wanted not in (True, False, "auto"):
        raise ConfigError(f"progress is {wanted!r}; it must be True, False or 'auto'.")
    console = Console(stderr=True)
    is_seen = console.is_terminal or console.is_jupyter
    if wanted is False or (wanted == "auto" and not is_seen):
        yield _Bar()
        return
    columns = (
        TextColumn(label),
        BarColumn(bar_width=24),
        TextColumn("epoch {task.completed:.0f}/{task.total:.0f}  {task.fields[what]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield _RichBar(progress, grower)
