"""Views of a run for pipes and programs: a line for each round, one line in all, or JSON."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from esper.cli import words
from esper.cli.output import json_text
from esper.cli.view_state import ViewState
from esper.telemetry.records import (
    EvaluationRecord,
    GovernorRecord,
    NoticeRecord,
    Record,
    RoundRecord,
    UpdateRecord,
)

if TYPE_CHECKING:
    from esper.training.output import TrialProgress

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
            f"{doing} on {config.task}: {words.many(config.rounds, 'round')}, "
            f"{words.many(config.envs, 'host')}, {words.many(config.n_steps, 'step')} of each"
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
            said = words.evaluation_words(record)
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
            self._say(f"  trying {words.trial_words(trial)}")

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
        f"{words.count(row.steps_per_second)} env-steps/s",
        f"{words.UNKNOWN if left is None else words.duration(left)} left",
        f"return {words.number(row.ep_rew_mean)}",
        f"score {words.score_words(row)}",
        words.parameter_words(row),
        words.op_words(row),
    ]
    update = state.update
    if update is not None and update.round == row.round:
        parts.append(f"KL {words.number(update.approx_kl, 4)}")
        parts.append(f"entropy {words.number(update.entropy, 2)}")
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
