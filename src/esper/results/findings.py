"""The comparison of two results: intervals, corrected p-values and what they show.

A claim needs an interval that excludes what would refute it, a p-value below 0.05 after correction
for the number of comparisons, and enough hosts. Anything else is not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

from esper.arrays import Floats
from esper.formatting import saving
from esper.results.arms import NO_GROWTH, Arm, Kind
from esper.results.evidence import Evidence
from esper.statistics import (
    Interval,
    holm,
    interquartile_interval,
    nested_interval,
    p_value,
    paired_differences,
    paired_interval,
    probability_of_improvement,
    ratio_interval,
)

LEVEL = 0.05
"""A claim needs a corrected p-value below this."""
EQUIVALENCE = 0.005
"""Scores that are shown to differ by less than this count as equal."""
FLOPS_SLACK = 0.02
"""FLOPs may exceed the other's by this share and still count as equal."""

OF_SCORE: frozenset[Kind] = frozenset({"same_epochs", "same_flops"})
"""Kinds of arms that are compared in score, because their epochs or FLOPs are equal."""

Verdict = Literal["better", "worse", "as good", "not shown"]
"""What a comparison shows; "as good" is as high a score with fewer FLOPs."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The difference between two arms on the same hosts."""

    against: str
    """Name of the other arm."""
    label: str
    """The other arm in words."""
    kind: Kind
    """Kind of the other arm."""
    returns: Interval
    score: Interval
    flops_ratio: Interval | None
    """FLOPs as a share of the other's; None if the other has none."""
    interquartile: Interval
    """Interquartile mean of the differences of return."""
    improvement: Interval
    """How often the return is above the other's; ties count half."""
    p: float
    """p-value of equal returns; at equal FLOPs, of equal scores; against the same size from
    scratch for as many epochs, of a score lower by 0.5 points."""
    corrected_p: float
    """``p`` with Holm's correction over all comparisons at one price."""
    flops_p: float | None
    """p-value of equal FLOPs, where fewer FLOPs are part of the claim."""
    corrected_flops_p: float | None
    """``flops_p``, corrected along with all others."""
    growth_p: float | None
    """p-value of equal scores against no growth, which is the claim that growth helped."""
    corrected_growth_p: float | None
    """``growth_p``, corrected along with all others."""

    @property
    def difference(self) -> Interval:
        """The difference that the claim is about, of return or score."""
        return self.score if self.kind in OF_SCORE else self.returns

    @property
    def is_sure(self) -> bool:
        """Whether the difference is significant and from enough hosts."""
        return self.corrected_p < LEVEL and self.difference.is_from_enough

    @property
    def is_as_high(self) -> bool:
        """Whether the difference is within the margin of equivalence, or above zero."""
        difference = self.difference
        is_small = difference.low > -EQUIVALENCE and difference.high < EQUIVALENCE
        return is_small or difference.is_above_zero

    @property
    def is_gain_sure(self) -> bool:
        """Whether the score differs from that of no growth, over all hosts and after correction."""
        p = self.corrected_growth_p
        return p is not None and p < LEVEL and self.score.excludes_zero

    @property
    def saves_flops(self) -> bool:
        """Whether the interval of FLOPs lies below the other's."""
        return self.flops_ratio is not None and saving(self.flops_ratio).is_above_zero

    @property
    def has_equal_flops(self) -> bool:
        """Whether the whole interval of FLOPs is at most slightly above the other's."""
        return self.flops_ratio is not None and self.flops_ratio.high <= 1.0 + FLOPS_SLACK

    @property
    def verdict(self) -> Verdict:
        """What is shown; "worse" does not require equal FLOPs."""
        if self.kind == "same_epochs":
            if self.is_sure and self.difference.high < -EQUIVALENCE:
                return "worse"
            p = self.corrected_flops_p
            is_cheaper = self.saves_flops and p is not None and p < LEVEL
            return "as good" if self.is_sure and self.is_as_high and is_cheaper else "not shown"
        if not (self.is_sure and self.difference.excludes_zero):
            return "not shown"
        if self.difference.is_below_zero:
            return "worse"
        return "not shown" if self.kind == "same_flops" and not self.has_equal_flops else "better"

    @property
    def is_sure_difference(self) -> bool:
        """Whether a difference of return is shown."""
        return self.verdict != "not shown" and self.returns.excludes_zero

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        shown = {"verdict": self.verdict, "is_sure": self.is_sure_difference}
        return asdict(self) | shown


def find_differences(own: Arm, others: Sequence[Arm]) -> tuple[Finding, ...]:
    """Return what is shown about an arm against each of the others, in their order.

    Fewer FLOPs than the same size from scratch for as many epochs, and a higher score than no
    growth, count as comparisons of their own.

    Args:
        own: The arm that claims are about.
        others: The arms to compare it with, on the same hosts.
    """
    tested: dict[tuple[str, str], float] = {}
    for other in others:
        tested["claim", other.name] = p_value(_claimed_difference(own, other))
        if other.kind == "same_epochs":
            tested["flops", other.name] = p_value(paired_differences(own.flops, other.flops))
        if other.name == NO_GROWTH:
            tested["growth", other.name] = p_value(paired_differences(own.score, other.score))
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return tuple(_find_difference(own, other, tested, corrected) for other in others)


def _find_difference(
    own: Arm,
    other: Arm,
    tested: Mapping[tuple[str, str], float],
    corrected: Mapping[tuple[str, str], float],
) -> Finding:
    """Return what is shown against one arm, given the p-values of all claims."""
    returns = paired_differences(own.returns, other.returns)
    is_ratio = other.flops.mean() > 0.0
    return Finding(
        against=other.name,
        label=other.label,
        kind=other.kind,
        returns=nested_interval(returns),
        score=paired_interval(own.score, other.score),
        flops_ratio=ratio_interval(own.flops, other.flops) if is_ratio else None,
        interquartile=interquartile_interval(returns),
        improvement=probability_of_improvement(own.returns, other.returns),
        p=tested["claim", other.name],
        corrected_p=corrected["claim", other.name],
        flops_p=tested.get(("flops", other.name)),
        corrected_flops_p=corrected.get(("flops", other.name)),
        growth_p=tested.get(("growth", other.name)),
        corrected_growth_p=corrected.get(("growth", other.name)),
    )


def _claimed_difference(own: Arm, other: Arm) -> Floats:
    """Return the differences ``[R, N]`` whose mean must not be zero for a claim against an arm."""
    if other.kind in OF_SCORE:
        margin = EQUIVALENCE if other.kind == "same_epochs" else 0.0
        return paired_differences(own.score, other.score) + margin
    return paired_differences(own.returns, other.returns)


@lru_cache(maxsize=32)
def weigh(evidence: Evidence) -> tuple[Finding, ...]:
    """Return what is shown about the learned arm against each other arm, in their order."""
    return find_differences(evidence.own, evidence.others)
