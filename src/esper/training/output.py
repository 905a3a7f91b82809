"""A run's records and progress, on their way to its telemetry and to other watchers."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from esper.config.run import RunConfig
from esper.errors import EsperError
from esper.progress import ProgressBar, ShowProgress
from esper.storage.files import write_atomic
from esper.telemetry import TelemetryWriter
from esper.telemetry.records import Record, RecordColumns, RoundRecord, StepRecord
from esper.telemetry.sinks import Sink


@dataclass(frozen=True, kw_only=True)
class TrialProgress:
    """The progress of a controller's trial; shown but not recorded."""

    arm: str
    """The controller's name in evaluation records."""
    purpose: str
    """The purpose of the trial, as in evaluation records, or "lessons"."""
    n_hosts: int
    """Number of hosts in the trial."""
    share: float
    """Share of the trial that is done, 0 to 1."""
    number: int = 1
    """Number of this trial among consecutive ones, from 1."""
    n_trials: int = 1
    """Number of consecutive trials."""


class RecordOutput:
    """Passes records on; a watcher that fails is reported once and then skipped.

    A watcher may also have methods ``watch_step(step)``, called once for a step of all environments
    instead of with a record of each; ``watch_trial(trial)``, for the :class:`TrialProgress` of
    trials, which take much longer than steps; and ``watch_note(message)``, for sentences about
    what computes the run.
    """

    def __init__(self, writer: TelemetryWriter, watchers: Sequence[Sink] = ()) -> None:
        self.writer = writer
        self._watchers = list(watchers)

    def write(self, records: Sequence[Record | RecordColumns]) -> None:
        """Pass records to the telemetry, then to all watchers."""
        self.writer.write_many(records)

        def pass_on(watcher: Sink) -> None:
            watch_step = getattr(watcher, "watch_step", None)
            for entry in records:
                if not isinstance(entry, RecordColumns):
                    watcher.write(entry)
                elif entry.kind is StepRecord and watch_step is not None:
                    watch_step(entry.columns["step"][0])
                else:
                    for record in entry.records():
                        watcher.write(record)

        self._for_each(pass_on)

    def on_share(self, **facts: Any) -> Callable[[float], None]:
        """Return what shows the share of a trial that is done, given :class:`TrialProgress`."""
        return lambda share: self._show("watch_trial", TrialProgress(share=share, **facts))

    def show_note(self, message: str) -> None:
        """Pass a sentence about what computes the run to the watchers that show it."""
        self._show("watch_note", message)

    def _show(self, method: str, value: object) -> None:
        def pass_on(watcher: Sink) -> None:
            if (call := getattr(watcher, method, None)) is not None:
                call(value)

        self._for_each(pass_on)

    def _for_each(self, pass_on: Callable[[Sink], None]) -> None:
        for watcher in tuple(self._watchers):
            try:
                pass_on(watcher)
            except EsperError:
                raise
            except Exception as error:  # a failing watcher must not end the run
                self._watchers.remove(watcher)
                name = type(watcher).__name__
                warnings.warn(
                    f"{name} failed and gets no more records: {error!r}", RuntimeWarning, 3
                )


WRITE_SECONDS = 1.0
"""Shortest time between two writes of the same trial's progress."""


class ActivityFile:
    """Keeps the progress of lessons and trials in a file, which exists only during them.

    A disk that cannot be written must not end a run, so errors are ignored.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._written: tuple[str, str, float] | None = None
        self._remove()  # a killed process may have left it

    def write(self, record: Record) -> None:
        """Remove the file: a record ends the trial before it."""
        self._clear()

    def watch_step(self, step: int) -> None:
        """Remove the file: the trial is over when hosts take steps."""
        self._clear()

    def watch_trial(self, trial: TrialProgress) -> None:
        """Write the progress of a trial, unless that was done less than a second ago."""
        now = self._clock()
        if self._written is not None:
            purpose, arm, moment = self._written
            if (purpose, arm) == (trial.purpose, trial.arm) and now - moment < WRITE_SECONDS:
                return
        self._written = (trial.purpose, trial.arm, now)
        with suppress(OSError):
            write_atomic(self._path, json.dumps(asdict(trial)))

    def close(self) -> None:
        """Remove the file."""
        self._clear()

    def _clear(self) -> None:
        if self._written is not None:
            self._written = None
            self._remove()

    def _remove(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


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
