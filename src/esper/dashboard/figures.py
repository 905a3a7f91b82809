"""Figures of runs, trainings and evaluations for papers and notebooks, drawn with matplotlib."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from esper.arrays import Floats
from esper.config.checks import require_choice
from esper.dashboard import views
from esper.errors import ConfigError, EvidenceError, RunError, StorageError
from esper.results.arms import Arm, Kind
from esper.results.evidence import Evidence
from esper.results.files import evidence_text
from esper.results.tables import all_to_markdown
from esper.statistics import Interval, nested_interval
from esper.storage.files import write_atomic, write_hashed
from esper.telemetry import Metrics, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from esper.growing.decisions import Trace
    from esper.training.run import Run

Plot = Literal["learning", "timeline"]
"""What to plot: learning curves, or the timeline of one host."""
PLOTS: tuple[Plot, ...] = get_args(Plot)

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d1f")
"""Colour-blind safe; the first seven are those of Okabe and Ito (2008)."""
STYLES = ("-", "--", ":")
"""Line styles, each used with all colours before the next."""

STAGE_COLOURS = {
    "dormant": "#9aa0a6",
    "germinated": "#f0e442",
    "training": "#56b4e9",
    "blending": "#e69f00",
    "holding": "#0072b2",
    "fossilized": "#009e73",
    "pruned": "#cc79a7",
    "embargoed": "#8a8f94",
    "resetting": "#b9bdc1",
}
"""The same colours as the dashboard's."""

DPI = 120
PIXELS_PER_INCH = 72
"""Size of a figure in a notebook; it is drawn twice as sharp."""


def empty_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, which needs no display.

    It is outside pyplot, so a notebook shows it exactly once and without ``%matplotlib``.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            'matplotlib is not installed; pip install "esper-lite[plot]" to plot runs.'
        ) from error

    class ShownFigure(Figure):
        def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
            """Return the figure as a PNG image, and its size in pixels on the page."""
            width, height = (round(PIXELS_PER_INCH * inches) for inches in self.get_size_inches())
            return _png(self, 2 * PIXELS_PER_INCH), {"width": width, "height": height}

    return ShownFigure(figsize=(width, height), layout="constrained")


def figure_html(draw: Callable[[], Figure]) -> str:
    """Return a figure as an HTML image, or nothing if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return ""
    figure = draw()
    width = round(PIXELS_PER_INCH * figure.get_size_inches()[0])
    image = base64.b64encode(_png(figure, 2 * PIXELS_PER_INCH)).decode()
    return (
        f'<img alt="Figure" style="width:{width}px;max-width:100%" '
        f'src="data:image/png;base64,{image}">'
    )


def _png(figure: Figure, dpi: float) -> bytes:
    file = BytesIO()
    # White, because the text is black on dark pages too.
    figure.savefig(file, format="png", dpi=dpi, facecolor="white")
    return file.getvalue()


def plain(text: str) -> str:
    """Return a text that matplotlib shows verbatim: not as a formula, and not as a hidden label."""
    guarded = text.replace("$", r"\$")
    return f" {guarded}" if guarded.startswith("_") else guarded


def plot_run(
    run: Run, what: Plot = "learning", *, env: int | None = None, episode: int | None = None
) -> Figure:
    """Return a figure of a run.

    Args:
        run: The run.
        what: ``"learning"`` or ``"timeline"``.
        env: The environment whose host to plot in a timeline.
        episode: The episode of that environment. Without either, a typical late episode is plotted.

    Raises:
        ConfigError: If ``what`` is unknown, or matplotlib is not installed.
        RunError: If the episode does not exist.
    """
    require_choice("what", what, PLOTS)
    if what == "learning":
        return plot_learning({run.name: run})
    with run.telemetry() as telemetry:
        if env is None and episode is None:
            found = views.shown_episodes(telemetry)
            if not found:
                raise RunError(f"no episode of {run.path} has ended yet; try again later.")
            return plot_episode(found[0]["detail"], title=f"{run.name}: {found[0]['title']}")
        place = env or 0, episode or 0
        detail = views.episode_detail(telemetry, *place)
    if detail is None:
        raise RunError(
            f"{run.path} has no episode {place[1]} of environment {place[0]}; environments are "
            f"numbered from 0 to {run.config.envs - 1}, and episodes from 0."
        )
    return plot_episode(detail, title=f"{run.name}: environment {place[0]}, episode {place[1]}")


# Learning curves


_RETURNS = {"eval/mean_reward": "held-out", "rollout/ep_rew_mean": "training"}
_KL = "KL divergence of an update"
_LINES = {
    "Score": {"eval/score": "held-out", "growth/score": "training"},
    "Parameters": {"growth/seed_parameters": "grown", "growth/host_parameters": "host"},
    "FLOPs, relative to the reference run": {"eval/flops": "held-out", "growth/flops": "training"},
    _KL: {"train/approx_kl": "mean over heads", "train/joint_kl": "joint action"},
    "Losses": {"train/value_loss": "value", "train/policy_gradient_loss": "policy"},
    "Explained variance of the critic": {"train/explained_variance": "explained variance"},
}
"""Metrics and their labels, by title; if several runs share a chart, only the first is drawn."""
_LEVELS = {
    "eval/mean_reward": ("eval/fixed_reward", "fixed schedule"),
    "eval/score": ("growth/no_growth_score", "held-out, no growth"),
}
"""Metrics whose last value is a horizontal line, with their labels, by a metric of their chart."""


def find_panels(metrics: Iterable[str], *, is_scheduled: bool = False) -> dict[str, dict[str, str]]:
    """Return the charts of runs by title, as metrics with their labels.

    Args:
        metrics: The names of all metrics.
        is_scheduled: Whether returns of training are relative to the fixed schedule. They then have
            a chart of their own, because those of held-out hosts are not.
    """
    names = set(metrics)

    def below(prefix: str, first: str) -> dict[str, str]:
        found = sorted(name for name in names if name.startswith(prefix))
        found.sort(key=lambda name: name != prefix + first)
        return {name: name.removeprefix(prefix).replace("_", " ") for name in found}

    returns = {"Return per episode": _RETURNS}
    if is_scheduled:
        titles = ("Return, relative to no growth", "Return, relative to the fixed schedule")
        lines = ({name: label} for name, label in _RETURNS.items())
        returns = dict(zip(titles, lines, strict=True))
    others = {
        "Entropy by head": below("train/entropy/", "op"),
        "Ops per episode": below("ops/", "germinate"),
    }
    panels = returns | _LINES | others
    return {title: lines for title, lines in panels.items() if names & set(lines)}


def plot_learning(runs: Mapping[str, Run]) -> Figure:
    """Return the learning curves of one or more runs, by name."""
    limits = {run.config.ppo.kl_limit for run in runs.values()}
    limit = limits.pop() if len(limits) == 1 else math.inf
    return plot_metrics(
        {name: run.metrics() for name, run in runs.items()},
        kl_limit=limit if math.isfinite(limit) else None,
        is_scheduled=all(run.config.rewards.reward == "scheduled" for run in runs.values()),
    )


def plot_metrics(
    runs: Mapping[str, Metrics], *, kl_limit: float | None = None, is_scheduled: bool = False
) -> Figure:
    """Return a figure with all charts of :func:`find_panels` that a run has values for.

    Args:
        runs: The metrics of each run, by name. The lines of several runs are the runs.
        kl_limit: The KL divergence at which updates stop; None if they don't, or if it differs.
        is_scheduled: As in :func:`find_panels`.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    names = {name for metrics in runs.values() for name in metrics}
    panels = find_panels(names, is_scheduled=is_scheduled)
    n_rows = max(1, -(-len(panels) // 3))
    figure = empty_figure(13, max(4, 3 * n_rows))
    axes: Any = figure.subplots(n_rows, 3, sharex=True, squeeze=False)
    for axis, (title, lines) in zip(axes.flat, panels.items(), strict=False):
        _draw_panel(axis, lines, runs)
        if title == _KL and kl_limit is not None:
            axis.axhline(kl_limit, color="gray", linestyle="--", label="updates stop")
        axis.set_xlabel("round")
        axis.tick_params(labelbottom=True)
        axis.xaxis.get_major_locator().set_params(integer=True)
        _finish(axis, title)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    figure.suptitle(plain(next(iter(runs)) if len(runs) == 1 else f"{len(runs)} runs"))
    return figure


def plot_curve(series: Series, title: str) -> Figure:
    """Return a small figure of one metric by round."""
    figure = empty_figure(5.5, 1.6)
    axis: Any = figure.subplots()
    marker = "o" if len(series.rounds) == 1 else None
    axis.plot(series.rounds, series.values, color=COLOURS[2], marker=marker)
    axis.set_xlabel("round")
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_title(plain(title), loc="left", fontsize="small")
    return figure


def _draw_panel(axis: Any, lines: Mapping[str, str], runs: Mapping[str, Metrics]) -> None:
    """Draw all lines of one run with their level, or the main line of each of several."""
    for number, (name, metrics) in enumerate(runs.items()):
        known = [metric for metric in lines if metric in metrics]
        if len(runs) > 1:
            for metric in known[:1]:
                _draw_line(axis, metrics, metric, name, number)
            continue
        for place, metric in enumerate(known):
            _draw_line(axis, metrics, metric, lines[metric], place)
        for level, label in (_LEVELS[metric] for metric in known if metric in _LEVELS):
            if level in metrics:
                axis.axhline(metrics[level].values[-1], color="gray", linestyle="--", label=label)


def _draw_line(axis: Any, metrics: Metrics, metric: str, label: str, number: int) -> None:
    series = metrics[metric]
    # Evaluations are few, and a single value makes no line.
    has_marks = metric.startswith("eval/") or len(series.rounds) == 1
    axis.plot(
        series.rounds,
        series.values,
        label=plain(label),
        color=COLOURS[number % len(COLOURS)],
        linestyle=STYLES[number // len(COLOURS) % len(STYLES)],
        marker="o" if has_marks else None,
        markersize=4,
    )


def _finish(axis: Any, title: str) -> None:
    """Add a title, a grid and a legend."""
    axis.set_title(title, loc="left")
    axis.grid(alpha=0.3)
    n_labels = len(axis.get_legend_handles_labels()[0])
    if n_labels:
        place = {} if n_labels <= 4 else {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axis.legend(edgecolor="none", framealpha=0.7, fontsize="small", **place)


# Timelines


MIN_HEIGHT = 0.15
"""Height of a bar at alpha 0, so that it is visible; alpha 1 is 1."""


@dataclass(frozen=True)
class _Lane:
    """A slot in which something grew."""

    parts: list[tuple[int, int, str, float]] = field(
        default_factory=list[tuple[int, int, str, float]]
    )
    """From one epoch to another, the stage and alpha of the slot's seed."""
    seeds: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """The epoch and the blueprint of each seed."""
    kept: list[int] = field(default_factory=list[int])
    """The epochs in which a seed was fossilized, where its slot is free again."""


def plot_episode(detail: views.EpisodeDetail, *, title: str = "") -> Figure:
    """Return a timeline of an episode: its score, and below it the seeds of each slot.

    Stages are colours, and alpha is the height of a seed's bar.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    lanes = {slot: _Lane() for slot in detail["slots"]}
    for bar in detail["bars"]:
        # A host in progress may name its slots differently from others.
        lane = lanes.setdefault(bar["slot"], _Lane())
        alphas = {epoch: alpha for epoch, alpha in bar["alphas"] if alpha is not None}
        for part in bar["parts"]:
            # A step records alpha at the end of its epoch.
            lane.parts.extend(
                (epoch, epoch + 1, part["stage"], alphas.get(epoch + 1, 0.0))
                for epoch in range(part["from"], part["to"])
            )
            if part["stage"] == "fossilized":
                lane.kept.append(part["from"])
        for part in bar["parts"][:1]:
            lane.seeds.append((part["from"], bar["blueprint"] or ""))
    n_epochs = detail["n_epochs_max"] or max((s["epoch"] for s in detail["steps"]), default=1)
    epochs = [step["epoch"] for step in detail["steps"]]
    ends = [part["to"] for bar in detail["bars"] for part in bar["parts"]]
    figure, (score,) = _timeline(lanes, n_epochs, title, end=max([*epochs, *ends], default=0))
    scores = [step["score"] for step in detail["steps"]]
    score.plot(epochs, scores, color="black", label="validation")
    references = {
        "no growth": detail["no_growth_scores"],
        "fixed schedule": detail["schedule_scores"],
    }
    for label, (_, *after) in ((label, scores) for label, scores in references.items() if scores):
        score.plot(range(1, len(after) + 1), after, color="#8a8f94", linewidth=0.9, label=label)
    result = detail["result"]
    if result is not None and result["final_score"] is not None:
        place = [result["n_epochs"]], [result["final_score"]]
        score.plot(*place, "D", color="#d55e00", label="final score")
    for rescue in detail["governor"]:
        score.axvline(rescue["epoch"], color="#cc79a7", linestyle=":")
    score.legend(edgecolor="none", framealpha=0.7, fontsize="small", loc="lower right")
    score.set_ylabel("score")
    return figure


def plot_trace(trace: Trace, *, title: str = "", baseline: Sequence[float] = ()) -> Figure:
    """Return a timeline of a training: its score, the seeds of each slot, and the parameters.

    A decision holds from its epoch to the next, so that is where its stages and alphas are drawn.
    Of a race of sizes, the score of each size is drawn.

    Args:
        trace: The decisions.
        title: Title of the figure.
        baseline: Score after each epoch of the same training with no growth, as a dashed line.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    if any(one.lanes for one in trace):
        return _plot_race(trace, title, baseline)
    lanes: dict[str, _Lane] = {}
    for now, after in zip(trace, [*trace[1:], *trace[-1:]], strict=True):
        for slot, stage in now.stages.items():
            lane = lanes.setdefault(slot, _Lane())
            if after.epoch > now.epoch:
                lane.parts.append((now.epoch, after.epoch, stage, now.alphas.get(slot, 0.0)))
        if now.blueprint and now.slot in lanes:
            lanes[now.slot].seeds.append((now.epoch, now.blueprint))
        for slot, state in now.slots.items():
            # A slot counts its own seed as a fossil once it is free again.
            n_kept = state.n_fossils + (state.stage == "fossilized")
            if n_kept:
                kept = lanes.setdefault(slot, _Lane()).kept
                kept.extend([now.epoch] * (n_kept - len(kept)))
    n_epochs = max((one.epochs for one in trace), default=1)
    end = trace[-1].epoch if trace else 0
    figure, (score, size) = _timeline(lanes, n_epochs, title, end=end, has_size=True)
    epochs = [one.epoch for one in trace]
    score.plot(epochs, [one.score for one in trace], color="black", marker="o", markersize=3)
    if baseline:
        _draw_baseline(score, baseline)
        score.legend(edgecolor="none", framealpha=0.7, fontsize="small", loc="lower right")
    score.set_ylabel("validation score")
    scored = [one for one in trace if math.isfinite(one.score)]
    if scored:
        best = max(scored, key=lambda one: one.score)
        score.plot([best.epoch], [best.score], "o", color="#d55e00")
        score.set_title(
            f"best {best.score:.4g} after epoch {best.epoch}", loc="right", fontsize="small"
        )
    for one in trace:
        if one.why.startswith("the model was rolled back"):
            score.axvline(one.epoch, color="#cc79a7", linestyle=":")
    total = [one.parameters for one in trace]
    given = [one.parameters - one.seed_parameters for one in trace]
    size.fill_between(epochs, 0, given, step="post", color="#9aa0a6", alpha=0.5, linewidth=0)
    size.fill_between(epochs, given, total, step="post", color="#009e73", alpha=0.5, linewidth=0)
    size.step(epochs, total, where="post", color="black")
    if total:
        text = f"{total[-1]:,}, of which {total[-1] - given[-1]:,} grown"
        size.set_title(text, loc="right", fontsize="small")
    size.set_ylabel("parameters")
    size.set_ylim(0, 1.1 * max(total, default=1))
    size.yaxis.set_major_formatter("{x:,.0f}")
    return figure


def _draw_baseline(axis: Any, baseline: Sequence[float]) -> None:
    """Draw the scores of training with no growth, if there are any."""
    if baseline:
        label, epochs = f"no growth: best {max(baseline):.4g}", range(1, len(baseline) + 1)
        axis.plot(epochs, baseline, color="gray", linestyle="--", zorder=1, label=label)


def _plot_race(trace: Trace, title: str, baseline: Sequence[float]) -> Figure:
    """Return the scores of the sizes of a race: a dot where one joined, a cross where it stopped.

    A size that joins has caught up by then, so its curve begins in that epoch.
    """
    curves: dict[str, dict[int, float]] = {}
    for step in trace:
        for name, score in step.lanes.items():
            curves.setdefault(name, {})[step.epoch] = score
    figure = empty_figure(9, 3.6)
    axis: Any = figure.subplots()
    for number, (name, curve) in enumerate(sorted(curves.items())):
        colour, epochs, scores = COLOURS[number % len(COLOURS)], [*curve], [*curve.values()]
        axis.plot(epochs, scores, color=colour, label=f"{name}: best {max(scores):.4g}")
        if epochs[0] > 1:
            axis.plot(epochs[0], scores[0], "o", color=colour, markersize=7)
        if epochs[-1] < trace[-1].epoch:
            axis.plot(epochs[-1], scores[-1], "X", color=colour, markersize=9)
    _draw_baseline(axis, baseline)
    axis.set_xlim(0, trace[-1].epochs + 0.2)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("epoch")
    axis.set_ylabel("validation score")
    note = "dot: a size joined, having caught up; cross: it stopped"
    axis.set_title(note, loc="right", fontsize="small")
    axis.legend(edgecolor="none", framealpha=0.7, fontsize="small", loc="lower right")
    axis.grid(alpha=0.3)
    figure.suptitle(plain(title))
    return figure


def _timeline(
    lanes: Mapping[str, _Lane], n_epochs: int, title: str, *, end: int, has_size: bool = False
) -> tuple[Figure, list[Any]]:
    """Return a figure with lanes, and its empty axes: of the score and, if wanted, of the size.

    Fossils are drawn until the epoch ``end``, the last one trained.
    """
    heights = [3.0, *(0.9 for _ in lanes), *([1.6] if has_size else [])]
    figure = empty_figure(9, 1.6 + 0.7 * sum(heights))
    column: Any = figure.subplots(
        len(heights), 1, sharex=True, squeeze=False, height_ratios=heights
    )
    axes = list(column[:, 0])
    for axis, (slot, lane) in zip(axes[1:], lanes.items(), strict=False):
        _draw_lane(axis, slot, lane, end)
    axes[-1].set_xlim(0, n_epochs + 0.2)
    axes[-1].set_xlabel("epoch")
    axes[-1].xaxis.get_major_locator().set_params(integer=True)
    _draw_stages(figure, {part[2] for lane in lanes.values() for part in lane.parts})
    figure.suptitle(plain(title))
    free = [axes[0], axes[-1]] if has_size else [axes[0]]
    for axis in free:
        axis.grid(alpha=0.3)
    return figure, free


def _draw_lane(axis: Any, slot: str, lane: _Lane, last: int) -> None:
    for start, end, stage, alpha in lane.parts:
        colour, height = STAGE_COLOURS[stage], max(MIN_HEIGHT, alpha)
        axis.bar(start, height, end - start, align="edge", color=colour)
    for epoch, blueprint in lane.seeds:
        axis.axvline(epoch, color="black", linewidth=0.8)
        place = {"xytext": (3, 0), "textcoords": "offset points", "fontsize": "small"}
        axis.annotate(plain(blueprint), (epoch, 1.08), **place)
    if lane.kept:
        # A fossil stays in the block when its slot is free again: a strip below the seeds.
        colour = STAGE_COLOURS["fossilized"]
        axis.broken_barh([(lane.kept[0], max(last - lane.kept[0], 0))], (-0.3, 0.2), color=colour)
        place = {"transform": axis.transAxes, "va": "center", "fontsize": "small"}
        axis.text(1.01, 0.3, f"{len(lane.kept)} kept", color=colour, **place)
    axis.set_ylim(-0.35 if lane.kept else 0.0, 1.6)
    axis.set_yticks([])
    axis.set_ylabel(plain(slot), rotation=0, ha="right", va="center")
    axis.spines[["top", "right"]].set_visible(False)


def _draw_stages(figure: Any, shown: set[str]) -> None:
    """Add a legend of the stages that are shown."""
    from matplotlib.patches import Patch

    patches = [
        Patch(color=colour, label=stage)
        for stage, colour in STAGE_COLOURS.items()
        if stage in shown
    ]
    if patches:
        place = {"loc": "outside lower center", "ncols": len(patches), "columnspacing": 1.2}
        figure.legend(handles=patches, frameon=False, fontsize="small", **place)


# Evaluations


MARKERS: dict[Kind, str] = {
    "learned": "*",
    "tuned": "s",
    "simple": "o",
    "same_epochs": "^",
    "same_flops": "v",
    "ablation": "X",
}

TEXT_FILE, CHART_FILE = "evaluation.md", "pareto.png"


def save_evidence(entries: Sequence[Evidence], folder: Path) -> list[Path]:
    """Save results at one or more prices, and return the paths written.

    Raises:
        StorageError: If a file cannot be written.
    """
    text = evidence_text(entries)
    paths = [folder / views.EVALUATION_FILE, folder / TEXT_FILE]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_hashed(paths[0], text)
        write_atomic(paths[1], all_to_markdown(entries))
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror or error}.") from error
    if find_spec("matplotlib") is not None:
        paths.append(folder / CHART_FILE)
        save_figure(plot_pareto(entries), paths[-1])
    return paths


def save_figure(figure: Figure, path: Path) -> None:
    """Save a figure as PNG."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, _png(figure, DPI))
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}.") from error


def plot_pareto(entries: Sequence[Evidence]) -> Figure:
    """Return a figure of score against training FLOPs and against parameters.

    The points of an arm at several prices are joined. Bars are 95% intervals; the grey line is the
    Pareto front.

    Raises:
        ConfigError: If matplotlib is not installed.
        EvidenceError: If there are no entries.
    """
    if not entries:
        raise EvidenceError("no entries; give results at one price at least.")
    entries = sorted(entries, key=lambda entry: entry.price or 0.0)
    first = entries[0]
    arms = {arm.name: arm for entry in entries for arm in (entry.own, *entry.others)}
    figure = empty_figure(11.0, 5.5 + 0.1 * len(arms))
    axes: Any = figure.subplots(1, 2, sharey=True)
    costs: dict[str, Callable[[Arm], Floats]] = {
        f"training FLOPs, relative to {first.reference}": lambda arm: arm.flops,
        "parameters of the final network": lambda arm: arm.parameters,
    }
    for axis, (label, cost) in zip(axes, costs.items(), strict=True):
        points: dict[str, list[tuple[Interval, Interval]]] = {}
        for arm in (arm for entry in entries for arm in entry.arms):
            pair = nested_interval(cost(arm)), nested_interval(arm.score)
            points.setdefault(arm.name, []).append(pair)
        _draw_arms(axis, points, _looks(list(arms.values())))
        axis.set_xlabel(label)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("score")
    handles, names = axes[0].get_legend_handles_labels()
    labels = [plain(arms[name].label) if name in arms else name for name in names]
    runs = "1 training run" if len(first.runs) == 1 else f"{len(first.runs)} training runs"
    title = f"{first.task}: {first.n_hosts} held-out hosts, {runs}\n"
    title += "Bars: 95% intervals of each arm; paired differences have narrower ones."
    place: dict[str, Any] = {"loc": "outside upper left", "ncols": 2, "alignment": "left"}
    figure.legend(handles, labels, title=plain(title), frameon=False, **place)
    return figure


def pareto_front(costs: Sequence[float], gains: Sequence[float]) -> list[int]:
    """Return the indices of the points that no other point dominates, the cheapest first.

    A point dominates another if it costs no more and gains no less, and differs in one of the two.
    Of equal points, the first is returned.
    """
    order = sorted(range(len(costs)), key=lambda index: (costs[index], -gains[index], index))
    front: list[int] = []
    for index in order:
        if not front or gains[index] > gains[front[-1]]:
            front.append(index)
    return front


def _looks(arms: Sequence[Arm]) -> dict[str, dict[str, Any]]:
    """Return the marker and colour of each arm; the first, which claims are about, is black."""
    looks: dict[str, dict[str, Any]] = {}
    for number, arm in enumerate(arms):
        # Arms of different kinds differ in their marker, those of one kind in their colour.
        n_alike = sum(one.kind == arm.kind for one in arms[1:number])
        colour = COLOURS[(list(MARKERS).index(arm.kind) + n_alike) % 6] if number else "black"
        size = 16 if number == 0 else 11 if arm.kind == "learned" else 7.5
        looks[arm.name] = {"marker": MARKERS[arm.kind], "color": colour, "markersize": size}
    return looks


def _draw_arms(
    axis: Any,
    points: Mapping[str, list[tuple[Interval, Interval]]],
    looks: Mapping[str, dict[str, Any]],
) -> None:
    """Draw all arms of a panel and their Pareto front."""
    for name, own in points.items():
        look = looks[name]
        costs, gains = ([one.mean for one in values] for values in zip(*own, strict=True))
        x_bars, y_bars = (
            [
                [max(0.0, one.mean - one.low) for one in values],
                [max(0.0, one.high - one.mean) for one in values],
            ]
            for values in zip(*own, strict=True)
        )
        lines = {"linestyle": "none", "color": look["color"], "elinewidth": 1.0, "alpha": 0.35}
        axis.errorbar(costs, gains, xerr=x_bars, yerr=y_bars, zorder=2, **lines)
        axis.plot(
            costs, gains, linewidth=0.8, markeredgecolor="white", label=name, zorder=3, **look
        )
    every = [pair for own in points.values() for pair in own]
    costs, gains = ([one.mean for one in values] for values in zip(*every, strict=True))
    front = pareto_front(costs, gains)
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    axis.step(
        [costs[front[0]], *(costs[index] for index in front), right],
        [bottom, *(gains[index] for index in front), gains[front[-1]]],
        where="post",
        color="0.85",
        linewidth=5,
        solid_joinstyle="miter",
        zorder=1,
        label="Pareto front",
    )
    axis.set(xlim=(left, right), ylim=(bottom, top))
