"""Results of controllers in the terminal: the verdict, a plot of differences and a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from esper.cli.output import can_encode, print_table, print_wrapped
from esper.formatting import many, signed_points

if TYPE_CHECKING:
    from esper.results.evidence import Evidence
    from esper.results.findings import Finding
    from esper.statistics import Interval

SHOWN = ("arm", "return", "difference, points", "score", "FLOPs", "parameters")
"""Columns of the results table that are printed; files have all of them."""

WIDTH = 80
"""Columns that the plot of differences fits in."""

MIN_COLUMNS = 20
"""Columns of the plot itself, however long the names are."""

_MARKS = {True: ("─", "├", "┤", "●", "○", "│"), False: ("-", "[", "]", "*", "o", "|")}
"""Line, ends, the dot of a difference that is shown and of any other, and zero itself."""


def show_evidence(evidence: Evidence, *, heading: bool = False, verbose: bool = False) -> None:
    """Print the verdict and the results table for one price.

    Args:
        evidence: The results.
        heading: Whether to print the price above them.
        verbose: Whether to print the table, each comparison in words, the method and the tuned
            settings.
    """
    from esper.results.sentences import comparison_sentences, verdict_sentences

    if heading:
        print(f"At price {evidence.price:g}:\n")
    for number, sentence in enumerate(verdict_sentences(evidence)):
        print("\n" if number else "", end="")
        print_wrapped(sentence)
    _show_plot(evidence)
    if verbose:
        _show_table(evidence)
        print()
        for sentence in (*comparison_sentences(evidence), *evidence.notes):
            print_wrapped(sentence, first="- ", indent="  ")
        print()
    _show_facts(evidence, verbose=verbose)


def _show_plot(evidence: Evidence) -> None:
    """Print the differences of return as a plot, those to the best arms first."""
    from esper.results.arms import LABELS, NO_GROWTH
    from esper.results.findings import weigh

    def name(one: Finding) -> str:
        name = LABELS[NO_GROWTH] if one.against == NO_GROWTH else one.against
        return f"{name}, tuned" if one.kind == "tuned" else name

    found = sorted(weigh(evidence), key=lambda one: one.returns.mean)
    rows = [(name(one), one.returns, one.is_sure_difference) for one in found]
    hosts = f"{evidence.n_hosts} held-out hosts"
    print(f"\nReturn on {hosts} in points, {evidence.own.name} minus each:\n")
    print("\n".join(plot_differences(rows)))
    if not all(is_sure for _, _, is_sure in rows):
        hollow = _MARKS[can_encode("".join(_MARKS[True]))][4]
        compared = many(len(rows), "comparison")
        print(f"\n{hollow} no clear difference, after correction for {compared}")
        print("  (marks are corrected, intervals are not)")
    print()


def plot_differences(rows: Sequence[tuple[str, Interval, bool]]) -> list[str]:
    """Return a line for each difference: its name, its mean in points, its interval against zero.

    Args:
        rows: Names, differences, and whether they are shown to differ from zero: a filled dot.
    """
    if not rows:
        return []
    line, left, right, sure, unsure, zero = _MARKS[can_encode("".join(_MARKS[True]))]
    means = [signed_points(interval.mean) for _, interval, _ in rows]
    names, numbers = max(len(name) for name, _, _ in rows), max(map(len, means))
    columns = max(MIN_COLUMNS, WIDTH - names - numbers - 4)
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
    return [*lines, " " * (names + numbers + 4) + _axis(low, high, column(0.0), columns)]


def _axis(low: float, high: float, zero: int, columns: int) -> str:
    """Return the axis: zero, and both ends where they do not touch it."""
    cells = [" "] * columns
    cells[zero] = "0"
    start, end = signed_points(low), signed_points(high)
    if low < 0.0 and len(start) < zero:
        cells[: len(start)] = start
    if high > 0.0 and zero + 1 < columns - len(end):
        cells[columns - len(end) :] = end
    return "".join(cells).rstrip()


def _show_table(evidence: Evidence) -> None:
    """Print the main columns of the results table; intervals only of the differences."""
    from esper.results.tables import results_table

    table = results_table(evidence)
    rows = [[row[table.headers.index(name)] for name in SHOWN] for row in table.rows]
    for row in rows:
        row[SHOWN.index("return")] = row[SHOWN.index("return")].partition(" [")[0]
    print_table([SHOWN, *rows])


def _show_facts(evidence: Evidence, *, verbose: bool) -> None:
    """Print how the results were measured, and the settings of arms."""
    from esper.results.tables import facts, settings_table

    print_wrapped(" ".join(facts(evidence, is_full_table=False)[: None if verbose else 2]))
    rules = {arm.name for arm in evidence.others if arm.kind == "learned"}  # growth rules differ
    for name, setting in settings_table(evidence).rows:
        if verbose or name in rules:
            print_wrapped(f"{name}: {setting}.", first="- ", indent="  ")
