"""The progress of a run: its lessons, its rounds, then the comparison at the end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from esper.config.run import RunConfig
from esper.progress import ProgressBar, ShowProgress
from esper.telemetry.records import Record, RoundRecord
from esper.telemetry.sinks import Sink
from esper.training.output import TrialProgress


class RunProgress:
    """Moves a bar by a run's steps and trials, from the start again in each phase."""

    def __init__(self, bar: ProgressBar, config: RunConfig) -> None:
        self._bar, self._config = bar, config
        self._step, self._details, self._phase = 0, "", "rounds"

    def write(self, record: Record) -> None:
        """Take the return of a round that is done."""
        if isinstance(record, RoundRecord) and record.ep_rew_mean is not None:
            self._details = f", return {record.ep_rew_mean:.3f}"

    def watch_step(self, step: int) -> None:
        """Take the run's step that all environments have taken."""
        self._step = step
        self._show_round("training")

    def watch_trial(self, trial: TrialProgress) -> None:
        """Take the progress of lessons or of a trial on held-out hosts."""
        arm = trial.arm.replace("-", " ")
        hosts = f"{arm} on {trial.n_hosts} held-out hosts"
        if trial.purpose == "lessons":
            source = f", from {trial.n_hosts:,} hosts grown by every schedule"
            self._show("lessons", "lessons before round 1", trial.share, source)
        elif trial.purpose == "final":
            share = (trial.number - 1 + trial.share) / trial.n_trials
            self._show("comparison", "comparing controllers", share, f", {hosts}")
        else:
            self._show_round("evaluating", f", {hosts}, {trial.share:.0%}")

    def close(self) -> None:
        """Do nothing; the context closes the bar."""

    def _show_round(self, work: str, details: str = "") -> None:
        rounds, n_steps = self._config.rounds, self._config.n_steps
        number = min(rounds, self._step // n_steps + 1)
        share = min(1.0, self._step / (rounds * n_steps))
        about = f", round {number} of {rounds}{details or self._details}"
        self._show("rounds", work, share, about)

    def _show(self, phase: str, work: str, share: float, details: str) -> None:
        if phase != self._phase:
            self._bar.restart()
            self._phase = phase
        self._bar.show(work, share, details)


@contextmanager
def shown_run(wanted: ShowProgress, config: RunConfig) -> Generator[list[Sink]]:
    """Show a run inside the context; yields the watchers to pass to it.

    Raises:
        ConfigError: If ``wanted`` is neither True, False nor ``"auto"``.
    """
    with ProgressBar(wanted, title="training") as bar:
        yield [RunProgress(bar, config)] if bar.is_shown else []
