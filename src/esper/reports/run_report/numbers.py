"""Numbers of a report as a person reads them."""

from __future__ import annotations

from datetime import UTC, datetime

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
