"""Numbers, intervals and durations as text, and tables as HTML for notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from esper.statistics import Interval


def points(interval: Interval) -> str:
    """Return a difference of scores in points, which are hundredths, with its interval."""
    low, high = _rounded(100.0 * interval.low), _rounded(100.0 * interval.high)
    return f"{signed_points(interval.mean)} [{low:.1f}, {high:.1f}] points"


def signed_points(difference: float) -> str:
    """Return a difference of scores in points with its sign; what rounds to zero is ``+0.0``."""
    return f"{_rounded(100.0 * difference):+.1f}"


def saving(ratio: Interval) -> Interval:
    """Return one minus a ratio: the share saved."""
    return replace(ratio, mean=1.0 - ratio.mean, low=1.0 - ratio.high, high=1.0 - ratio.low)


def change(ratio: Interval, what: str) -> str:
    """Return a ratio as text: ``12% [8, 16] fewer parameters``."""
    saved = saving(ratio)
    if saved.mean < 0.0:
        text = f"{_percent(-saved.mean, -saved.high, -saved.low)} more {what}"
    else:
        text = f"{_percent(saved.mean, saved.low, saved.high)} fewer {what}"
    return text if saved.excludes_zero else f"{what} not shown to differ ({text})"


def too_few(interval: Interval) -> str:
    """Return the message for an interval from too few hosts."""
    return f"{interval.n} hosts are too few to tell"


def probability(p: float) -> str:
    """Return a p-value with three decimals, never as zero."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def listed(names: list[str]) -> str:
    """Join names: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _percent(mean: float, low: float, high: float) -> str:
    digits = 0 if abs(mean) >= 0.01 or mean == 0.0 else 1
    ends = [f"{_rounded(100.0 * end, digits):.{digits}f}" for end in (mean, low, high)]
    return f"{ends[0]}% [{ends[1]}, {ends[2]}]"


def _rounded(value: float, digits: int = 1) -> float:
    """Round a value, without negative zero."""
    return round(value, digits) + 0.0


UNKNOWN = "-"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with a fixed number of decimals, or a dash for None."""
    return UNKNOWN if value is None else f"{value:z.{digits}f}"


def plain_number(value: float, digits: int = 4) -> str:
    """Return a number with a few significant digits and no exponent: ``0.9722``, ``12,340``."""
    if not math.isfinite(value):
        return str(value)
    return f"{Decimal(f'{value:.{digits}g}'):,f}"


def large_number(value: float) -> str:
    """Return a large number in words: ``790 million``."""
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= size:
            return f"{plain_number(value / size, 3)} {name}"
    return f"{value:,.0f}"


def whole(value: float | None) -> str:
    """Return a count with thousands separators, or a dash for None."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def share(value: float) -> str:
    """Return a share in percent; only exact values are shown as 0% or 100%."""
    if 0.0 < value < 0.005:
        return "less than 1%"
    return "more than 99%" if 0.995 <= value < 1.0 else f"{value:.0%}"


def many(count: int, thing: str) -> str:
    """Return a count with its noun: ``1 round``, ``2,000 rounds``."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def since_epoch(n_epochs: int) -> str:
    """Return when something was decided: ``after epoch 3``, or ``before epoch 1`` for 0 epochs."""
    return f"after epoch {n_epochs}" if n_epochs else "before epoch 1"


def span(first: int, last: int) -> str:
    """Return a range of rounds: ``rounds 1 to 10``."""
    return f"round {first}" if first == last else f"rounds {first} to {last}"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: ``2 h 5 min``, ``6 min 52 s``, ``9 s``."""
    total = max(0, round(seconds))
    hours, minutes = divmod(total // 60, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {total % 60} s" if minutes else f"{total} s"


def clock_text(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds: ``1:05`` or ``2:00:07``."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def moment(stamp: str) -> str:
    """Return an ISO 8601 time to the minute: ``2030-01-02 03:04 UTC``."""
    return f"{datetime.fromisoformat(stamp).astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def array_text(array: Tensor | NDArray[Any]) -> str:
    """Return the dtype and shape of a tensor or array: ``float32 [60, 4]``."""
    sizes = ", ".join(map(str, array.shape))
    return f"{str(array.dtype).removeprefix('torch.')} [{sizes}]"


FEW_LETTERS = 16
"""Letters up to which words of a column are not broken into lines."""

_CELL = "padding:2px 10px;border-bottom:1px solid rgba(128,128,128,.35)"


def text_table(rows: Sequence[Sequence[str]], *, n_left: int = 1) -> str:
    """Return a heading and rows in aligned columns, the first ones on the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < n_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


# Colours are inherited, so that a table can be read on light and dark pages.


def html_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, n_left: int) -> str:
    """Return a table as HTML that needs no style sheet; all text is escaped.

    Args:
        headers: Headings of the columns.
        rows: Cells, as text.
        n_left: Number of left-aligned columns, which hold words; the others hold numbers.
    """
    all_rows = list(rows)
    styles = [
        ("text-align:left" if number < n_left else "text-align:right")
        + (";white-space:nowrap" * (number >= n_left or max(map(len, column)) <= FEW_LETTERS))
        for number, column in enumerate(zip(headers, *all_rows, strict=True))
    ]

    def row(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f'<{tag} style="{_CELL};{style}">{escape(cell)}</{tag}>'
            for cell, style in zip(cells, styles, strict=True)
        )

    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in all_rows)
    head = f"<thead><tr>{row(headers, 'th')}</tr></thead>"
    return (
        f'<div style="overflow-x:auto"><table style="border-collapse:collapse">'
        f"{head}<tbody>{body}</tbody></table></div>"
    )


def without_empty(
    headers: Sequence[str], rows: Iterable[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of a table without columns that say nothing."""
    all_rows = list(rows)
    kept = [
        number
        for number in range(len(headers))
        if any(row[number] not in ("", UNKNOWN) for row in all_rows)
    ]
    return [headers[n] for n in kept], [[row[n] for n in kept] for row in all_rows]


def html_lines(sentences: Iterable[str], *, is_headed: bool = False) -> str:
    """Return sentences as HTML, one per line; all text is escaped.

    Args:
        sentences: The sentences.
        is_headed: Whether the first one is the conclusion, which is shown in bold.
    """
    lines = [escape(sentence) for sentence in sentences]
    if is_headed and lines:
        lines[0] = f"<b>{lines[0]}</b>"
    return f'<p style="margin:.4em 0">{"<br>".join(lines)}</p>' if lines else ""


def html_details(summary: str, html: str) -> str:
    """Return HTML that is folded away until its summary is clicked."""
    return f'<details><summary style="cursor:pointer">{escape(summary)}</summary>{html}</details>'
