"""Intervals and probabilities in words and digits, the same wherever they are told."""

from __future__ import annotations

from datetime import UTC, datetime

from esper.statistics import Interval


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


UNKNOWN = "-"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with so many digits after the point; a dash if there is none."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def whole(value: float | None) -> str:
    """Return a count with commas between thousands; a dash if there is none."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def signed_points(difference: float) -> str:
    """Return a difference of scores in points, which are hundredths, never as minus zero."""
    return f"{round(100.0 * difference, 1) + 0.0:+.1f} points"


def share(value: float) -> str:
    """Return a share in percent; one that is not zero is not shown as zero, nor as all."""
    if 0.0 < value < 0.005:
        return "less than 1%"
    return "more than 99%" if 0.995 <= value < 1.0 else f"{value:.0%}"


def many(count: int, thing: str) -> str:
    """Return a number of things: ``1 round``, ``2,000 rounds``."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def span(first: int, last: int) -> str:
    """Return rounds from one to another in words."""
    return f"round {first}" if first == last else f"rounds {first} to {last}"


def duration(seconds: float) -> str:
    """Return a time in the two units that matter: ``2 h 5 min``, ``6 min 52 s``, ``9 s``."""
    total = max(0, round(seconds))
    hours, minutes = divmod(total // 60, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {total % 60} s" if minutes else f"{total} s"


def memory(n_bytes: float) -> str:
    """Return an amount of memory: ``612 MB``, ``1.2 GB``."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"


def moment(stamp: str) -> str:
    """Return a time that is recorded in ISO 8601, to the minute: ``2030-01-02 03:04 UTC``."""
    return f"{datetime.fromisoformat(stamp).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
