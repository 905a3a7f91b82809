"""The rule of a race of sizes: which sizes of a model go on, and which one is returned.

It sees the validated metric of every size after every epoch, and nothing else, and compares sizes
by their best epochs so far. A larger size has to stay ahead by more than the tolerance; a smaller
one may be behind, as smaller ones learn more slowly, unless it will hardly catch up: it is expected
to gain as much as it has gained, and more, whenever the number of epochs doubles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

FACTORS = (1, 2, 4, 8)
"""How many times as wide as the given model the sizes are."""

TOO_LARGE_FROM, TOO_SMALL_FROM = 1 / 12, 1 / 8
"""Shares of the epochs after which larger and smaller sizes may stop."""

MIN_EPOCHS = 2
"""Epochs before which no size stops."""

MAX_LAG = 2.0
"""Tolerances that a smaller size may be behind, now or in the end."""

MIN_LAG = 0.02
"""How far behind a smaller size may be whatever the tolerance."""

CATCHING_UP = 2.0
"""How much of what a lead has shrunk since half as many epochs it is expected to shrink again."""

DRAWING_AWAY = 0.5
"""The same of a lead that has grown."""

MIN_PROGRESS = 0.1
"""Progress since the start without which no larger size stops: nothing is known then."""

MAX_MOVE = 0.2
"""Share of the progress so far that may be of the last epoch when a larger size stops."""

Curves = Mapping[int, Sequence[float]]
"""The metric after each epoch of each size, by how many times as wide it is."""


@dataclass(frozen=True, kw_only=True)
class SizeRule:
    """When sizes stop, in a training of so many epochs, and which one wins."""

    epochs: int
    tolerance: float
    is_better_low: bool

    def choose(self, curves: Curves) -> int:
        """Return the smallest size whose best epoch is within the tolerance of the best one."""
        best = {size: self._best(curve) for size, curve in curves.items()}
        known = {size: value for size, value in best.items() if not math.isnan(value)}
        if not known:
            return min(best)
        top = self._best(list(known.values()))
        return min(size for size, value in known.items() if self._gap(top, value) <= self.tolerance)

    def due(self, curves: Curves, lost: Mapping[int, str]) -> tuple[int, ...]:
        """Return the sizes that train in the next epoch; none when the race is over."""
        return tuple(
            size for size, curve in curves.items() if size not in lost and len(curve) < self.epochs
        )

    def losers(self, curves: Curves, lost: Mapping[int, str], before: float) -> dict[int, str]:
        """Return the sizes that stop now, and why; not all of those that train.

        Args:
            curves: The metric of each size after each epoch.
            lost: The sizes that have stopped.
            before: The metric before training.
        """
        epoch = max(map(len, curves.values()))
        racing = sorted(s for s, own in curves.items() if s not in lost and len(own) == epoch)
        found: dict[int, str] = {}
        if epoch < MIN_EPOCHS or epoch >= self.epochs:
            return found
        may_lag = max(MAX_LAG * self.tolerance, MIN_LAG)
        for small, large in combinations(racing, 2):
            lead, expected = self._lead(curves[large], curves[small])
            if epoch >= TOO_SMALL_FROM * self.epochs and min(lead, expected) > may_lag:
                found[small] = f"x{small} was {self._shown(lead)} behind x{large}"
        is_known = self._is_known([curves[size] for size in racing], before)
        if epoch >= TOO_LARGE_FROM * self.epochs and is_known:
            found |= self._find_large(curves, [size for size in racing if size not in found])
        if len(found) < len(racing):
            return found
        leader = self.choose({size: curves[size] for size in racing})
        return {size: why for size, why in found.items() if size != leader}

    def _find_large(self, curves: Curves, racing: Sequence[int]) -> dict[int, str]:
        """Return sizes that are too close to a smaller one that still trains, and why."""
        found: dict[int, str] = {}
        for small, large in combinations(racing, 2):
            lead, expected = self._lead(curves[large], curves[small])
            if small not in found and not max(lead, expected) >= self.tolerance:
                gap = f"{self._shown(abs(lead))} {'ahead of' if lead > 0.0 else 'behind'}"
                found[large] = f"x{large} was {gap} x{small}"
        return found

    def _is_known(self, curves: Sequence[Sequence[float]], before: float) -> bool:
        """Return whether the best size has learned something, and not most of it just now."""
        now, last = (
            self._best([self._best(curve[: len(curve) - n]) for curve in curves]) for n in (0, 1)
        )
        progress = self._gap(now, before)
        return progress >= MIN_PROGRESS and self._gap(now, last) <= MAX_MOVE * progress

    def _lead(self, large: Sequence[float], small: Sequence[float]) -> tuple[float, float]:
        """Return by how much a size leads now, and by how much it is expected to in the end."""
        epoch = len(large)
        now, before = (
            self._gap(self._best(large[:n]), self._best(small[:n]))
            for n in (epoch, max(1, epoch // 2))
        )
        factor = CATCHING_UP if now < before else DRAWING_AWAY
        return now, now + factor * (now - before) * math.log2(self.epochs / epoch)

    def _gap(self, better: float, worse: float) -> float:
        """Return how much better a metric is: in points as shares of 1, or as a share of it."""
        if self.is_better_low:
            return (worse - better) / max(abs(better), abs(worse), 1e-12)
        return (better - worse) / max(1.0, abs(better), abs(worse))

    def _best(self, curve: Sequence[float]) -> float:
        """Return the best metric of some epochs; NaN without a number."""
        known = [value for value in curve if not math.isnan(value)]
        if not known:
            return math.nan
        return min(known) if self.is_better_low else max(known)

    def _shown(self, gap: float) -> str:
        return f"{100.0 * gap:.1f}%" if self.is_better_low else f"{100.0 * gap:.1f} points"
