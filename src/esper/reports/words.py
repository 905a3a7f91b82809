"""Intervals and probabilities in words and digits, the same wherever they are told."""

from __future__ import annotations

from esper.reports.statistics import Interval


def points(interval: Interval) -> str:
    """Return a difference of scores in points, which are hundredths."""
    mean, low, high = (
        _rounded(100.0 * end) for end in (interval.mean, interval.low, interval.high)
    )
    return f"{mean:+.1f} [{low:.1f}, {high:.1f}] points"


def saving(ratio: Interval) -> Interval:
    """Return the share that is saved, from the ratio of what is left."""
    return Interval(1.0 - ratio.mean, 1.0 - ratio.high, 1.0 - ratio.low, ratio.n)


def change(ratio: Interval, what: str, *, unclear: str = "not shown to differ") -> str:
    """Return how much less or more there is of something, from its ratio, in percent.

    Only a ratio that is shown to differ from one is called less or more.
    """
    saved = saving(ratio)
    if saved.is_below_zero:
        return f"{_percent(-saved.mean, -saved.high, -saved.low)} more {what}"
    fewer = f"{_percent(saved.mean, saved.low, saved.high)} fewer {what}"
    return fewer if saved.is_above_zero else f"{what} {unclear} ({fewer})"


def at_price(price: float, learned_price: float | None = None) -> str:
    """Return at which price something holds and, if it is another, which was learned at."""
    if learned_price is None or learned_price == price:
        return f"at price {price:g}"
    return f"at price {price:g} (learned at price {learned_price:g})"


def too_few(interval: Interval) -> str:
    """Return that an interval is from too few hosts to decide anything."""
    return f"{interval.n} hosts are too few to tell"


def probability(p: float) -> str:
    """Return a probability with three decimals, and never as zero."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def listed(names: list[str]) -> str:
    """Return names as a sentence lists them."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _percent(mean: float, low: float, high: float) -> str:
    digits = 0 if abs(mean) >= 0.01 or mean == 0.0 else 1
    ends = [f"{_rounded(100.0 * end, digits):.{digits}f}" for end in (mean, low, high)]
    return f"{ends[0]}% [{ends[1]}, {ends[2]}]"


def _rounded(value: float, digits: int = 1) -> float:
    """Return a value rounded, zero without a sign."""
    return round(value, digits) + 0.0
