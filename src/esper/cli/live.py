"""The live panel that shows a training run on a terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from esper.cli.output import raw_stream
from esper.cli.progress import (
    LESSONS,
    ProgressState,
    bars,
    count,
    op_text,
    parameter_text,
    relative_text,
    return_text,
    score_text,
    trial_text,
    trial_verb,
    workers_text,
)
from esper.errors import escape_controls
from esper.formatting import UNKNOWN, clock_text, many, number
from esper.telemetry.records import EvaluationRecord, Record

if TYPE_CHECKING:
    from esper.training.output import TrialProgress


def _text(content: str, style: str = "") -> Text:
    """Return a text without markup and control characters."""
    return Text(escape_controls(content), style=style)


_WIDE = 110
_LABEL_WIDTH = 11
_MOST_BARS = 40

Row = tuple[str, Text]


class RunPanel:
    """Renders the current state of a run."""

    def __init__(self, state: ProgressState) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the panel at the available width."""
        state, width = self._state, options.max_width
        learning, controlling = _learning_rows(state, options), _controller_rows(state)
        parts: list[RenderableType] = [_progress(state), Text()]
        if width >= _WIDE:
            sides = Table.grid(padding=(0, 3), expand=True)
            sides.add_column(ratio=1)
            sides.add_column(ratio=1)
            sides.add_row(_rows(learning), _rows(controlling))
            parts.append(sides)
        else:
            parts.append(_rows([*learning, *controlling]))
        messages = list(state.messages)  # a copy, because another thread may append
        if messages:
            parts += [Text(), *(_text(message, style="yellow") for message in messages)]
        name = f" {state.name}" if state.name else ""
        title = _text(f"esper{name}, task {state.config.task}", style="bold")
        yield Panel(
            Group(*parts),
            title=title,
            title_align="left",
            subtitle=clock_text(state.seconds),
            subtitle_align="right",
            border_style="cyan",
        )


def _progress(state: ProgressState) -> Table:
    """Return the first line: round or phase, progress bar, speed and time left."""
    left, lessons, comparison = state.seconds_left, state.lessons_share, state.comparison_share
    time_left = "starting" if left is None else f"{clock_text(left)} left"
    phase, share = f"round {state.round_number}/{state.config.rounds}", state.share
    if comparison is not None:
        phase, share = "comparing", comparison
    elif lessons is not None:
        phase, share, left = LESSONS, lessons, state.lessons_left
        time_left = f"{UNKNOWN if left is None else clock_text(left)} to round 1"
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for _ in range(3):
        grid.add_column(no_wrap=True)
    grid.add_row(
        _text(phase, style="bold"),
        ProgressBar(total=1.0, completed=share, complete_style="cyan", finished_style="green"),
        f"{share:.0%}",
        "" if lessons is not None else f"{count(state.steps_per_second)} env-steps/s",
        time_left,
    )
    return grid


def _learning_rows(state: ProgressState, options: ConsoleOptions) -> list[Row]:
    """Return the results of the hosts."""
    row, trial = state.round, state.trial
    ongoing = [] if trial is None else [(trial_verb(trial), _text(trial_text(trial), style="cyan"))]
    compared = _comparison_rows(state)
    if not state.has_begun:
        ongoing = [("", _text("loading PyTorch"))]
    if row is None:
        return [*compared, *ongoing] or [("", _text("collecting the first round"))]
    line = _text(number(row.ep_rew_mean), style="bold green")
    line.append(relative_text(state.config))
    if not options.ascii_only:
        line.append(f"  {bars(state.returns, _MOST_BARS)}", style="green")
    rows = [
        ("return", line),
        ("score", _text(score_text(row))),
        ("parameters", _text(parameter_text(row))),
        ("FLOPs", _text(f"{number(row.flops_mean, 2)} of the reference run")),
    ]
    if state.evaluation is not None:
        rows.append(("held-out", _text(_held_out(state.evaluation))))
    return [*rows, *compared, *ongoing]


def _comparison_rows(state: ProgressState) -> list[Row]:
    arms = [f"{arm} {final.ep_rew_mean:.3f}" for arm, final in state.finals.items()]
    return [("comparison", _text(f"return of {', '.join(arms)}"))] if arms else []


def _held_out(row: EvaluationRecord) -> str:
    best = ", best so far" if row.is_best else ""
    scores = f"{return_text(row)}, score {row.score_mean:.3f}"
    return f"{scores} after round {row.round}{best}"


def _controller_rows(state: ProgressState) -> list[Row]:
    """Return the controller's actions and its latest update."""
    rows: list[Row] = []
    if state.round is not None:
        rows.append(("ops", _text(f"{op_text(state.round)} per episode")))
    update = state.update
    if update is not None:
        text = f"KL {number(update.approx_kl, 4)}, entropy {number(update.entropy, 2)}"
        if state.n_updates:
            text += f", {state.n_early_stops} of {state.n_updates} stopped early"
        rows.append(("update", _text(text)))
        explained = number(update.explained_variance, 2)
        rows.append(("critic", _text(f"explained variance {explained}")))
    if state.round is not None and state.round.workers is not None:
        rows.append(("workers", _text(workers_text(state.round))))
    if state.n_restored:
        text = f"{many(state.n_restored, 'host')} rolled back, last: {state.last_restored}"
        rows.append(("governor", _text(text, style="yellow")))
    return rows


def _rows(rows: list[Row]) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", min_width=_LABEL_WIDTH, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(label, text)
    return grid


_REFRESHES_PER_SECOND = 2
"""Low, because drawing takes milliseconds away from training."""


class _Screen:
    """A terminal whose write errors are ignored, so that a run survives a closed terminal."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write a text."""
        with suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the terminal."""
        with suppress(OSError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class LiveView:
    """Shows the run in a panel that is redrawn in place; other output appears above it."""

    def __init__(self, state: ProgressState, console: Console | None = None) -> None:
        self._state = state
        self._live = Live(
            RunPanel(state),
            console=Console(file=cast(TextIO, _Screen(raw_stream(sys.stdout))))
            if console is None
            else console,
            refresh_per_second=_REFRESHES_PER_SECOND,
        )
        self._live.start(refresh=True)

    def write(self, record: Record) -> None:
        """Update the state, which the next redraw shows."""
        self._state.take(record)

    def watch_step(self, step: int) -> None:
        """Update the state, which the next redraw shows."""
        self._state.take_step(step)

    def watch_trial(self, trial: TrialProgress) -> None:
        """Update the progress of an evaluation, which the next redraw shows."""
        self._state.take_trial(trial)

    def tell(self, message: str) -> None:
        """Show a message inside the panel, where it does not break the layout."""
        self._state.messages.append(message)

    def close(self) -> None:
        """Draw the panel a last time and leave it on the screen. Closing again does nothing."""
        if self._live.is_started:
            self._live.stop()
