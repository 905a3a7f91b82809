"""The timeline of a growing model as an SVG image for notebooks.

It needs neither matplotlib nor JavaScript, and takes its text colour from the page, so that it can
be read on light and dark ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from esper.formatting import since_epoch
from esper.reports.run_figures import LEAST_HEIGHT, STAGE_COLOURS

WIDTH, LEFT, RIGHT = 780, 150, 84
"""Widths in pixels: of the image, of the names of slots, and of the last values."""
SCORE_HEIGHT, LANE_HEIGHT, SIZE_HEIGHT, GAP = 130, 40, 34, 12
BAR_HEIGHT = 18.0
"""Height of a bar whose alpha is 1; the name of the seed stands above it."""
MOST_LETTERS = 22
"""Letters of a slot's name that fit beside its lane."""
GRID = "rgba(128,128,128,.35)"
BEST_COLOUR, SIZE_COLOUR = "#d55e00", "#009e73"


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What a model was like from one epoch to another."""

    start: int
    end: int
    epoch: int
    """The epoch of the score."""
    score: float
    slot: str
    """The slot that something was done to at the start; empty for none."""
    blueprint: str
    """What germinated; empty for none."""
    is_kept: bool
    """Whether the seed of the slot was fossilized."""
    stages: Mapping[str, str]
    alphas: Mapping[str, float]
    seed_parameters: int


def timeline_svg(moments: Sequence[Moment], n_epochs: int) -> str:
    """Return the score, the seeds of each slot and the grown parameters, by epoch.

    Args:
        moments: All moments, in order.
        n_epochs: Epochs of the budget.
    """
    if not moments:
        return ""
    lanes = list(dict.fromkeys(slot for one in moments for slot in one.stages))
    axis = _Axis(max(n_epochs, moments[-1].end, 1))
    parts, top = [_score(moments, axis)], SCORE_HEIGHT + GAP
    for slot in lanes:
        parts.append(_lane(slot, moments, axis, top))
        top += LANE_HEIGHT
    if lanes:
        parts.append(_size(moments, axis, top + GAP))
        top += GAP + SIZE_HEIGHT
    parts.append(_ticks(axis, top))
    top += 40
    shown = {stage for one in moments for stage in one.stages.values()}
    if shown:
        parts.append(_legend([stage for stage in STAGE_COLOURS if stage in shown], top))
        top += 18
    return (
        f'<svg viewBox="0 0 {WIDTH} {top + 4}" role="img" fill="currentColor" '
        f'style="width:{WIDTH}px;max-width:100%;font-size:11px;display:block;margin:.6em 0">'
        "<title>Score, seeds of each slot and grown parameters by epoch</title>"
        f"{''.join(parts)}</svg>"
    )


@dataclass(frozen=True)
class _Axis:
    """Places epochs in the image."""

    n_epochs: int

    def at(self, epoch: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * epoch / self.n_epochs


def _score(moments: Sequence[Moment], axis: _Axis) -> str:
    moments = [one for one in moments if math.isfinite(one.score)]
    if not moments:
        return ""
    scores = [one.score for one in moments]
    low, high = min(scores), max(scores)
    room = (high - low) or 1.0
    top, height = 18.0, SCORE_HEIGHT - 22.0

    def y(score: float) -> float:
        return top + height * (1.0 - (score - low) / room)

    points = " ".join(f"{axis.at(one.epoch):.1f},{y(one.score):.1f}" for one in moments)
    best, last = max(moments, key=lambda one: one.score), moments[-1]
    parts = [
        _line(LEFT, y(value), WIDTH - RIGHT, y(value))
        + _text(LEFT - 6, y(value) + 4, f"{value:.3g}")
        for value in dict.fromkeys((low, high))
    ]
    parts += [
        _text(LEFT - 6, top + height / 2 + 4, "validation score"),
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.6"/>',
        *(
            f'<circle cx="{axis.at(one.epoch):.1f}" cy="{y(one.score):.1f}" r="2">'
            f"<title>{since_epoch(one.epoch)}: score {one.score:.4g}</title></circle>"
            for one in moments
        ),
        f'<circle cx="{axis.at(best.epoch):.1f}" cy="{y(best.score):.1f}" r="4" '
        f'fill="{BEST_COLOUR}"/>',
        _text(axis.at(best.epoch), y(best.score) - 7, f"best {best.score:.4g}", anchor="middle"),
    ]
    if last is not best:
        place = axis.at(last.epoch) + 8, y(last.score) + 4
        parts.append(_text(*place, f"{last.score:.4g}", anchor="start"))
    return "".join(parts)


def _lane(slot: str, moments: Sequence[Moment], axis: _Axis, top: float) -> str:
    """Return a lane: a bar for each moment of a seed, as high as its alpha."""
    bottom = top + LANE_HEIGHT - 5.0
    name = slot if len(slot) <= MOST_LETTERS else f"…{slot[1 - MOST_LETTERS :]}"
    parts = [
        _line(LEFT, bottom, WIDTH - RIGHT, bottom),
        _text(LEFT - 6, bottom - 4, name, title=slot),
    ]
    kept = [one.start for one in moments if one.is_kept and one.slot == slot]
    for one in moments:
        stage, start, width = one.stages.get(slot), axis.at(one.start), one.end - one.start
        if stage is not None and width:
            alpha = one.alphas.get(slot, 0.0)
            height = BAR_HEIGHT * min(1.0, max(LEAST_HEIGHT, alpha))
            parts.append(
                f'<rect x="{start:.1f}" y="{bottom - height:.1f}" height="{height:.1f}" '
                'shape-rendering="crispEdges" '
                f'width="{axis.at(one.end) - start:.1f}" fill="{STAGE_COLOURS.get(stage, GRID)}">'
                f"<title>epoch {one.end}: {escape(stage)}, alpha {alpha:.2g}</title></rect>"
            )
        if one.blueprint and one.slot == slot:
            parts.append(_line(start, top + 6, start, bottom, colour="currentColor"))
            parts.append(_text(start + 3, bottom - BAR_HEIGHT - 5, one.blueprint, anchor="start"))
    if kept:
        parts.append(
            f'<rect x="{axis.at(kept[0]):.1f}" y="{bottom:.1f}" height="3" fill="{SIZE_COLOUR}" '
            f'width="{axis.at(moments[-1].end) - axis.at(kept[0]):.1f}"/>'
            + _text(WIDTH - RIGHT + 8, bottom, f"{len(kept)} kept", anchor="start")
        )
    return "".join(parts)


def _size(moments: Sequence[Moment], axis: _Axis, top: float) -> str:
    most, bottom = max(one.seed_parameters for one in moments) or 1, top + SIZE_HEIGHT
    points = [f"{axis.at(moments[0].start):.1f},{bottom:.1f}"]
    for one in moments:
        y = bottom - (SIZE_HEIGHT - 4.0) * one.seed_parameters / most
        points += [f"{axis.at(one.start):.1f},{y:.1f}", f"{axis.at(one.end):.1f},{y:.1f}"]
    points.append(f"{axis.at(moments[-1].end):.1f},{bottom:.1f}")
    last = moments[-1].seed_parameters
    return (
        _text(LEFT - 6, bottom - 4, "grown parameters")
        + f'<polygon points="{" ".join(points)}" fill="{SIZE_COLOUR}" fill-opacity=".45"/>'
        + _text(WIDTH - RIGHT + 8, bottom - 4, f"{last:,}", anchor="start")
    )


def _ticks(axis: _Axis, top: float) -> str:
    step = next(s for s in _steps() if axis.n_epochs / s <= 10)
    marks = range(0, axis.n_epochs + 1, step)
    labels = "".join(
        _line(axis.at(epoch), top, axis.at(epoch), top + 4)
        + _text(axis.at(epoch), top + 15, f"{epoch}", anchor="middle")
        for epoch in marks
    )
    middle = axis.at(axis.n_epochs / 2)
    return (
        _line(LEFT, top, WIDTH - RIGHT, top) + labels + _text(middle, top + 28, "epoch", "middle")
    )


def _steps() -> Iterable[int]:
    for size in range(12):
        yield from (factor * 10**size for factor in (1, 2, 5))


def _legend(stages: Sequence[str], top: float) -> str:
    parts: list[str] = []
    x = float(LEFT)
    for stage in stages:
        parts.append(
            f'<rect x="{x:.0f}" y="{top - 1:.0f}" width="10" height="10" '
            f'fill="{STAGE_COLOURS[stage]}"/>' + _text(x + 14, top + 8, stage, anchor="start")
        )
        x += 28 + 6.2 * len(stage)
    return "".join(parts)


def _line(x1: float, y1: float, x2: float, y2: float, *, colour: str = GRID) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        'stroke-width="1"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "end", *, title: str = "") -> str:
    about = f"<title>{escape(title)}</title>" if title else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{about}{escape(text)}</text>'
