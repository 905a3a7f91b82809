"""The life of one host as a figure: its score above, and a lane for each slot below."""

from __future__ import annotations

from typing import Any

from esper.reports.figures import empty_figure, plain
from esper.reports.views import Bar, EpisodeDetail

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
"""As the page has them."""

LEAST_HEIGHT = 0.15
"""Of a bar whose seed is not blended in, so that it can be seen; the full height is 1."""


def plot_episode(detail: EpisodeDetail, *, title: str = "") -> Any:
    """Return a figure of an episode: epochs across, alpha as the height of a seed's bar.

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
    """Draw one seed: colours by stage, the height by alpha."""
    alphas = {epoch: alpha for epoch, alpha in bar["alphas"] if alpha is not None}
    for part in bar["parts"]:
        # A step's alpha is that after its epoch, which is where the epoch ends.
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
