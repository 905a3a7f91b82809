"""What `esper.train` and `esper.resume` show of a run in a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from esper.config.run import RunConfig
from esper.progress import ProgressBar, ShowProgress
from esper.telemetry.records import Record, RoundRecord
from esper.telemetry.sinks import Sink
from esper.training.output import TrialProgress


class RunProgress:
    """Shows lessons if there are any, rounds with their return, then the comparison at the end."""

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
        self._show("training")

    def watch_trial(self, trial: TrialProgress) -> None:
        """Take the progress of a trial on held-out hosts."""
        if trial.purpose == "lessons":
            self._enter("lessons")
            source = f", from {trial.n_hosts:,} hosts grown by every schedule"
            self._bar.show("lessons before round 1", trial.share, source)
            return
        if trial.purpose != "final":
            self._show("evaluating", f", {trial.share:.0%} of {trial.n_hosts} held-out hosts")
            return
        self._enter("comparison")
        share = (trial.number - 1 + trial.share) / trial.n_trials
        which = f", {trial.arm} on {trial.n_hosts} held-out hosts"
        self._bar.show("comparing controllers", share, which)

    def _enter(self, phase: str) -> None:
        """Start the bar again at the beginning of a phase."""
        if phase != self._phase:
            self._bar.restart()
            self._phase = phase

    def close(self) -> None:
        """Do nothing; the context closes the bar."""

    def _show(self, work: str, details: str = "") -> None:
        rounds, n_steps = self._config.rounds, self._config.n_steps
        self._enter("rounds")
        number = min(rounds, self._step // n_steps + 1)
        share = min(1.0, self._step / (rounds * n_steps))
        self._bar.show(work, share, f", round {number} of {rounds}{self._details}{details}")


@contextmanager
def shown_run(wanted: ShowProgress, config: RunConfig) -> Generator[list[Sink]]:
    """Show a run inside the context; yields the watchers to pass to it.

    Raises:
        ConfigError: If ``wanted`` is neither True, False nor ``"auto"``.
    """
    with ProgressBar(wanted, title="training") as bar:
        yield [RunProgress(bar, config)] if bar.is_shown else []
