"""Print rows as one table."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from rows import Ratio, Row


def print_rows(console: Console, rows: list[Row], *, show_all: bool) -> None:
    """Print a table with a section for each call and shape, then the targets that were missed."""
    table = Table(title="one thread unless stated; ratio: median and quartiles over rounds")
    for name in ("what", "compared with", "ours", "other", "ratio", "target", "met"):
        is_figure = name in ("ours", "other", "ratio")
        table.add_column(name, justify="right" if is_figure else "left", no_wrap=is_figure)
    previous = ""
    for row in rows:
        if row.is_detail and not show_all:
            continue
        if row.what != previous:
            table.add_section()
        what = row.what if row.what != previous else ""
        table.add_row(what, *_cells(row))
        previous = row.what
    console.print(table)
    judged = [row for row in rows if row.is_met is not None]
    missed = [row for row in judged if not row.is_met]
    console.print(f"{len(judged) - len(missed)} of {len(judged)} targets met")
    for row in missed:
        console.print(f"  missed: {row.what} against {row.other}")


def _cells(row: Row) -> tuple[str, ...]:
    ours = _figure(row, row.ours_seconds)
    if row.ratio is None or row.other_seconds is None:
        return row.other, ours, "", row.note, _target(row), "not measured" if row.limit else ""
    word = "faster" if row.kind is Ratio.SPEEDUP else "the time"
    low, high = number(row.ratio.low), number(row.ratio.high)
    ratio = f"{number(row.ratio.median)}x {word} [{low}-{high}]"
    verdict = {True: "[green]yes", False: "[red]no", None: ""}[row.is_met]
    # Square brackets are markup to rich unless escaped.
    return (
        row.other,
        ours,
        _figure(row, row.other_seconds),
        ratio.replace("[", r"\["),
        _target(row),
        verdict,
    )


def _figure(row: Row, seconds: float) -> str:
    return duration(seconds) if row.per_call is None else f"{number(row.per_call / seconds)} /s"


def _target(row: Row) -> str:
    if row.limit is None:
        return ""
    sign = "at least" if row.kind is Ratio.SPEEDUP else "at most"
    return f"{sign} {row.limit:g}x"


def number(value: float) -> str:
    """Format a number with three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def duration(seconds: float) -> str:
    """Format seconds in a fitting unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{number(seconds / scale)} {unit}"
    return f"{number(seconds / 1e-6)} µs"
