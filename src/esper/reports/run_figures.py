"""Figures of a run beyond its metrics: episode timelines, what was learned, and health."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esper.reports.figures import COLOURS, empty_figure, plain
from esper.reports.views import Bar, EpisodeDetail, Health, Learned, LearnedPart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from esper.growing.decisions import Decision, Trace

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


def plot_episode(detail: EpisodeDetail, *, title: str = "") -> Figure:
    """Return a timeline of an episode: its score, and below it the seeds of each slot.

    Stages are colours, and alpha is the height of a seed's bar.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    # A host in progress may name its slots differently from others.
    slots = list(dict.fromkeys([*detail["slots"], *(bar["slot"] for bar in detail["bars"])]))
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
    _draw_legend(figure, (part["stage"] for bar in detail["bars"] for part in bar["parts"]))
    figure.suptitle(plain(title))
    return figure


def _draw_score(axis: Any, detail: EpisodeDetail) -> None:
    points = [(step["epoch"], step["score"]) for step in detail["steps"]]
    axis.plot([x for x, _ in points], [y for _, y in points], color="black", label="validation")
    rivals = {"left alone": detail["alone_scores"], "fixed schedule": detail["schedule_scores"]}
    for label, (_, *after) in ((label, scores) for label, scores in rivals.items() if scores):
        epochs = range(1, len(after) + 1)
        axis.plot(epochs, after, color="#8a8f94", linewidth=0.9, label=label)
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


def _draw_legend(figure: Any, stages: Iterable[str]) -> None:
    from matplotlib.patches import Patch

    shown = set(stages)
    patches = [
        Patch(color=colour, label=stage)
        for stage, colour in STAGE_COLOURS.items()
        if stage in shown
    ]
    if patches:
        figure.legend(
            handles=patches,
            loc="outside lower center",
            ncols=len(patches),
            frameon=False,
            fontsize="small",
            columnspacing=1.2,
        )


def plot_trace(trace: Trace, *, title: str = "") -> Figure:
    """Return a figure of a training: its score, the seeds of each slot, and the parameters.

    A decision holds from its epoch to the next, so that is where its stages and alphas are drawn.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    lanes = _find_lanes(trace)
    figure = empty_figure(9, 4.0 + 0.55 * len(lanes))
    axes: Any = figure.subplots(
        2 + len(lanes),
        1,
        sharex=True,
        squeeze=False,
        height_ratios=[3.0, *(0.8 for _ in lanes), 1.6],
    )
    score, *middle, size = axes[:, 0]
    size.set_xlim(0, max((one.epochs for one in trace), default=1) + 0.2)
    _draw_trace_score(score, trace)
    for axis, lane in zip(middle, lanes, strict=True):
        _draw_lane(axis, lane)
    _draw_size(size, trace)
    size.set_xlabel("epoch")
    size.xaxis.get_major_locator().set_params(integer=True)
    _draw_legend(figure, (part.stage for lane in lanes for part in lane.parts))
    figure.suptitle(plain(title))
    return figure


@dataclass(frozen=True, kw_only=True)
class _LanePart:
    """What a slot was doing from one decision to the next."""

    start: int
    end: int
    stage: str
    alpha: float


@dataclass(frozen=True)
class _Lane:
    """A slot in which something grew."""

    slot: str
    parts: list[_LanePart]
    seeds: list[tuple[int, str]]
    """The epoch and the blueprint of each seed."""
    kept: list[int]
    """The epochs in which a seed was fossilized."""
    last_epoch: int


def _find_lanes(trace: Trace) -> list[_Lane]:
    """Return the slots in which something grew, in the order in which it did."""
    lanes: dict[str, _Lane] = {}
    pairs = list(zip(trace, [*trace[1:], *trace[-1:]], strict=True))
    for now, after in pairs:
        for slot, stage in now.stages.items():
            lane = lanes.setdefault(slot, _Lane(slot, [], [], [], trace[-1].epoch))
            part = _LanePart(
                start=now.epoch, end=after.epoch, stage=stage, alpha=now.alphas.get(slot, 0.0)
            )
            if part.end > part.start:
                lane.parts.append(part)
        if now.blueprint and now.slot in lanes:
            lanes[now.slot].seeds.append((now.epoch, now.blueprint))
        if now.op == "fossilize" and now.slot in lanes:
            lanes[now.slot].kept.append(now.epoch)
    return list(lanes.values())


def _draw_trace_score(axis: Any, trace: Trace) -> None:
    epochs, scores = [one.epoch for one in trace], [one.score for one in trace]
    axis.plot(epochs, scores, color="black", marker="o", markersize=3)
    if trace:
        best: Decision = max(trace, key=lambda one: one.score)
        axis.plot([best.epoch], [best.score], "o", color="#d55e00")
        _label(axis, best.epoch, best.score, f"best {best.score:.4g}", colour="#d55e00")
        if trace[-1].epoch - best.epoch > 0.15 * axis.get_xlim()[1]:  # the labels would collide
            _label(axis, trace[-1].epoch, trace[-1].score, f"{trace[-1].score:.4g}")
    for one in trace:
        if one.why.startswith("the model was rolled back"):
            axis.axvline(one.epoch, color="#cc79a7", linestyle=":")
            axis.text(
                one.epoch,
                0.03,
                "rolled back",
                transform=axis.get_xaxis_transform(),
                color="#cc79a7",
                fontsize="small",
                rotation=90,
                ha="right",
                va="bottom",
            )
    axis.set_ylabel("validation score")
    axis.margins(y=0.18)
    axis.grid(alpha=0.3)


def _draw_lane(axis: Any, lane: _Lane) -> None:
    for part in lane.parts:
        axis.bar(
            part.start,
            max(LEAST_HEIGHT, part.alpha),
            part.end - part.start,
            align="edge",
            color=STAGE_COLOURS[part.stage],
        )
    for epoch, blueprint in lane.seeds:
        axis.axvline(epoch, color="black", linewidth=0.8)
        axis.annotate(
            plain(blueprint),
            (epoch, 1.08),
            xytext=(3, 0),
            textcoords="offset points",
            fontsize="small",
        )
    if lane.kept:
        # A fossil stays in the block when its slot is free again: a strip below the seeds.
        colour = STAGE_COLOURS["fossilized"]
        span = (lane.kept[0], lane.last_epoch - lane.kept[0])
        axis.broken_barh([span], (-0.3, 0.2), color=colour)
        place = {"transform": axis.transAxes, "va": "center", "fontsize": "small"}
        axis.text(1.01, 0.3, f"{len(lane.kept)} kept", color=colour, **place)
    axis.set_ylim(-0.35, 1.6)
    axis.set_yticks([])
    axis.set_ylabel(plain(lane.slot), rotation=0, ha="right", va="center")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _draw_size(axis: Any, trace: Trace) -> None:
    epochs = [one.epoch for one in trace]
    total = [one.parameters for one in trace]
    given = [one.parameters - one.seed_parameters for one in trace]
    axis.fill_between(epochs, 0, given, step="post", color="#9aa0a6", alpha=0.5, linewidth=0)
    axis.fill_between(epochs, given, total, step="post", color="#009e73", alpha=0.5, linewidth=0)
    axis.step(epochs, total, where="post", color="black")
    if trace:
        _label(
            axis, epochs[-1], total[-1], f"{total[-1]:,}, of which {total[-1] - given[-1]:,} grown"
        )
        axis.annotate(
            f"given: {given[0]:,}",
            (epochs[0], 0),
            xytext=(6, 4),
            textcoords="offset points",
            fontsize="small",
        )
    axis.set_ylabel("parameters")
    axis.set_ylim(0, 1.4 * max(total, default=1))
    axis.yaxis.get_major_locator().set_params(nbins=3)
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.grid(alpha=0.3)


def _label(axis: Any, x: float, y: float, text: str, *, colour: str = "black") -> None:
    """Write a value above its point, on the side that is inside."""
    is_left = x < 0.2 * axis.get_xlim()[1]
    axis.annotate(
        text,
        (x, y),
        xytext=(-2 if is_left else 2, 6),
        textcoords="offset points",
        ha="left" if is_left else "right",
        va="bottom",
        color=colour,
        fontsize="small",
    )


N_NAMED = 6
"""Blueprints with their own colour; the others share one."""


def plot_learned(learned: Learned, *, title: str = "") -> Figure:
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


def plot_health(health: Health, *, title: str = "") -> Figure:
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
