"""The rule of a race of sizes: which sizes of a model train, and which one is returned.

It sees the validated metric of every size after every epoch, and nothing else. Two sizes train at a
time: first the given one and the widest. If the given one is as good, that is all; otherwise the
widest meets the next smaller one, and so on, as long as the smaller one is as good. Where wide
sizes cost much, because the given model is large, four times as wide comes first, eight times only
after a lead that promises more, and all is decided in half the time. Sizes are compared by their
best epochs so far. A larger size has to stay ahead by more than the tolerance; a smaller one may be
behind, as smaller ones learn more slowly, unless it will hardly catch up. A lead is expected to
change, whenever the number of epochs doubles, as it did the last time: one that has halved halves
again, and one that has grown grows by as much again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FACTORS = (1, 2, 4, 8)
"""How many times as wide as the given model the sizes are."""

TOO_SMALL_FROM, TOO_LARGE_FROM, DECIDED_AT = 0.1, 0.2, 0.4
"""Shares of the epochs after which the smaller of two sizes may stop, the larger one, and after
which one has to."""

MIN_EPOCHS = 2
"""Epochs before which no size stops."""

LARGE_MODEL = 100_000
"""Parameters of a given model from which on a race is shorter: a size stops after half the share of
the epochs, and its widest size is not the first one."""

LARGE_START = 4
"""The first wider size of a large model."""

NEXT_SHARE = 1 / 3
"""Share of its lead over the given size that the next wider size of a large model is expected to
add."""

MAX_LAG = 0.02
"""How far behind a smaller size may be, now or in the end, if the tolerance is less."""

MIN_PROGRESS = 0.1
"""Progress since the start without which the larger size goes on: nothing is known then."""

MAX_MOVE = 0.2
"""Share of the progress so far that may be of the last epoch when the larger size stops."""

Curves = Mapping[int, Sequence[float]]
"""The metric after each epoch of each size, by how many times as wide it is."""


@dataclass(frozen=True, kw_only=True)
class SizeRule:
    """When sizes stop, in a training of so many epochs, and which one wins."""

    epochs: int
    tolerance: float
    is_better_low: bool
    has_scale: bool = True
    """Whether 1 is perfect: differences are points then, and otherwise shares of the metric."""
    is_large: bool = False
    """Whether the given model is large, so that wide sizes cost much."""

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
        sizes = sorted(curves)
        left = [size for size in sizes if curves[size] and size not in lost]
        if not any(curves.values()):
            left = [sizes[0], min(LARGE_START, sizes[-1]) if self.is_large else sizes[-1]]
        elif len(left) == 1 and left[0] > sizes[0] and len(curves[left[0]]) < self.epochs:
            place = sizes.index(left[0])
            wider = [size for size in sizes[place + 1 :] if not curves[size]][:1]
            if wider and self._is_promising(curves[left[0]], curves[sizes[0]]):
                left += wider
            elif sizes[place - 1] not in lost:
                left.append(sizes[place - 1])
        return tuple(sorted({size for size in left if len(curves[size]) < self.epochs}))

    def _is_promising(self, large: Sequence[float], given: Sequence[float]) -> bool:
        """Return whether a size leads by so much that the next wider one may be better still."""
        n_epochs = min(len(large), len(given))
        return NEXT_SHARE * max(self._lead(large[:n_epochs], given[:n_epochs])) > self.tolerance

    def losers(self, curves: Curves, lost: Mapping[int, str], before: float) -> dict[int, str]:
        """Return the size that stops now, and why; not all of those that train.

        Args:
            curves: The metric of each size after each epoch.
            lost: The sizes that have stopped.
            before: The metric before training.
        """
        epoch = max(map(len, curves.values()))
        racing = sorted(s for s, own in curves.items() if s not in lost and len(own) == epoch)
        pace = 0.5 if self.is_large else 1.0
        min_epochs = pace * MIN_EPOCHS
        first = max(min_epochs, TOO_SMALL_FROM * self.epochs)
        if len(racing) < 2 or not first <= epoch < self.epochs:
            return {}
        small, large = racing
        lead, expected = self._lead(curves[large], curves[small])
        is_late = epoch >= max(2 * min_epochs, pace * DECIDED_AT * self.epochs)
        is_behind = min(lead, expected) > max(self.tolerance, MAX_LAG)
        if is_behind or (is_late and expected > self.tolerance):
            return {small: f"x{small} was {self._shown(-lead)} x{large}"}
        is_level = max(lead, expected) < self.tolerance
        is_level &= epoch >= pace * TOO_LARGE_FROM * self.epochs
        if is_late or (is_level and self._is_known([curves[size] for size in racing], before)):
            if lead > self.tolerance:
                return {large: f"x{small} was catching up with x{large}"}
            return {large: f"x{large} was {self._shown(lead)} x{small}"}
        return {}

    def _is_known(self, curves: Sequence[Sequence[float]], before: float) -> bool:
        """Return whether the best size has learned something, and not most of it just now."""
        now, last = (
            self._best([self._best(curve[: len(curve) - n]) for curve in curves]) for n in (0, 1)
        )
        progress = self._gap(now, before)
        return progress >= MIN_PROGRESS and self._gap(now, last) <= MAX_MOVE * progress

    def _lead(self, large: Sequence[float], small: Sequence[float]) -> tuple[float, float]:
        """Return by how much a size leads now, and by how much it is expected to in the end."""
        epoch, missing = len(large), [math.isnan(self._best(each)) for each in (large, small)]
        if any(missing):  # what has no number is far behind
            return (-math.inf, -math.inf) if missing[0] else (math.inf, math.inf)
        now, before = (
            self._gap(self._best(large[:n]), self._best(small[:n]))
            for n in (epoch, max(1, epoch // 2))
        )
        doublings = math.log2(self.epochs / epoch)
        if now < before:
            return now, now * (now / before) ** doublings if now > 0.0 else now
        return now, now + (now - before) * doublings

    def _gap(self, better: float, worse: float) -> float:
        """Return how much better a metric is: in points as shares of 1, or as a share of it."""
        gap = worse - better if self.is_better_low else better - worse
        return gap / max(1.0 if self._has_points else 1e-12, abs(better), abs(worse))

    @property
    def _has_points(self) -> bool:
        return self.has_scale and not self.is_better_low

    def _best(self, curve: Sequence[float]) -> float:
        """Return the best metric of some epochs; NaN without a number."""
        known = [value for value in curve if not math.isnan(value)]
        if not known:
            return math.nan
        return min(known) if self.is_better_low else max(known)

    def _shown(self, lead: float) -> str:
        gap = f"{100.0 * abs(lead):.1f}"
        if float(gap) == 0.0:
            return "level with"
        unit = " points" if self._has_points else "%"
        return f"{gap}{unit} {'ahead of' if lead > 0.0 else 'behind'}"
