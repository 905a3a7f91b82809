"""The rows of the result: what was compared, the figures, the reach that is asked, and whether it
was reached."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from timing import Spread, Timings


class Asked(Enum):
    """In which sense a ratio is given, and bounded."""

    FASTER = "other / ours, at least"
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

    asked: Asked
    ours_seconds: float
    other_seconds: float | None = None
    ratio: Spread | None = None
    """None if there is nothing to compare with; ``note`` says why."""

    per_call: int | None = None
    """How many things one call does; the table then shows how many a second, not seconds."""

    samples: int = 0
    """Rounds in which both were timed."""

    limit: float | None = None
    """The reach that is asked; None for a row that is there to inform."""

    is_detail: bool = False
    """Whether only ``--all`` prints it."""

    note: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the reach was reached; None if none is asked or nothing was compared."""
        if self.limit is None or self.ratio is None:
            return None
        if self.asked is Asked.FASTER:
            return self.ratio.median >= self.limit
        return self.ratio.median <= self.limit


def compare(
    timings: Timings,
    ours: str,
    other: str,
    *,
    group: str,
    asked: Asked,
    limit: float | None = None,
    is_detail: bool = False,
    label: str | None = None,
    per_call: int | None = None,
) -> Row:
    """Return the row of two candidates timed side by side; the label renames the other."""
    pair = (other, ours) if asked is Asked.FASTER else (ours, other)
    return Row(
        group=group,
        what=ours,
        other=label or other,
        asked=asked,
        ours_seconds=timings.seconds(ours),
        other_seconds=timings.seconds(other),
        ratio=timings.ratio(*pair),
        samples=min(timings.n_samples(ours), timings.n_samples(other)),
        limit=limit,
        is_detail=is_detail,
        per_call=per_call,
    )


def absent(
    timings: Timings,
    ours: str,
    other: str,
    *,
    group: str,
    asked: Asked,
    limit: float | None = None,
    note: str,
) -> Row:
    """Return the row of something that could not be timed, saying why."""
    return Row(
        group=group,
        what=ours,
        other=other,
        asked=asked,
        ours_seconds=timings.seconds(ours),
        limit=limit,
        note=note,
    )
