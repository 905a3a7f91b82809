"""The Pareto chart of an evaluation, the picture of claims, and the files of results."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from esper.arrays import Floats
from esper.errors import EvidenceError, StorageError
from esper.evidence.files import EvidenceFile
from esper.evidence.model_card import ClaimRow, choose_rows
from esper.evidence.results import Arm, Evidence, Kind
from esper.evidence.text import file_to_markdown
from esper.reports.figures import empty_figure
from esper.statistics import Interval, nested_interval
from esper.storage.files import replacing, write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Colour-blind safe (Okabe and Ito, 2008)."""

MARKERS: dict[Kind, str] = {
    "learned": "*",
    "tuned": "s",
    "simple": "o",
    "same_epochs": "^",
    "same_flops": "v",
    "same_parameters": "D",
    "ablation": "X",
}

COSTS: dict[str, Callable[[Arm], Floats]] = {
    "training FLOPs": lambda arm: arm.flops,
    "parameters": lambda arm: arm.parameters,
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """The position of an arm in a panel."""

    cost: Interval
    gain: Interval


def plot_pareto(entries: Sequence[Evidence], path: str | os.PathLike[str]) -> None:
    """Save :func:`pareto_figure` to a file.

    Args:
        entries: Results on one task at one or more prices.
        path: The file; its extension selects the format, such as ``.png`` or ``.svg``.

    Raises:
        ConfigError: If matplotlib is not installed.
        EvidenceError: If there are no entries, or the format is unknown.
        StorageError: If the file cannot be written.
    """
    figure = pareto_figure(entries)
    try:
        with replacing(Path(path)) as temporary:
            figure.savefig(temporary, format=Path(path).suffix[1:] or None, dpi=130)
    except ValueError as error:
        raise EvidenceError(f"cannot draw {path}: {error}; use .png or .svg.") from error
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}") from error


def pareto_figure(entries: Sequence[Evidence]) -> Figure:
    """Return a figure of accuracy, and of the score at each price, against FLOPs and parameters.

    Accuracies are comparable across prices, so an arm's points are joined. Scores are not, so each
    price has its own panels. Bars are 95% intervals; the grey line is the Pareto front.

    Raises:
        ConfigError: If matplotlib is not installed.
        EvidenceError: If there are no entries.
    """
    if not entries:
        raise EvidenceError("no entries; give results at one price at least.")
    entries = sorted(entries, key=lambda entry: entry.price)
    arms = {arm.name: arm for entry in entries for arm in (entry.own, *entry.others)}
    looks = _looks(list(arms.values()))
    figure = empty_figure(11.0, 2.0 + 3.6 * (1 + len(entries)))
    rows: Any = figure.subplots(1 + len(entries), 2, sharey="row", sharex="col", squeeze=False)
    for axis, (cost, read) in zip(rows[0], COSTS.items(), strict=True):
        _draw(axis, _points(entries, read, lambda arm, _: arm.accuracy), looks)
        _label_panel(axis, f"Accuracy against {cost}", "accuracy")
    for entry, row in zip(entries, rows[1:], strict=True):
        for axis, (cost, read) in zip(row, COSTS.items(), strict=True):
            _draw(axis, _points([entry], read, lambda arm, price: arm.score(price)), looks)
            _label_panel(axis, f"Score at price {entry.price:g} against {cost}", "score")
    _finish(figure, rows, entries, arms)
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


def _points(
    entries: Sequence[Evidence],
    cost: Callable[[Arm], Floats],
    gain: Callable[[Arm, float], Floats],
) -> dict[str, list[Point]]:
    """Return the points of each arm, one for each price."""
    found: dict[str, list[Point]] = {}
    for entry in entries:
        for arm in entry.arms:
            point = Point(
                cost=nested_interval(cost(arm)), gain=nested_interval(gain(arm, entry.price))
            )
            found.setdefault(arm.name, []).append(point)
    return found


def _looks(arms: Sequence[Arm]) -> dict[str, dict[str, Any]]:
    """Return the marker and colour of each arm; the first, which claims are about, is black."""
    uses = {(arm.kind, colour): 0 for arm in arms for colour in COLOURS}
    looks: dict[str, dict[str, Any]] = {}
    for number, arm in enumerate(arms):

        def times(colour: str, kind: Kind = arm.kind) -> tuple[int, int]:
            every = sum(n for (_, used), n in uses.items() if used == colour)
            return uses[kind, colour], every

        colour = min(COLOURS, key=times) if number else "black"
        if number:
            uses[arm.kind, colour] += 1
        looks[arm.name] = {
            "marker": MARKERS[arm.kind],
            "color": colour,
            "markersize": 16 if number == 0 else 11 if arm.kind == "learned" else 7.5,
            "zorder": 5 if number == 0 else 3,
        }
    return looks


def _draw(axis: Any, points: dict[str, list[Point]], looks: dict[str, dict[str, Any]]) -> None:
    """Draw all arms of a panel and their Pareto front."""
    for name, own in points.items():
        look = looks[name]
        costs, gains = [one.cost.mean for one in own], [one.gain.mean for one in own]
        axis.errorbar(
            costs,
            gains,
            xerr=_bars([one.cost for one in own]),
            yerr=_bars([one.gain for one in own]),
            linestyle="none",
            color=look["color"],
            elinewidth=1.0,
            alpha=0.35,
            zorder=2,
        )
        axis.plot(costs, gains, linewidth=0.8, markeredgecolor="white", label=name, **look)
    every = [point for own in points.values() for point in own]
    costs, gains = [one.cost.mean for one in every], [one.gain.mean for one in every]
    front = pareto_front(costs, gains)
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    axis.step(
        [*(costs[index] for index in front[:1]), *(costs[index] for index in front), right],
        [bottom, *(gains[index] for index in front), gains[front[-1]]],
        where="post",
        color="0.85",
        linewidth=5,
        solid_joinstyle="miter",
        zorder=1,
        label="Pareto front",
    )
    axis.set(xlim=(left, right), ylim=(bottom, top))


def _bars(intervals: Sequence[Interval]) -> list[list[float]]:
    return [
        [max(0.0, one.mean - one.low) for one in intervals],
        [max(0.0, one.high - one.mean) for one in intervals],
    ]


def _label_panel(axis: Any, title: str, gain: str) -> None:
    axis.set_title(title, loc="left", fontsize="medium")
    axis.set_ylabel(gain)
    axis.grid(alpha=0.25)


def _finish(figure: Any, rows: Any, entries: Sequence[Evidence], arms: dict[str, Arm]) -> None:
    """Add axis labels and the legend."""
    first = entries[0]
    rows[-1][0].set_xlabel(f"training FLOPs, relative to {first.reference}")
    rows[-1][1].set_xlabel("parameters of the final network")
    handles, names = rows[0][0].get_legend_handles_labels()
    labels = [arms[name].label if name in arms else name for name in names]
    runs = "1 training run" if len(first.runs) == 1 else f"{len(first.runs)} training runs"
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        ncols=2,
        frameon=False,
        alignment="left",
        title=f"{first.task}: {first.n_hosts} held-out hosts, {runs}\n"
        "Bars: 95% intervals of each arm; paired differences have narrower ones.",
    )


VERDICT_COLOURS = {"yes": "#009E73", "no": "#7F7F7F", "worse": "#D55E00"}
"""The colour of a claim by whether it was reached."""


def plot_claims(rows: Sequence[ClaimRow], path: str | os.PathLike[str]) -> None:
    """Save a picture of claims, a bar of its interval for each, in the order of a model card.

    Rows in another unit than the first are left out, as they cannot share its axis.

    Raises:
        ConfigError: If matplotlib is not installed.
        EvidenceError: If there are no rows.
        StorageError: If the file cannot be written.
    """
    if not rows:
        raise EvidenceError("no rows; give at least one claim.")
    shown = choose_rows([row for row in rows if row.unit == rows[0].unit])
    figure = empty_figure(9.0, 1.1 + 0.34 * len(shown))
    axis: Any = figure.subplots()
    for height, row in enumerate(reversed(shown)):
        colour = VERDICT_COLOURS[row.verdict]
        axis.plot(row.interval, [height, height], color=colour, linewidth=3, alpha=0.5)
        axis.plot([row.result], [height], "o", color=colour)
    labels = [
        fill(f"{row.claim.replace('`', '')} against {row.against}", 70) for row in reversed(shown)
    ]
    axis.set_yticks(range(len(shown)), labels, fontsize="xx-small")
    axis.axvline(0.0, color="0.6", linewidth=0.8)
    figure.supxlabel(
        f"controller minus the other, in {rows[0].unit}, with 95% intervals; "
        "green: reached, grey: not shown, orange: worse",
        fontsize="small",
    )
    axis.grid(alpha=0.25, axis="x")
    try:
        with replacing(Path(path)) as temporary:
            figure.savefig(temporary, format="png", dpi=100)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}.") from error


DATA_FILE, TEXT_FILE, CHART_FILE = "evaluation.json", "evaluation.md", "pareto.png"


def save_evidence(entries: Sequence[Evidence], folder: Path) -> list[Path]:
    """Save results at one or more prices, and return the paths written.

    Raises:
        StorageError: If a file cannot be written.
    """
    file = EvidenceFile(entries=tuple(entries))
    paths = [folder / DATA_FILE, folder / TEXT_FILE]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(paths[0], file.to_text())
        write_atomic(paths[1], file_to_markdown(file))
        if find_spec("matplotlib") is not None:
            paths.append(folder / CHART_FILE)
            plot_pareto(entries, paths[-1])
    except OSError as error:
        raise StorageError(f"cannot write {folder}: {error.strerror or error}.") from error
    return paths
