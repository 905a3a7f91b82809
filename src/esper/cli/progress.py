"""The progress of a training run, collected from its records, and its numbers as text."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from esper.config.run import RunConfig
from esper.errors import TelemetryError
from esper.formatting import UNKNOWN, clock_text, many, number
from esper.telemetry.records import (
    EvaluationRecord,
    GovernorRecord,
    NoticeRecord,
    Record,
    RoundRecord,
    RunRecord,
    UpdateRecord,
)
from esper.training.comparison import LEARNED, OTHERS
from esper.training.run import Run

if TYPE_CHECKING:
    from esper.training.output import TrialProgress


OPS = (
    ("op_germinate", "germinate"),
    ("op_advance", "advance"),
    ("op_set_alpha_target", "set alpha"),
    ("op_fossilize", "fossilize"),
    ("op_prune", "prune"),
    ("op_wait", "wait"),
    ("op_finish", "finish"),
)
"""Fields of a round's record with the names of their ops, in the order of a seed's life."""

_BARS = "▁▂▃▄▅▆▇█"


def count(value: float | None) -> str:
    """Return a count with three significant digits: ``987``, ``1.23k``, ``45.6M``."""
    if value is None:
        return UNKNOWN
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def score_text(row: RoundRecord) -> str:
    """Return the score of a round's hosts, and that of held-out hosts trained without growth.

    The two sets of hosts differ, so their difference would mean little.
    """
    if row.score_mean is None or row.static_score is None:
        return number(row.score_mean)
    return f"{row.score_mean:.3f} (held-out hosts without growth {row.static_score:.3f})"


def parameter_text(row: RoundRecord) -> str:
    """Return the mean parameters of hosts and seeds."""
    return f"{count(row.host_parameters_mean)} host + {count(row.seed_parameters_mean)} seeds"


def workers_text(row: RoundRecord) -> str:
    """Return how the worker processes are."""
    restarted = many(row.workers_restarted or 0, "restart")
    return f"{row.workers} alive, {restarted}, waited {clock_text(row.seconds_waited or 0.0)}"


def relative_text(config: RunConfig) -> str:
    """Return what the returns of training hosts are relative to, empty if to nothing.

    Returns on held-out hosts are never relative to the schedule, so the two cannot be compared.
    """
    return " relative to the fixed schedule" if config.rewards.reward == "scheduled" else ""


def op_text(row: RoundRecord) -> str:
    """Return the mean number of each op in an episode, leaving out rare ones."""
    done = [(word, getattr(row, name)) for name, word in OPS]
    shown = [f"{word} {times:.1f}" for word, times in done if times is not None and times >= 0.05]
    return ", ".join(shown) or UNKNOWN


def return_text(row: EvaluationRecord) -> str:
    """Return the mean return of an evaluation, with the fixed schedule's if it is known."""
    fixed = "" if row.fixed_reward is None else f", fixed schedule {row.fixed_reward:.3f}"
    return f"return {row.ep_rew_mean:.3f}{fixed}"


def evaluation_text(row: EvaluationRecord) -> str:
    """Return the results of an evaluation."""
    best = ", best so far" if row.is_best else ""
    return (
        f"{row.arm}: {return_text(row)}, score {row.score_mean:.3f}, "
        f"FLOPs {row.flops_mean:.2f} on {row.n_episodes} hosts{best}"
    )


ARMS = {
    "learned": "the learned controller",
    "wait": "hosts without growth",
    "random": "random growth",
    "fixed": "the fixed schedule",
    "heuristic": "the heuristic",
    "progressive": "progressive growth",
}
"""Display names of controllers."""


LESSONS = "lessons"
"""The purpose of lessons, which come before the first round."""


def trial_verb(trial: TrialProgress) -> str:
    """Return the phase that a trial belongs to."""
    return LESSONS if trial.purpose == LESSONS else "evaluating"


def trial_text(trial: TrialProgress) -> str:
    """Return which controller is being evaluated, or what it learns from, and the progress."""
    if trial.purpose == LESSONS:
        return f"from {trial.n_hosts:,} hosts grown by every schedule, {trial.share:.0%}"
    arm = ARMS.get(trial.arm, trial.arm)
    return f"{arm} on {trial.n_hosts} held-out hosts, {trial.share:.0%}"


def bars(values: Sequence[float], width: int) -> str:
    """Return the last values as a sparkline from their minimum to their maximum."""
    shown = list(values)[-width:]
    if len(shown) < 2:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    if span == 0:
        return _BARS[0] * len(shown)
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1) + 0.5)] for value in shown)


N_COMPARED = 1 + len(OTHERS)
"""Controllers in the comparison at the end."""

_MESSAGES = 3
_RETURNS = 200


class ProgressState:
    """The latest records of a run, with counts and times over all of them."""

    def __init__(self, config: RunConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.name = ""
        self.has_begun = False
        """Whether this process has received a record of the run."""
        self.round: RoundRecord | None = None
        self.update: UpdateRecord | None = None
        self.evaluation: EvaluationRecord | None = None
        self.finals: dict[str, EvaluationRecord] = {}
        """The comparison at the end, by controller."""
        self.trial: TrialProgress | None = None
        """The evaluation in progress, if any."""
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
        self._lessons_start: float | None = None
        self._trial_seconds: float | None = None
        self._takers: dict[type, Callable[..., None]] = {
            RunRecord: self._take_run,
            RoundRecord: self._take_round,
            UpdateRecord: self._take_update,
            EvaluationRecord: self._take_evaluation,
            GovernorRecord: self._take_governor,
            NoticeRecord: self._take_notice,
        }

    def take(self, record: Record) -> None:
        """Update the state with a record."""
        self.has_begun = True
        taker = self._takers.get(type(record))
        if taker is not None:
            taker(record)

    def load(self, run: Run) -> None:
        """Load the state of a run that is resumed."""
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

    def take_step(self, step: int) -> None:
        """Update the number of completed steps."""
        self.has_begun = True
        if step != self._step or self._first_step is None:
            self._move(step)

    def take_trial(self, trial: TrialProgress) -> None:
        """Update the progress of an evaluation."""
        self.has_begun = True
        self.trial = trial
        if trial.purpose == "final" and self._final_start is None:
            self._final_start = self._clock()
        if trial.purpose == LESSONS and self._lessons_start is None:
            self._lessons_start = self._clock()

    @property
    def lessons_share(self) -> float | None:
        """The completed share of the lessons before the first round; None outside them."""
        trial = self.trial
        if trial is None or trial.purpose != LESSONS or self._first_step is not None:
            return None
        return trial.share

    @property
    def lessons_left(self) -> float | None:
        """Estimated seconds until the lessons end; None if unknown yet."""
        share, start = self.lessons_share, self._lessons_start
        if not share or start is None:
            return None
        return (self._clock() - start) * (1.0 - share) / share

    @property
    def comparison_share(self) -> float | None:
        """The completed share of the comparison at the end; None before it begins."""
        trial = self.trial
        if self._final_start is None:
            return None
        if trial is None:
            return len(self.finals) / N_COMPARED
        return (trial.number - 1 + trial.share) / trial.n_trials

    @property
    def total_steps(self) -> int:
        """Steps of the run; a step of all environments counts once."""
        return self.config.rounds * self.config.n_steps

    @property
    def step(self) -> int:
        """Completed steps; a step of all environments counts once."""
        return self._step

    @property
    def share(self) -> float:
        """The completed share of the run's steps, 0 to 1."""
        return min(1.0, self._step / self.total_steps)

    @property
    def round_number(self) -> int:
        """The current round, counted from 1."""
        return min(self.config.rounds, self._step // self.config.n_steps + 1)

    @property
    def seconds(self) -> float:
        """Seconds since this process started."""
        return self._clock() - self._start

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds left, including the comparison at the end; None if unknown yet."""
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
        """Environment steps per second in the last round, or so far in the first one."""
        if self.round is not None:
            return self.round.steps_per_second
        passed = self._clock() - self._first_time
        done = self._step - (self._first_step or 0)
        return done * self.config.envs / passed if done > 0 and passed > 0 else None

    def _take_run(self, record: RunRecord) -> None:
        self.name = record.name

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
            self.messages.append(f"round {record.round}: update rejected, {record.refusal}")

    def _take_evaluation(self, record: EvaluationRecord) -> None:
        self.trial = None
        if record.purpose == "final":
            self.finals = self.finals | {record.arm: record}
            return
        if record.arm == "fixed":  # also tuned, so its time is no measure of an evaluation
            return
        hosts = N_COMPARED * self.config.evaluation.n_final_episodes
        self._trial_seconds = record.seconds / max(1, record.n_episodes) * hosts
        if record.arm == LEARNED:
            self.evaluation = record

    def _take_governor(self, record: GovernorRecord) -> None:
        self.n_restored += 1
        self.last_restored = record.reason

    def _take_notice(self, record: NoticeRecord) -> None:
        if record.kind != "comparison":  # its progress is shown anyway
            self.messages.append(f"round {record.round}: {record.message}")

    def _move(self, step: int) -> None:
        """Set the current step; the pace is measured from the first one seen."""
        if self._first_step is None:
            self._first_step, self._first_time = step, self._clock()
        self._step = step
