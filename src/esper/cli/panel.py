"""The picture of a run on a terminal: a pure function of what is known of it."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from esper.cli import words
from esper.cli.view_state import ViewState
from esper.telemetry.records import EvaluationRecord

_WIDE = 110
_LABEL_WIDTH = 11
_MOST_BARS = 40

Row = tuple[str, Text]


class RunPanel:
    """A run, drawn anew each time that it is rendered."""

    def __init__(self, state: ViewState) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the panel at the width that there is."""
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
        messages = list(state.messages)  # another thread may add one meanwhile
        if messages:
            parts += [Text(), *(Text(message, style="yellow") for message in messages)]
        name = f" {state.name}" if state.name else ""
        title = Text(f"esper{name}, task {state.config.task}", style="bold")
        yield Panel(
            Group(*parts),
            title=title,
            title_align="left",
            subtitle=words.duration(state.seconds),
            subtitle_align="right",
            border_style="cyan",
        )


def _progress(state: ViewState) -> Table:
    """Return the first line: the round, a bar, the pace and the time left."""
    left, comparison = state.seconds_left, state.comparison_share
    time_left = "starting" if left is None else f"{words.duration(left)} left"
    share = state.share if comparison is None else comparison
    doing = f"round {state.round_number}/{state.config.rounds}"
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for _ in range(3):
        grid.add_column(no_wrap=True)
    grid.add_row(
        Text(doing if comparison is None else "comparing", style="bold"),
        ProgressBar(total=1.0, completed=share, complete_style="cyan", finished_style="green"),
        f"{share:.0%}",
        f"{words.count(state.steps_per_second)} env-steps/s",
        f"{time_left}",
    )
    return grid


def _learning_rows(state: ViewState, options: ConsoleOptions) -> list[Row]:
    """Return how well hosts come out."""
    row, trial = state.round, state.trial
    trying = [] if trial is None else [("trying", Text(words.trial_words(trial), style="cyan"))]
    compared = _comparison_rows(state)
    if not state.has_begun:
        trying = [("", Text("loading PyTorch"))]
    if row is None:
        return [*compared, *trying] or [("", Text("collecting the first round"))]
    line = Text(words.number(row.ep_rew_mean), style="bold green")
    if not options.ascii_only:
        line.append(f"  {words.bars(state.returns, _MOST_BARS)}", style="green")
    rows = [
        ("return", line),
        ("score", Text(words.score_words(row))),
        ("parameters", Text(words.parameter_words(row))),
        ("FLOPs", Text(f"{words.number(row.flops_mean, 2)} of the reference host's")),
    ]
    if state.evaluation is not None:
        rows.append(("held out", Text(_held_out(state.evaluation))))
    return [*rows, *compared, *trying]


def _comparison_rows(state: ViewState) -> list[Row]:
    arms = [f"{arm} {final.ep_rew_mean:.3f}" for arm, final in state.finals.items()]
    return [("comparison", Text(f"return of {', '.join(arms)}"))] if arms else []


def _held_out(row: EvaluationRecord) -> str:
    best = ", best so far" if row.is_best else ""
    scores = f"{words.return_words(row)}, score {row.score_mean:.3f}"
    return f"{scores} after round {row.round}{best}"


def _controller_rows(state: ViewState) -> list[Row]:
    """Return what the controller does, and how it changes."""
    rows: list[Row] = []
    if state.round is not None:
        rows.append(("ops", Text(f"{words.op_words(state.round)} per episode")))
    update = state.update
    if update is not None:
        text = f"KL {words.number(update.approx_kl, 4)}, entropy {words.number(update.entropy, 2)}"
        if state.n_updates:
            text += f", stopped early {state.n_early_stops} of {state.n_updates}"
        rows.append(("update", Text(text)))
        explained = words.number(update.explained_variance, 2)
        rows.append(("critic", Text(f"explains {explained} of the returns' variance")))
    if state.n_restored:
        text = f"hosts put back: {state.n_restored}, the last because {state.last_restored}"
        rows.append(("governor", Text(text, style="yellow")))
    return rows


def _rows(rows: list[Row]) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", min_width=_LABEL_WIDTH, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(label, text)
    return grid
