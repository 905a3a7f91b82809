"""What `esper.grow` shows while it trains: epochs, the score and what is growing."""

from __future__ import annotations

from esper.growing.decisions import Decision, OnStep
from esper.progress import ProgressBar, ShowProgress


class EpochProgress(ProgressBar):
    """A bar that moves by epochs, and within an epoch by batches; before them it prepares."""

    def __init__(self, wanted: ShowProgress, epochs: int, title: str) -> None:
        super().__init__(wanted, title=title)
        self._work, self._epochs = title, epochs
        self._details = ""
        self._epoch = self._n_batches = self._per_epoch = 0
        self.show("checking the model and finding slots", 0.0)

    def wrap(self, on_step: OnStep) -> OnStep:
        """Show that training starts; return a function that also moves the bar by an epoch."""
        self._show_epoch(0.0)

        def update(step: Decision) -> None:
            self._per_epoch, self._n_batches = max(self._per_epoch, self._n_batches), 0
            self._epoch = step.epoch
            growing = [f"{slot} {stage}" for slot, stage in step.stages.items()]
            self._details = f", score {step.score:.4g}" + "".join(f", {one}" for one in growing[:3])
            self._show_epoch(0.0)
            on_step(step)

        return update

    def on_batch(self) -> None:
        """Move the bar by the share of an epoch, once it is known how many batches one has."""
        self._n_batches += 1
        if self._per_epoch and self.is_shown:
            self._show_epoch(min(1.0, self._n_batches / self._per_epoch))

    def _show_epoch(self, share: float) -> None:
        epochs = f", {self._epoch} of {self._epochs} epochs"
        done = min(1.0, (self._epoch + share) / self._epochs)
        self.show(self._work, done, epochs + self._details)
