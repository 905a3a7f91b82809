"""Charts of a run's metrics, drawn with matplotlib; the same charts as the dashboard's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from esper.errors import ConfigError
from esper.telemetry import Metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OPS = ("germinate", "advance", "set_alpha_target", "prune", "fossilize", "wait", "finish")
_ENTROPY = "train/entropy/"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart."""

    metric: str
    label: str
    is_main: bool = False
    """Whether it is the line shown when several runs share a chart."""

    @property
    def has_points(self) -> bool:
        """Whether to mark each value, because there are few."""
        return self.metric.startswith("eval/")


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One chart."""

    name: str
    """Name of its file, and of its element in the dashboard."""
    title: str
    lines: tuple[Line, ...]
    level: str | None = None
    """A metric whose last value is drawn as a horizontal reference line."""
    level_label: str = ""
    has_limit: bool = False
    """Whether to draw the KL divergence at which updates stop."""


def find_panels(metrics: Iterable[str], *, is_scheduled: bool = False) -> tuple[Panel, ...]:
    """Return all charts of a run with these metrics.

    Args:
        metrics: The names of its metrics.
        is_scheduled: Whether returns of training are relative to the fixed schedule. They then have
            a chart of their own, because those of held-out hosts are not.
    """
    heads = sorted(name.removeprefix(_ENTROPY) for name in metrics if name.startswith(_ENTROPY))
    entropies = (
        Line(metric=f"{_ENTROPY}{head}", label=head.replace("_", " "), is_main=head == "op")
        for head in heads
    )
    ops = (
        Line(metric=f"ops/{op}", label=op.replace("_", " "), is_main=op == "germinate")
        for op in _OPS
    )
    returns, *results = _RESULTS
    return (
        *(_split_returns(returns) if is_scheduled else (returns,)),
        *results,
        *_UPDATES,
        Panel(
            name="entropy",
            title="Entropy by head",
            lines=tuple(entropies),
        ),
        Panel(name="ops", title="Ops per episode", lines=tuple(ops)),
    )


def _split_returns(panel: Panel) -> tuple[Panel, Panel]:
    """Return the chart of held-out hosts, and that of training."""
    training, held_out = panel.lines
    return (
        replace(panel, title="Return, relative to hosts left alone", lines=(held_out,)),
        Panel(
            name="training-return",
            title="Return, relative to the fixed schedule",
            lines=(replace(training, is_main=True),),
        ),
    )


def shown_lines(panel: Panel, metrics: Metrics, *, main_only: bool = False) -> tuple[Line, ...]:
    """Return the lines of a chart that a run has values for, or only its main line."""
    found = tuple(line for line in panel.lines if line.metric in metrics)
    return tuple(line for line in found if line.is_main) or found[:1] if main_only else found


_RESULTS = (
    Panel(
        name="return",
        title="Return per episode",
        lines=(
            Line(metric="rollout/ep_rew_mean", label="training"),
            Line(metric="eval/mean_reward", label="held-out", is_main=True),
        ),
        level="eval/fixed_reward",
        level_label="fixed schedule",
    ),
    Panel(
        name="score",
        title="Score (accuracy)",
        lines=(
            Line(metric="growth/score", label="training"),
            Line(metric="eval/score", label="held-out", is_main=True),
        ),
        level="growth/static_score",
        level_label="held-out, no growth",
    ),
    Panel(
        name="parameters",
        title="Parameters",
        lines=(
            Line(metric="growth/host_parameters", label="host"),
            Line(metric="growth/seed_parameters", label="grown", is_main=True),
        ),
    ),
    Panel(
        name="flops",
        title="FLOPs, relative to the reference run",
        lines=(
            Line(metric="growth/flops", label="training"),
            Line(metric="eval/flops", label="held-out", is_main=True),
        ),
    ),
)

_UPDATES = (
    Panel(
        name="kl",
        title="KL divergence of an update",
        lines=(
            Line(metric="train/approx_kl", label="mean over heads", is_main=True),
            Line(metric="train/joint_kl", label="joint action"),
        ),
        has_limit=True,
    ),
    Panel(
        name="losses",
        title="Losses",
        lines=(
            Line(metric="train/value_loss", label="value", is_main=True),
            Line(metric="train/policy_gradient_loss", label="policy"),
        ),
    ),
    Panel(
        name="explained-variance",
        title="Explained variance of the critic",
        lines=(Line(metric="train/explained_variance", label="explained variance", is_main=True),),
    ),
)


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d1f")
"""Colour-blind safe; the first seven are those of Okabe and Ito (2008)."""
STYLES = ("-", "--", ":")
"""Line styles, each used with all colours before the next."""


def empty_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, which needs no display.

    A notebook shows it if it is the last value of a cell.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    try:
        from esper.reports.shown_figure import ShownFigure
    except ImportError as error:
        raise ConfigError(
            'matplotlib is not installed; pip install "esper-lite[plot]" to plot runs.'
        ) from error
    return ShownFigure(figsize=(width, height), layout="constrained")


def plot_metrics(
    metrics: Metrics,
    *,
    title: str = "",
    kl_limit: float | None = None,
    is_scheduled: bool = False,
) -> Figure:
    """Return a figure with all charts of :func:`find_panels` for one run.

    Args:
        metrics: The run's metrics.
        title: Title of the figure.
        kl_limit: The KL divergence at which updates stop; None if they don't.
        is_scheduled: As in :func:`find_panels`.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    panels = find_panels(metrics, is_scheduled=is_scheduled)
    n_rows = -(-len(panels) // 3)
    figure = empty_figure(13, 3 * n_rows)
    axes: Any = figure.subplots(n_rows, 3, sharex=True, squeeze=False)
    for axis, panel in zip(axes.flat, panels, strict=False):
        draw_panel(axis, panel, metrics, kl_limit=kl_limit)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis in axes[-1]:
        axis.set_xlabel("round")
        axis.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(plain(title))
    return figure


def plot_panel(
    panel: Panel, runs: Mapping[str, Metrics], *, kl_limit: float | None = None
) -> Figure | None:
    """Return a figure of one chart for one or more runs, or None if no run has values for it.

    Args:
        panel: The chart.
        runs: The metrics of each run, by name.
        kl_limit: The KL divergence at which updates stop; None if they don't, or if it differs.
    """
    if not any(shown_lines(panel, metrics) for metrics in runs.values()):
        return None
    figure = empty_figure(7, 4)
    axis: Any = figure.subplots()
    if len(runs) == 1:
        draw_panel(axis, panel, next(iter(runs.values())), kl_limit=kl_limit)
    else:
        _draw_overlaid(axis, panel, runs, kl_limit)
    axis.set_xlabel("round")
    return figure


def draw_panel(axis: Any, panel: Panel, metrics: Metrics, *, kl_limit: float | None = None) -> None:
    """Draw one chart of one run, with its reference line or limit."""
    for number, line in enumerate(shown_lines(panel, metrics)):
        _draw_line(axis, metrics, line.metric, line.label, number, with_points=line.has_points)
    if panel.level is not None and panel.level in metrics:
        level = metrics[panel.level].values[-1]
        axis.axhline(level, color="gray", linestyle="--", label=panel.level_label)
    _finish(axis, panel, kl_limit)


def _draw_overlaid(
    axis: Any, panel: Panel, runs: Mapping[str, Metrics], kl_limit: float | None
) -> None:
    """Draw the main line of each run."""
    for number, (name, metrics) in enumerate(runs.items()):
        for line in shown_lines(panel, metrics, main_only=True)[:1]:
            _draw_line(axis, metrics, line.metric, name, number, with_points=line.has_points)
            axis.set_ylabel(line.label)
    _finish(axis, panel, kl_limit)


def _draw_line(
    axis: Any, metrics: Metrics, metric: str, label: str, number: int, *, with_points: bool
) -> None:
    series = metrics[metric]
    # A single value makes no line, so it needs a marker.
    marks = {"marker": "o", "markersize": 4} if with_points or len(series.rounds) == 1 else {}
    axis.plot(
        series.rounds,
        series.values,
        label=plain(label),
        color=COLOURS[number % len(COLOURS)],
        linestyle=STYLES[number // len(COLOURS) % len(STYLES)],
        **marks,
    )


def _finish(axis: Any, panel: Panel, kl_limit: float | None) -> None:
    if panel.has_limit and kl_limit is not None:
        axis.axhline(kl_limit, color="gray", linestyle="--", label="updates stop")
    axis.set_title(panel.title, loc="left")
    axis.grid(alpha=0.3)
    if axis.lines:
        n_columns = 2 if len(axis.lines) > 4 else 1
        axis.legend(edgecolor="none", framealpha=0.7, fontsize="small", ncols=n_columns)


def plain(text: str) -> str:
    """Return a text that matplotlib shows verbatim: not as a formula, and not as a hidden label."""
    guarded = text.replace("$", r"\$")
    return f" {guarded}" if guarded.startswith("_") else guarded
