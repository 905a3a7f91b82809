"""What is known of a run while it goes on, from the records that it writes."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from esper.config.run import RunConfig
from esper.errors import TelemetryError
from esper.telemetry.records import (
    EvaluationRecord,
    GovernorRecord,
    NoticeRecord,
    Record,
    RoundRecord,
    RunRecord,
    StepRecord,
    UpdateRecord,
)
from esper.training.comparison import LEARNED, OTHERS

if TYPE_CHECKING:
    from esper.training.output import TrialProgress
    from esper.training.run import Run

N_COMPARED = 1 + len(OTHERS)
"""Controllers of the comparison at the end."""

_MESSAGES = 3
_RETURNS = 200


class ViewState:
    """The newest of everything, and what is counted over the records so far."""

    def __init__(self, config: RunConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.name = ""
        self.has_begun = False
        """Whether anything was heard of the run in this process."""
        self.round: RoundRecord | None = None
        self.update: UpdateRecord | None = None
        self.evaluation: EvaluationRecord | None = None
        self.finals: dict[str, EvaluationRecord] = {}
        """The comparison at the end, by controller."""
        self.trial: TrialProgress | None = None
        """The trial of a controller that goes on, if one does."""
        self.returns: deque[float] = deque(maxlen=_RETURNS)
        self.messages: deque[str] = deque(maxlen=_MESSAGES)
        self.n_updates = 0
        self.n_early_stops = 0
        self.n_refused_updates = 0
        self.n_restored = 0
        self.last_restored = ""
        self._clock = clock
        self._start = clock()
        self._step = 0
        self._first_step: int | None = None
        self._first_time = self._start
        self._final_start: float | None = None
        self._trial_seconds: float | None = None
        self._takers: dict[type, Callable[..., None]] = {
            RunRecord: self._take_run,
            StepRecord: self._take_step,
            RoundRecord: self._take_round,
            UpdateRecord: self._take_update,
            EvaluationRecord: self._take_evaluation,
            GovernorRecord: self._take_governor,
            NoticeRecord: self._take_notice,
        }

    def take(self, record: Record) -> None:
        """Keep what a record tells."""
        self.has_begun = True
        taker = self._takers.get(type(record))
        if taker is not None:
            taker(record)

    def recall(self, run: Run) -> None:
        """Keep what is recorded of a run that is to be gone on with."""
        self.name = run.name
        with suppress(TelemetryError), run.telemetry() as telemetry:
            rounds = telemetry.rows(RoundRecord)
            self.returns.extend(
                row.ep_rew_mean
                for row in rounds
                if row.ep_rew_mean is not None and math.isfinite(row.ep_rew_mean)
            )
            self.round = rounds[-1] if rounds else None
            self._step = len(rounds) * self.config.n_steps
            self.update = telemetry.last(UpdateRecord)
            evaluations = telemetry.rows(EvaluationRecord, arm=LEARNED, purpose="tuning")
            self.evaluation = evaluations[-1] if evaluations else None

    def take_trial(self, trial: TrialProgress) -> None:
        """Keep how far the trial of a controller is."""
        self.has_begun = True
        self.trial = trial
        if trial.purpose == "final" and self._final_start is None:
            self._final_start = self._clock()

    @property
    def comparison_share(self) -> float | None:
        """The share of the comparison at the end that is done; None before it begins."""
        trial = self.trial
        if self._final_start is None:
            return None
        if trial is None:
            return len(self.finals) / N_COMPARED
        return (trial.number - 1 + trial.share) / trial.n_trials

    @property
    def total_steps(self) -> int:
        """Steps of the run, counting all environments' as one."""
        return self.config.rounds * self.config.n_steps

    @property
    def step(self) -> int:
        """Steps that are done, counting all environments' as one."""
        return self._step

    @property
    def share(self) -> float:
        """The share of the run's steps that is done, 0 to 1."""
        return min(1.0, self._step / self.total_steps)

    @property
    def round_number(self) -> int:
        """The round that goes on, counted from 1."""
        return min(self.config.rounds, self._step // self.config.n_steps + 1)

    @property
    def seconds(self) -> float:
        """How long this process has been at it."""
        return self._clock() - self._start

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at the pace so far; None before there is one.

        That is the rest of the steps, and the comparison at the end at the pace of evaluations.
        """
        share = self.comparison_share
        if share is not None:
            passed = self._clock() - (self._final_start or 0.0)
            return passed * (1.0 - share) / share if share > 0.0 else self._trial_seconds
        done = self._step - (self._first_step or 0)
        if done <= 0:
            return None
        pace = (self._clock() - self._first_time) / done
        return pace * max(0, self.total_steps - self._step) + (self._trial_seconds or 0.0)

    @property
    def steps_per_second(self) -> float | None:
        """Environments' steps per second: of the last round, or else of the steps so far."""
        if self.round is not None:
            return self.round.steps_per_second
        passed = self._clock() - self._first_time
        done = self._step - (self._first_step or 0)
        return done * self.config.envs / passed if done > 0 and passed > 0 else None

    def _take_run(self, record: RunRecord) -> None:
        self.name = record.name

    def _take_step(self, record: StepRecord) -> None:
        if record.step != self._step or self._first_step is None:
            self._move(record.step)

    def _take_round(self, record: RoundRecord) -> None:
        self.round = record
        self._move(record.round * self.config.n_steps)
        if record.ep_rew_mean is not None and math.isfinite(record.ep_rew_mean):
            self.returns.append(record.ep_rew_mean)

    def _take_update(self, record: UpdateRecord) -> None:
        self.update = record
        self.n_updates += 1
        self.n_early_stops += record.stopped_early
        self.n_refused_updates += record.was_refused
        if record.was_refused:
            self.messages.append(f"round {record.round}: update refused, {record.refusal}")

    def _take_evaluation(self, record: EvaluationRecord) -> None:
        self.trial = None
        if record.purpose == "final":
            self.finals = self.finals | {record.arm: record}
            return
        if record.arm == "fixed":  # it was trained twice: to find when it stops, and for good
            return
        hosts = N_COMPARED * self.config.evaluation.n_final_episodes
        self._trial_seconds = record.seconds / max(1, record.n_episodes) * hosts
        if record.arm == LEARNED:
            self.evaluation = record

    def _take_governor(self, record: GovernorRecord) -> None:
        self.n_restored += 1
        self.last_restored = record.reason

    def _take_notice(self, record: NoticeRecord) -> None:
        if record.kind != "comparison":  # its progress is shown
            self.messages.append(f"round {record.round}: {record.message}")

    def _move(self, step: int) -> None:
        """Note how far the run is; the first step that is seen is where the pace is taken from."""
        if self._first_step is None:
            self._first_step, self._first_time = step, self._clock()
        self._step = step
