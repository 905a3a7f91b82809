"""Differences with their intervals as a plot in characters, for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from esper.cli.output import can_encode
from esper.statistics import Interval

WIDTH = 80
"""Columns that a plot fits in."""

LEAST_COLUMNS = 20
"""Columns of the plot itself, however long the names are."""

_MARKS = {True: ("─", "├", "┤", "●", "○", "│"), False: ("-", "[", "]", "*", "o", "|")}
"""Line, ends, the dot of a difference that excludes zero and of any other, and zero itself."""


def plot_differences(
    rows: Sequence[tuple[str, Interval, bool]], *, label: Callable[[float], str], width: int = WIDTH
) -> list[str]:
    """Return a line for each difference: its name, its mean, and its interval against zero.

    Args:
        rows: Names, differences, and whether they are shown to differ from zero: a filled dot.
        label: Formats a difference.
        width: Columns that all lines fit in.
    """
    if not rows:
        return []
    line, left, right, sure, unsure, zero = _MARKS[can_encode("".join(_MARKS[True]))]
    means = [label(interval.mean) for _, interval, _ in rows]
    names, numbers = max(len(name) for name, _, _ in rows), max(map(len, means))
    columns = max(LEAST_COLUMNS, width - names - numbers - 4)
    low = min(0.0, *(interval.low for _, interval, _ in rows))
    high = max(0.0, *(interval.high for _, interval, _ in rows))
    span = high - low or 1.0

    def column(value: float) -> int:
        return round((value - low) / span * (columns - 1))

    lines: list[str] = []
    for (name, interval, is_sure), mean in zip(rows, means, strict=True):
        cells = [" "] * columns
        cells[column(0.0)] = zero
        first, last = column(interval.low), column(interval.high)
        cells[first : last + 1] = line * (last + 1 - first)
        if last > first:
            cells[first], cells[last] = left, right
        cells[column(interval.mean)] = sure if is_sure else unsure
        lines.append(f"{name:{names}}  {mean:>{numbers}}  {''.join(cells)}".rstrip())
    return [*lines, " " * (names + numbers + 4) + _axis(low, high, column(0.0), columns, label)]


def _axis(low: float, high: float, zero: int, columns: int, label: Callable[[float], str]) -> str:
    """Return the axis: zero, and both ends where they do not touch it."""
    cells = [" "] * columns
    cells[zero] = "0"
    start, end = label(low), label(high)
    if low < 0.0 and len(start) < zero:
        cells[: len(start)] = start
    if high > 0.0 and zero + 1 < columns - len(end):
        cells[columns - len(end) :] = end
    return "".join(cells).rstrip()
