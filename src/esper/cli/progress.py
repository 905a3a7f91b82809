"""Numbers of a run as a person reads them."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from esper.cli.output import json_text
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
from esper.training.run import Run

if TYPE_CHECKING:
    from esper.training.output import TrialProgress

if TYPE_CHECKING:
    from esper.training.output import TrialProgress
    from esper.training.run import Run


OPS = (
    ("op_germinate", "germinate"),
    ("op_advance", "advance"),
    ("op_set_alpha_target", "set alpha"),
    ("op_fossilize", "fossilize"),
    ("op_prune", "prune"),
    ("op_wait", "wait"),
    ("op_finish", "finish"),
)
"""The ops in the order of a seed's life: the field of a round's record, and the word."""

UNKNOWN = "-"
_BARS = "▁▂▃▄▅▆▇█"


def duration(seconds: float) -> str:
    """Return a time as hours, minutes and seconds: ``1:05`` or ``2:00:07``."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with so many digits after the point, or a dash if there is none."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def count(value: float | None) -> str:
    """Return a size in three digits: ``987``, ``1.23k``, ``45.6M``."""
    if value is None:
        return UNKNOWN
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def many(number: int, thing: str) -> str:
    """Return a number of things: ``1 round``, ``2 rounds``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def score_words(row: RoundRecord) -> str:
    """Return the score of a round's hosts, and that of others which were left alone.

    They are not the same hosts, so that a difference of the two would mean little.
    """
    if row.score_mean is None or row.static_score is None:
        return number(row.score_mean)
    return f"{row.score_mean:.3f}; held-out hosts left alone {row.static_score:.3f}"


def parameter_words(row: RoundRecord) -> str:
    """Return how large hosts began, and what was grown."""
    return f"{count(row.host_parameters_mean)} host + {count(row.seed_parameters_mean)} seeds"


def op_words(row: RoundRecord) -> str:
    """Return what the controller does in an episode, leaving out what it hardly ever does."""
    done = [(word, getattr(row, name)) for name, word in OPS]
    shown = [f"{word} {times:.1f}" for word, times in done if times is not None and times >= 0.05]
    return ", ".join(shown) or UNKNOWN


def return_words(row: EvaluationRecord) -> str:
    """Return the return of an evaluation, beside the fixed schedule's if that is known."""
    fixed = "" if row.fixed_reward is None else f", fixed schedule {row.fixed_reward:.3f}"
    return f"return {row.ep_rew_mean:.3f}{fixed}"


def evaluation_words(row: EvaluationRecord) -> str:
    """Return how an evaluation went."""
    best = ", best so far" if row.is_best else ""
    return (
        f"{row.arm}: {return_words(row)}, score {row.score_mean:.3f}, "
        f"FLOPs {row.flops_mean:.2f} on {row.n_episodes} hosts{best}"
    )


ARMS = {
    "learned": "the learned controller",
    "wait": "hosts left alone",
    "random": "random legal growth",
    "fixed": "the fixed schedule",
    "heuristic": "the heuristic",
}
"""Controllers as a person calls them."""


def trial_words(trial: TrialProgress) -> str:
    """Return who is being tried, and how far that is."""
    arm = ARMS.get(trial.arm, trial.arm)
    return f"{arm} on {trial.n_hosts} held-out hosts, {trial.share:.0%}"


def bars(values: Sequence[float], width: int) -> str:
    """Return the last values as a row of bars, the lowest and the highest as such."""
    shown = list(values)[-width:]
    if len(shown) < 2:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    if span == 0:
        return _BARS[0] * len(shown)
    return "".join(_BARS[int((value - low) / span * (len(_BARS) - 1) + 0.5)] for value in shown)


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


LONGEST_SILENCE = 10.0
"""Seconds without a line after which one says how far it is."""

EVENTS: dict[type[Record], str] = {
    RoundRecord: "round",
    UpdateRecord: "update",
    EvaluationRecord: "evaluation",
    GovernorRecord: "governor",
    NoticeRecord: "notice",
}
"""The records that are printed as JSON, and what they are called there."""

_JSON_FIELDS = (
    "seconds_by_part",
    "approx_kl_by_head",
    "clip_fraction_by_head",
    "entropy_by_head",
    "ops",
)
Print = Callable[[str], None]


class LineView:
    """A sink that prints a line when a round is complete: its record and its update's."""

    def __init__(
        self, state: ViewState, write_line: Print, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state = state
        self._print = write_line
        self._waiting: RoundRecord | None = None
        self._clock = clock
        self._last_line = clock()
        config = state.config
        doing = f"going on with {state.name}, training" if state.name else "training"
        self._say(
            f"{doing} on {config.task}: {many(config.rounds, 'round')}, "
            f"{many(config.envs, 'host')}, {many(config.n_steps, 'step')} of each"
        )

    def write(self, record: Record) -> None:
        """Take a record, and print what it completes."""
        self._state.take(record)
        if isinstance(record, RoundRecord):
            self._flush()
            self._waiting = record
        if isinstance(record, (RoundRecord, UpdateRecord)):
            update = self._state.update
            if self._waiting and update and update.round == self._waiting.round:
                self._flush()
        elif isinstance(record, EvaluationRecord):
            self._flush()
            label = "compared" if record.purpose == "final" else "held out"
            said = evaluation_words(record)
            self._say(f"  {label} after round {record.round}, {said}")
        elif isinstance(record, NoticeRecord):
            self._say(f"  round {record.round}: {record.message}")
        elif self._is_silent:
            step = self._state.step % self._state.config.n_steps
            self._say(f"  step {step} of {self._state.config.n_steps} of the round")

    def watch_trial(self, trial: TrialProgress) -> None:
        """Print who is tried before anything is trained, and later how far a long trial is."""
        is_first = trial.share == 0.0 and self._state.round is None and trial.purpose != "final"
        self._state.take_trial(trial)
        if is_first or self._is_silent:
            self._say(f"  trying {trial_words(trial)}")

    def tell(self, message: str) -> None:
        """Print a message on stderr."""
        tell_on_stderr(message)

    @property
    def _is_silent(self) -> bool:
        return self._clock() - self._last_line >= LONGEST_SILENCE

    def _say(self, line: str) -> None:
        self._last_line = self._clock()
        self._print(line)

    def close(self) -> None:
        """Print the round that is waiting for its update, if there is one."""
        self._flush()

    def _flush(self) -> None:
        if self._waiting is not None:
            self._say(round_line(self._state, self._waiting))
            self._waiting = None


class QuietView:
    """A sink that prints nothing of what it gets."""

    def write(self, record: Record) -> None:
        """Leave a record alone."""

    def tell(self, message: str) -> None:
        """Print a message on stderr."""
        tell_on_stderr(message)

    def close(self) -> None:
        """Do nothing."""


class JsonView:
    """A sink that prints a JSON object for each round, update, evaluation, rescue and notice."""

    def __init__(self, write_line: Print) -> None:
        self._print = write_line

    def write(self, record: Record) -> None:
        """Print a record, if it is one of those."""
        event = EVENTS.get(type(record))
        if event is not None:
            self._print(json_line(event, asdict(record)))

    def tell(self, message: str) -> None:
        """Print a message on stderr."""
        tell_on_stderr(message)

    def close(self) -> None:
        """Do nothing."""


def round_line(state: ViewState, row: RoundRecord) -> str:
    """Return one round in one line."""
    left = state.seconds_left
    parts = [
        f"round {row.round}/{state.config.rounds}",
        f"{count(row.steps_per_second)} env-steps/s",
        f"{UNKNOWN if left is None else duration(left)} left",
        f"return {number(row.ep_rew_mean)}",
        f"score {score_words(row)}",
        parameter_words(row),
        op_words(row),
    ]
    update = state.update
    if update is not None and update.round == row.round:
        parts.append(f"KL {number(update.approx_kl, 4)}")
        parts.append(f"entropy {number(update.entropy, 2)}")
        parts += ["stopped early"] * update.stopped_early
        parts += [f"update refused: {update.refusal}"] * update.was_refused
    if row.n_restored:
        parts.append(f"the governor put back {row.n_restored}")
    return "  ".join(parts)


def json_line(event: str, facts: dict[str, Any]) -> str:
    """Return an event as JSON in one line; a number that is not finite is null."""
    plain = {
        name: json.loads(value or "{}") if name in _JSON_FIELDS else value
        for name, value in facts.items()
    }
    return json_text({"event": event} | plain)


def tell_on_stderr(message: str) -> None:
    """Print a message on stderr at once; a signal's handler may do so at any moment."""
    with suppress(OSError):  # the terminal may be the one that was closed
        os.write(2, f"esper: {message}\n".encode())


_SIMPLE_TERMINALS = ("dumb", "unknown")
"""Terminals that cannot draw a panel anew."""


class View(Protocol):
    """A sink of records that shows them to a person or a program."""

    def write(self, record: Record) -> None:
        """Take a record."""
        ...

    def tell(self, message: str) -> None:
        """Say at once what becomes of a signal."""
        ...

    def close(self) -> None:
        """Show what is left to be shown. Closing again does nothing."""
        ...


class LineWriter:
    """Prints lines at once; when none can be written, nothing more, and the run goes on."""

    def __init__(self) -> None:
        self._has_output = True

    def __call__(self, line: str) -> None:
        """Print a line."""
        if not self._has_output:
            return
        try:
            print(line, flush=True)
        except OSError:
            self._has_output = False


@contextmanager
def make_view(
    config: RunConfig, *, quiet: bool, json: bool, begun: Run | None = None
) -> Generator[View]:
    """Give the view that suits where the output goes, and close it in the end.

    Args:
        config: The run's settings.
        quiet: Nothing.
        json: One JSON object in each line.
        begun: The run, if there is one already.
    """
    view = _view(config, begun, quiet=quiet, json=json)
    try:
        yield view
    finally:
        view.close()


def _view(config: RunConfig, begun: Run | None, *, quiet: bool, json: bool) -> View:
    if json:
        return JsonView(LineWriter())
    if quiet:
        return QuietView()
    state = ViewState(config)
    if begun is not None:
        state.recall(begun)
    if not sys.stdout.isatty() or os.environ.get("TERM") in _SIMPLE_TERMINALS:
        return LineView(state, LineWriter())
    from esper.cli.live import LiveView

    return LiveView(state)
