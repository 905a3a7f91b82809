"""Figures of a run beyond its metrics: episode timelines, what was learned, and health."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from esper.reports.figures import COLOURS, empty_figure, plain
from esper.reports.views import Bar, EpisodeDetail, Health, Learned, LearnedPart

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

LEAST_HEIGHT = 0.15
"""Height of a bar at alpha 0, so that it is visible; alpha 1 is 1."""


def plot_episode(detail: EpisodeDetail, *, title: str = "") -> Any:
    """Return a timeline of an episode: its score, and below it the seeds of each slot.

    Stages are colours, and alpha is the height of a seed's bar.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    slots = detail["slots"]
    figure = empty_figure(9, 2.6 + 0.8 * len(slots))
    axes: Any = figure.subplots(
        1 + len(slots), 1, sharex=True, squeeze=False, height_ratios=[2.5, *(1.0 for _ in slots)]
    )
    score, *lanes = axes[:, 0]
    _draw_score(score, detail)
    for axis, slot in zip(lanes, slots, strict=True):
        for bar in detail["bars"]:
            if bar["slot"] == slot:
                _draw_bar(axis, bar)
        axis.set_ylim(0.0, 1.25)
        axis.set_yticks([])
        axis.set_ylabel(plain(slot), rotation=0, ha="right", va="center")
    last = axes[-1, 0]
    last.set_xlabel("epoch")
    last.set_xlim(
        0, detail["n_epochs_max"] or max((s["epoch"] for s in detail["steps"]), default=1)
    )
    _draw_legend(figure, detail)
    figure.suptitle(plain(title))
    return figure


def _draw_score(axis: Any, detail: EpisodeDetail) -> None:
    points = [(step["epoch"], step["score"]) for step in detail["steps"]]
    axis.plot([x for x, _ in points], [y for _, y in points], color="black", label="validation")
    result = detail["result"]
    if result is not None and result["final_score"] is not None:
        axis.plot(
            [result["n_epochs"]], [result["final_score"]], "D", color="#d55e00", label="final score"
        )
    for rescue in detail["governor"]:
        axis.axvline(rescue["epoch"], color="#cc79a7", linestyle=":")
    axis.set_ylabel("score")
    axis.grid(alpha=0.3)
    if axis.lines:
        axis.legend(edgecolor="none", framealpha=0.7, fontsize="small", loc="lower right")


def _draw_bar(axis: Any, bar: Bar) -> None:
    """Draw one seed, coloured by stage, with alpha as height."""
    alphas = {epoch: alpha for epoch, alpha in bar["alphas"] if alpha is not None}
    for part in bar["parts"]:
        # A step records alpha at the end of its epoch.
        for epoch in range(part["from"], part["to"]):
            height = max(LEAST_HEIGHT, alphas.get(epoch + 1, 0.0))
            axis.bar(epoch, height, 1.0, align="edge", color=STAGE_COLOURS[part["stage"]])
    if bar["parts"]:
        start = bar["parts"][0]["from"]
        axis.axvline(start, color="black", linewidth=0.8)
        axis.text(start + 0.1, 1.03, plain(bar["blueprint"] or ""), fontsize="small")


def _draw_legend(figure: Any, detail: EpisodeDetail) -> None:
    from matplotlib.patches import Patch

    stages = {part["stage"] for bar in detail["bars"] for part in bar["parts"]}
    patches = [
        Patch(color=colour, label=stage)
        for stage, colour in STAGE_COLOURS.items()
        if stage in stages
    ]
    if patches:
        figure.legend(
            handles=patches, loc="outside lower center", ncols=len(patches), frameon=False
        )


N_NAMED = 6
"""Blueprints with their own colour; the others share one."""


def plot_learned(learned: Learned, *, title: str = "") -> Any:
    """Return a figure of ops, blueprints, and when the controller grows and finishes.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    figure = empty_figure(11, 7)
    ((ops, blueprints), (growing, stopping)) = figure.subplots(2, 2)
    parts = [part for part in learned["parts"] if part["n_episodes"]]
    _draw_ops(ops, parts)
    _draw_blueprints(blueprints, parts)
    _draw_epochs(growing, [(part, part["germination_epochs"]) for part in parts])
    _finish(growing, "Germination epochs")
    _draw_epochs(stopping, [(part, part["finish_epochs"]) for part in parts])
    _finish(stopping, "Finish epochs")
    figure.suptitle(plain(title))
    return figure


def plot_health(health: Health, *, title: str = "") -> Any:
    """Return a figure of speed, memory and rollbacks by round.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    figure = empty_figure(11, 3.5)
    axes: Any = figure.subplots(1, 3)
    panels = (
        ("Host-epochs per second", health["throughput"], 1.0),
        ("Memory of the process, MB", health["memory"], 1e6),
        ("Hosts rolled back", health["governor"]["by_round"], 1.0),
    )
    for axis, (heading, points, unit) in zip(axes, panels, strict=True):
        values = [None if value is None else value / unit for value in points["values"]]
        axis.plot(points["rounds"], [float("nan") if v is None else v for v in values])
        axis.set_ylim(bottom=0.0)
        axis.set_xlabel("round")
        axis.set_title(heading, loc="left")
        axis.grid(alpha=0.3)
    figure.suptitle(plain(title))
    return figure


def _draw_ops(axis: Any, parts: list[LearnedPart]) -> None:
    names = list(dict.fromkeys(op for part in parts for op in part["ops"]))
    for number, op in enumerate(names):
        axis.plot(
            _places(parts),
            [part["ops"].get(op, 0.0) for part in parts],
            color=COLOURS[number % len(COLOURS)],
            marker="o",
            label=op.replace("_", " "),
        )
    axis.set_xlabel("round")
    _finish(axis, "Ops per episode")


def _draw_blueprints(axis: Any, parts: list[LearnedPart]) -> None:
    """Draw the shares of germinated seeds as stacked bars."""
    totals: dict[str, float] = {}
    for part in parts:
        for name, value in part["blueprints"].items():
            totals[name] = totals.get(name, 0.0) + value
    named = sorted(totals, key=lambda name: (-totals[name], name))[:N_NAMED]
    below = [0.0] * len(parts)
    for number, name in enumerate([*named, "others"]):
        shares = [_share(part["blueprints"], name, named) for part in parts]
        axis.bar(range(len(parts)), shares, bottom=below, color=COLOURS[number], label=plain(name))
        below = [one + share for one, share in zip(below, shares, strict=True)]
    axis.set_xticks(range(len(parts)), [f"{p['first_round']}-{p['last_round']}" for p in parts])
    axis.set_xlabel("rounds")
    _finish(axis, "Share of germinated seeds", legend_outside=True)


def _share(shares: Mapping[str, float], name: str, named: list[str]) -> float:
    if name != "others":
        return shares.get(name, 0.0)
    return sum(value for other, value in shares.items() if other not in named)


def _draw_epochs(axis: Any, counted: list[tuple[LearnedPart, dict[int, int]]]) -> None:
    """Draw events per episode by epoch, for the first and the last part of training."""
    ends = counted[:1] + counted[1:][-1:]
    for (part, counts), colour, style in zip(ends, COLOURS, ("--", "-"), strict=False):
        if counts:
            epochs = range(min(counts), max(counts) + 1)
            rates = [counts.get(epoch, 0) / part["n_episodes"] for epoch in epochs]
            label = f"rounds {part['first_round']} to {part['last_round']}"
            axis.plot(epochs, rates, linestyle=style, marker=".", color=colour, label=label)
    axis.set_xlabel("epoch")
    axis.set_ylabel("per episode")


def _places(parts: list[LearnedPart]) -> list[float]:
    return [(part["first_round"] + part["last_round"]) / 2 for part in parts]


def _finish(axis: Any, heading: str, *, legend_outside: bool = False) -> None:
    """Add a heading and a legend."""
    axis.set_title(heading, loc="left")
    axis.grid(alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        place = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if legend_outside else {}
        axis.legend(edgecolor="none", framealpha=0.7, fontsize="small", **place)
