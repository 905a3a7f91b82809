"""What `esper.grow` shows while it trains: epochs, the score and what is growing."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from esper.growing.timeline import OnStep, TimelineStep
from esper.progress import ProgressBar, ShowProgress


class EpochProgress:
    """Moves a bar by epochs, and within an epoch by batches; before them it prepares."""

    def __init__(self, bar: ProgressBar, title: str, epochs: int) -> None:
        self._bar, self._title, self._epochs = bar, title, epochs
        self._details = ""
        self._epoch = self._n_batches = self._per_epoch = 0
        self._bar.show("checking the model and finding slots", 0.0)

    def wrap(self, on_step: OnStep) -> OnStep:
        """Show that training starts; return a function that also moves the bar by an epoch."""
        self._show(0.0)

        def update(step: TimelineStep) -> None:
            self._per_epoch, self._n_batches = max(self._per_epoch, self._n_batches), 0
            self._epoch = step.epoch
            growing = [f"{slot} {stage}" for slot, stage in step.stages.items()]
            self._details = f", score {step.score:.4g}" + "".join(f", {one}" for one in growing[:3])
            self._show(0.0)
            on_step(step)

        return update

    def on_batch(self) -> None:
        """Move the bar by the share of an epoch, once it is known how many batches one has."""
        self._n_batches += 1
        if self._per_epoch:
            self._show(min(1.0, self._n_batches / self._per_epoch))

    def _show(self, share: float) -> None:
        epochs = f", {self._epoch} of {self._epochs} epochs"
        done = min(1.0, (self._epoch + share) / self._epochs)
        self._bar.show(self._title, done, epochs + self._details)


@contextmanager
def shown_progress(wanted: ShowProgress, epochs: int, title: str) -> Generator[EpochProgress]:
    """Show a bar inside the context.

    Args:
        wanted: Whether to show it; ``"auto"`` for terminals and notebooks.
        epochs: Epochs of the budget.
        title: What is going on.

    Raises:
        ConfigError: If ``wanted`` is something else.
    """
    with ProgressBar(wanted, title=title) as bar:
        yield EpochProgress(bar, title, epochs)
