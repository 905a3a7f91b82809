"""Views of a training run: a table of rounds with a progress bar, JSON, or nothing."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from esper.cli.output import command_progress, json_text
from esper.config.run import RunConfig
from esper.errors import escape_controls
from esper.formatting import many
from esper.progress import ProgressBar
from esper.telemetry.metrics import metrics_of
from esper.telemetry.records import (
    EvaluationRecord,
    GovernorRecord,
    NoticeRecord,
    Record,
    RoundRecord,
    UpdateRecord,
)
from esper.training.output import RunProgress, TrialProgress

if TYPE_CHECKING:
    from esper.training.run import Run

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


def count(value: float) -> str:
    """Return a count with three significant digits: ``987``, ``1.23k``, ``45.6M``."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "rollout/ep_rew_mean": ("return", "{:.3f}".format),
    "growth/score": ("score", "{:.3f}".format),
    "growth/flops": ("FLOPs", "{:.2f}".format),
    "growth/seed_parameters": ("added", count),
    "ops/germinate": ("seeds", "{:.2f}".format),
    "train/approx_kl": ("KL", "{:.3f}".format),
    "train/entropy_loss": ("entropy", lambda loss: f"{-loss:.2f}"),
    "time/fps": ("fps", count),
}
"""Metrics of a round with their headings, which fit 80 columns, and how values are formatted."""

HEADINGS = ("round", *(heading for heading, _ in COLUMNS.values()))

ABOUT_COLUMNS = (
    "Means over the training hosts whose episodes ended in the round. Added parameters and seeds "
    "(how many were planted) are per episode."
)


def cells(number: int, metrics: Mapping[str, float]) -> list[str]:
    """Return the row of a round; empty cells where the run has no value."""
    texts = [
        to_text(metrics[name]) if name in metrics else "" for name, (_, to_text) in COLUMNS.items()
    ]
    return [str(number), *texts]


def _aligned(row: Sequence[str]) -> str:
    widths = [max(len(heading), 5) for heading in HEADINGS]
    return "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def evaluation_line(row: EvaluationRecord) -> str:
    """Return the results of a controller on held-out hosts, below the headings of a round."""
    arm = row.arm.replace("-", " ")
    best = ", best so far" if row.is_best else ""
    return (
        f"{'':5}  {row.ep_rew_mean:6.3f}  {row.score_mean:5.3f}  {row.flops_mean:5.2f}  "
        f"{arm} on {row.n_episodes} held-out hosts{best}"
    )


class View:
    """A watcher of a run that prints messages on stderr and nothing else."""

    def write(self, record: Record) -> None:
        """Show a record."""

    def watch_step(self, step: int) -> None:
        """Show the number of a step."""

    def tell(self, message: str) -> None:
        """Show a message at once, such as the response to a signal."""
        print_to_stderr(message)

    def close(self) -> None:
        """Show what is still pending. Closing again does nothing."""


class JsonView(View):
    """Prints a JSON object for each round, update, evaluation, rollback and notice."""

    def __init__(self, write_line: Print) -> None:
        self._print = write_line

    def write(self, record: Record) -> None:
        """Print a record if it is one of these; numbers that are not finite become null."""
        event = EVENTS.get(type(record))
        if event is not None:
            facts = {
                name: json.loads(value or "{}") if name in _JSON_FIELDS else value
                for name, value in asdict(record).items()
            }
            self._print(json_text({"event": event} | facts))


class LineView(View):
    """Prints a row for each round, with its update, and a line for each evaluation."""

    def __init__(
        self, config: RunConfig, bar: ProgressBar, write_line: Print, name: str = ""
    ) -> None:
        """Print what is trained.

        Args:
            config: The run's settings.
            bar: Shows the progress; it is entered here.
            write_line: Prints a line.
            name: Name of the run, if it is being resumed.
        """
        self._print, self._bar = write_line, bar
        self._round: RoundRecord | None = None
        self._update: UpdateRecord | None = None
        self._has_heading = False
        action = f"resuming {name}, training" if name else "training"
        relative = config.rewards.reward == "scheduled"
        self._print(
            f"{action} on {config.task}: {many(config.rounds, 'round')}, "
            f"{many(config.envs, 'host')}, {many(config.n_steps, 'step')} each"
            + ("; returns are relative to the fixed schedule" if relative else "")
        )
        self._bar.__enter__()
        self._bar.show("loading PyTorch", 0.0)
        self._progress = RunProgress(bar, config)

    def write(self, record: Record) -> None:
        """Print the line that a record completes."""
        self._progress.write(record)
        if isinstance(record, RoundRecord):
            self._flush()
            self._round = record
        elif isinstance(record, UpdateRecord):
            self._update = record
        elif isinstance(record, EvaluationRecord):
            self._flush()
            self._print_row(evaluation_line(record))
        elif isinstance(record, NoticeRecord):
            self._print(f"  round {record.round}: {record.message}")
        if self._round is not None and self._update_of(self._round) is not None:
            self._flush()

    def watch_step(self, step: int) -> None:
        """Move the bar."""
        self._progress.watch_step(step)

    def watch_trial(self, trial: TrialProgress) -> None:
        """Move the bar."""
        self._progress.watch_trial(trial)

    def watch_note(self, message: str) -> None:
        """Print a sentence about what computes the run."""
        self._print(f"  {message}")

    def close(self) -> None:
        """Print the round that still waits for its update, if any, and remove the bar."""
        self._flush()
        self._bar.__exit__(*sys.exc_info())

    def _flush(self) -> None:
        """Print the round that waits for its update, if any."""
        row, self._round = self._round, None
        if row is None:
            return
        update = self._update_of(row)
        metrics = metrics_of(row) | ({} if update is None else metrics_of(update))
        self._print_row(_aligned(cells(row.round, metrics)))
        if update is not None and update.was_refused:
            self._print(f"  update rejected: {update.refusal}")
        if row.n_restored:
            self._print(f"  {many(row.n_restored, 'host')} rolled back")

    def _update_of(self, row: RoundRecord) -> UpdateRecord | None:
        return self._update if self._update and self._update.round == row.round else None

    def _print_row(self, line: str) -> None:
        if not self._has_heading:
            self._print(_aligned(HEADINGS))
            self._has_heading = True
        self._print(line)


def print_to_stderr(message: str) -> None:
    """Print a message on stderr without buffering, so that a signal handler may call this."""
    with suppress(OSError):  # the terminal may be closed
        erase = "\r\x1b[K" if os.isatty(2) else ""  # a bar may be drawn there
        os.write(2, f"{erase}esper: {escape_controls(message)}\n".encode())


class LineWriter:
    """Prints lines until one fails; then it stays silent, so that the run continues."""

    def __init__(self) -> None:
        self._has_output = True

    def __call__(self, line: str) -> None:
        """Print a line."""
        if not self._has_output:
            return
        try:
            print(escape_controls(line), flush=True)
        except OSError:
            self._has_output = False


@contextmanager
def make_view(
    config: RunConfig, *, quiet: bool, json: bool, resumed: Run | None = None
) -> Generator[View]:
    """Yield the view that suits the options, and close it at the end.

    Args:
        config: The run's settings.
        quiet: Show nothing.
        json: Print one JSON object per line.
        resumed: The run, if it is being resumed.
    """
    if json:
        view = JsonView(LineWriter())
    elif quiet:
        view = View()
    else:
        bar = command_progress("training")
        view = LineView(config, bar, LineWriter(), "" if resumed is None else resumed.name)
    try:
        yield view
    finally:
        view.close()
