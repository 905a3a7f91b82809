"""Result rows: what was compared, the figures, and whether the target was met."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from timing import Spread, Timings


class Ratio(Enum):
    """What a ratio divides by what, and whether its target is a minimum or a maximum."""

    SPEEDUP = "other / ours, at least"
    COST = "ours / other, at most"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison."""

    group: str
    """The benchmark, as named by ``--only``."""

    what: str
    """Our call and its shape."""

    other: str
    """What it is compared with."""

    kind: Ratio
    ours_seconds: float
    other_seconds: float | None = None
    ratio: Spread | None = None
    """None if the other could not be timed; ``note`` says why."""

    per_call: int | None = None
    """Items that one call processes; if given, the table shows items per second."""

    samples: int = 0
    """Number of rounds in which both were timed."""

    limit: float | None = None
    """The target; None for a row that only informs."""

    is_detail: bool = False
    """Whether the row is printed only with ``--all``."""

    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the target was met; None without a target or a comparison."""
        if self.limit is None or self.ratio is None:
            return None
        if self.kind is Ratio.SPEEDUP:
            return self.ratio.median >= self.limit
        return self.ratio.median <= self.limit


def compare(
    timings: Timings,
    ours: str,
    other: str,
    *,
    group: str,
    kind: Ratio,
    limit: float | None = None,
    is_detail: bool = False,
    label: str | None = None,
    per_call: int | None = None,
) -> Row:
    """Return the row for two candidates that were timed together; ``label`` renames the other."""
    pair = (other, ours) if kind is Ratio.SPEEDUP else (ours, other)
    return Row(
        group=group,
        what=ours,
        other=label or other,
        kind=kind,
        ours_seconds=timings.seconds(ours),
        other_seconds=timings.seconds(other),
        ratio=timings.ratio(*pair),
        samples=min(timings.n_samples(ours), timings.n_samples(other)),
        limit=limit,
        is_detail=is_detail,
        per_call=per_call,
    )


def missing_row(
    timings: Timings,
    ours: str,
    other: str,
    *,
    group: str,
    kind: Ratio,
    limit: float | None = None,
    note: str,
) -> Row:
    """Return the row for a candidate that could not be timed; ``note`` says why."""
    return Row(
        group=group,
        what=ours,
        other=other,
        kind=kind,
        ours_seconds=timings.seconds(ours),
        limit=limit,
        note=note,
    )
