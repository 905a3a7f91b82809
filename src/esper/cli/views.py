"""Views of a training run: lines of text, JSON or nothing; ``live.py`` has the panel."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from esper.cli.output import json_text
from esper.cli.progress import (
    ProgressState,
    count,
    evaluation_text,
    op_text,
    parameter_text,
    relative_text,
    score_text,
    trial_text,
    trial_verb,
)
from esper.config.run import RunConfig
from esper.errors import escape_controls
from esper.formatting import UNKNOWN, clock_text, many, number
from esper.telemetry.records import (
    EvaluationRecord,
    GovernorRecord,
    NoticeRecord,
    Record,
    RoundRecord,
    UpdateRecord,
)
from esper.training.run import Run

if TYPE_CHECKING:
    from esper.training.output import TrialProgress

LONGEST_SILENCE = 10.0
"""Seconds without output after which a line of progress is printed."""

EVENTS: dict[type[Record], str] = {
    RoundRecord: "round",
    UpdateRecord: "update",
    EvaluationRecord: "evaluation",
    GovernorRecord: "governor",
    NoticeRecord: "notice",
}
"""Records printed as JSON, with the names of their events."""

_JSON_FIELDS = (
    "seconds_by_part",
    "approx_kl_by_head",
    "clip_fraction_by_head",
    "entropy_by_head",
    "ops",
)
Print = Callable[[str], None]


class LineView:
    """Prints one line per round, with its update, and one per evaluation."""

    def __init__(
        self, state: ProgressState, write_line: Print, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state = state
        self._print = write_line
        self._waiting: RoundRecord | None = None
        self._clock = clock
        self._last_line = clock()
        config = state.config
        action = f"resuming {state.name}, training" if state.name else "training"
        self._print_line(
            f"{action} on {config.task}: {many(config.rounds, 'round')}, "
            f"{many(config.envs, 'host')}, {many(config.n_steps, 'step')} each"
        )

    def write(self, record: Record) -> None:
        """Update the state with a record and print the line it completes."""
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
            label = "comparison" if record.purpose == "final" else "evaluation"
            self._print_line(f"  {label} after round {record.round}, {evaluation_text(record)}")
        elif isinstance(record, NoticeRecord):
            self._print_line(f"  round {record.round}: {record.message}")
        else:
            self._break_silence()

    def watch_step(self, step: int) -> None:
        """Update the state."""
        self._state.take_step(step)
        self._break_silence()

    def watch_trial(self, trial: TrialProgress) -> None:
        """Print the first evaluation, and the progress of long ones."""
        is_first = trial.share == 0.0 and self._state.round is None and trial.purpose != "final"
        self._state.take_trial(trial)
        if is_first or self._is_silent:
            self._print_line(f"  {trial_verb(trial)} {trial_text(trial)}")

    def watch_workers(self, message: str) -> None:
        """Print a sentence about worker processes."""
        self._print_line(f"  {message}")

    def tell(self, message: str) -> None:
        """Print a message on stderr."""
        print_to_stderr(message)

    @property
    def _is_silent(self) -> bool:
        return self._clock() - self._last_line >= LONGEST_SILENCE

    def _break_silence(self) -> None:
        """Print the step if nothing was printed for long."""
        if self._is_silent:
            step, n_steps = self._state.step, self._state.config.n_steps
            self._print_line(f"  step {step % n_steps} of {n_steps} of the round")

    def _print_line(self, line: str) -> None:
        self._last_line = self._clock()
        self._print(line)

    def close(self) -> None:
        """Print the round that still waits for its update, if any."""
        self._flush()

    def _flush(self) -> None:
        if self._waiting is not None:
            self._print_line(round_line(self._state, self._waiting))
            self._waiting = None


class QuietView:
    """Prints messages on stderr and nothing else."""

    def write(self, record: Record) -> None:
        """Ignore a record."""

    def watch_step(self, step: int) -> None:
        """Ignore a step."""

    def tell(self, message: str) -> None:
        """Print a message on stderr."""
        print_to_stderr(message)

    def close(self) -> None:
        """Do nothing."""


class JsonView:
    """Prints a JSON object for each round, update, evaluation, rollback and notice."""

    def __init__(self, write_line: Print) -> None:
        self._print = write_line

    def write(self, record: Record) -> None:
        """Print a record if it is one of these."""
        event = EVENTS.get(type(record))
        if event is not None:
            self._print(json_line(event, asdict(record)))

    def watch_step(self, step: int) -> None:
        """Ignore a step."""

    def tell(self, message: str) -> None:
        """Print a message on stderr."""
        print_to_stderr(message)

    def close(self) -> None:
        """Do nothing."""


def round_line(state: ProgressState, row: RoundRecord) -> str:
    """Return a round and its update in one line."""
    left = state.seconds_left
    parts = [
        f"round {row.round}/{state.config.rounds}",
        f"{count(row.steps_per_second)} env-steps/s",
        f"{UNKNOWN if left is None else clock_text(left)} left",
        f"return {number(row.ep_rew_mean)}{relative_text(state.config)}",
        f"score {score_text(row)}",
        parameter_text(row),
        op_text(row),
    ]
    update = state.update
    if update is not None and update.round == row.round:
        parts.append(f"KL {number(update.approx_kl, 4)}")
        parts.append(f"entropy {number(update.entropy, 2)}")
        parts += ["stopped early"] * update.stopped_early
        parts += [f"update rejected: {update.refusal}"] * update.was_refused
    if row.n_restored:
        parts.append(f"{many(row.n_restored, 'host')} rolled back")
    if row.workers_restarted:
        parts.append(f"{many(row.workers_restarted, 'worker')} restarted")
    return "  ".join(parts)


def json_line(event: str, facts: dict[str, Any]) -> str:
    """Return an event as one line of JSON; numbers that are not finite become null."""
    plain = {
        name: json.loads(value or "{}") if name in _JSON_FIELDS else value
        for name, value in facts.items()
    }
    return json_text({"event": event} | plain)


def print_to_stderr(message: str) -> None:
    """Print a message on stderr without buffering, so that a signal handler may call this."""
    with suppress(OSError):  # the terminal may be closed
        os.write(2, f"esper: {escape_controls(message)}\n".encode())


_SIMPLE_TERMINALS = ("dumb", "unknown")
"""Terminals that cannot redraw a panel."""


class View(Protocol):
    """A telemetry sink that shows records to a person or a program."""

    def write(self, record: Record) -> None:
        """Show a record."""
        ...

    def tell(self, message: str) -> None:
        """Show a message at once, such as the response to a signal."""
        ...

    def close(self) -> None:
        """Show what is still pending. Closing again does nothing."""
        ...


class LineWriter:
    """Prints lines until one fails; then it stays silent, so that the run continues."""

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
    config: RunConfig, *, quiet: bool, json: bool, resumed: Run | None = None
) -> Generator[View]:
    """Yield the view that suits the options and stdout, and close it at the end.

    Args:
        config: The run's settings.
        quiet: Show nothing.
        json: Print one JSON object per line.
        resumed: The run, if it is being resumed.
    """
    view = _select_view(config, resumed, quiet=quiet, json=json)
    try:
        yield view
    finally:
        view.close()


def _select_view(config: RunConfig, resumed: Run | None, *, quiet: bool, json: bool) -> View:
    if json:
        return JsonView(LineWriter())
    if quiet:
        return QuietView()
    state = ProgressState(config)
    if resumed is not None:
        state.load(resumed)
    if not sys.stdout.isatty() or os.environ.get("TERM") in _SIMPLE_TERMINALS:
        return LineView(state, LineWriter())
    from esper.cli.live import LiveView

    return LiveView(state)
