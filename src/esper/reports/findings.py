"""What is shown about one arm against others, from intervals. Shapes: R = runs, N = hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from esper.reports.evidence import Arm, Kind
from esper.reports.nested import nested_interval, paired_differences, ratio_interval
from esper.reports.robust import interquartile_interval, probability_of_improvement
from esper.reports.significance import holm, p_value
from esper.reports.statistics import Interval
from esper.reports.words import change, points, probability, too_few

Floats = NDArray[np.float64]

LEVEL = 0.05
"""Corrected p-values below this allow a claim."""
EQUIVALENCE = 0.005
"""Accuracies whose difference is shown to be smaller than this are as good as each other."""

Verdict = Literal["better", "worse", "as accurate", "at least as accurate", "not shown"]

FOLLOWS_RUN: frozenset[Kind] = frozenset(
    {"learned", "same_epochs", "same_flops", "same_parameters", "ablation"}
)
"""Kinds of arms whose results are those of training runs."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One arm's results minus another's on the same hosts, and the claim that they support."""

    against: str
    """Name of the other arm."""
    label: str
    """The other arm in words."""
    kind: Kind
    """What the other arm is."""
    score: Interval
    accuracy: Interval
    flops_ratio: Interval | None
    """FLOPs as a share of the other's; None if the other has none."""
    parameters_ratio: Interval | None
    """Parameters as a share of the other's; None if the other has none."""
    interquartile: Interval
    """Interquartile mean of the differences of score."""
    improvement: Interval
    """How often the score is above the other's; ties count half."""
    p: float
    """Of the claim: of equal scores, of equal accuracies at equal FLOPs, or of being less accurate
    than the same architecture by 0.5 points."""
    corrected_p: float
    """The same with Holm's correction over all arms."""
    verdict: Verdict
    sentence: str

    @property
    def is_claim(self) -> bool:
        """Whether something was shown in favour of the arm that claims are about."""
        return self.verdict in ("better", "as accurate", "at least as accurate")

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def find_differences(own: Arm, others: Sequence[Arm], *, price: float) -> tuple[Finding, ...]:
    """Return what is shown about an arm against each of the others, in their order.

    A claim needs an interval that excludes what would refute it, a p-value below 0.05 after
    correction for the number of others, and enough hosts.
    """
    claims = [_claimed_difference(own, other, price) for other in others]
    p_values = [_p_value(claim, other.kind) for claim, other in zip(claims, others, strict=True)]
    return tuple(
        _make_finding(own, other, nested_interval(claim), price=price, p=p, corrected_p=corrected)
        for other, claim, p, corrected in zip(others, claims, p_values, holm(p_values), strict=True)
    )


def _claimed_difference(own: Arm, other: Arm, price: float) -> Floats:
    """Return the differences ``[R, N]`` of what the claim against an arm is about."""
    if other.kind in ("same_epochs", "same_flops"):
        return paired_differences(own.accuracy, other.accuracy)
    return paired_differences(own.score(price), other.score(price))


def _p_value(claim: Floats, kind: Kind) -> float:
    if kind != "same_epochs":
        return p_value(claim)
    return p_value(claim + EQUIVALENCE) if claim.mean() > -EQUIVALENCE else 1.0


def _make_finding(
    own: Arm, other: Arm, claim: Interval, *, price: float, p: float, corrected_p: float
) -> Finding:
    scores = own.score(price), other.score(price)
    verdict = _judge(claim, corrected_p, other.kind)
    flops = _ratio(own.flops, other.flops)
    sentence = _claim_in_words(verdict, other, price, is_one_run=_is_one_run(own, other))
    sentence += f": {_reason(verdict, claim, corrected_p, other.kind)}"
    if other.kind == "same_epochs" and flops is not None:
        sentence += f", with {change(flops, 'FLOPs')}"
    return Finding(
        against=other.name,
        label=other.label,
        kind=other.kind,
        score=nested_interval(paired_differences(*scores)),
        accuracy=nested_interval(paired_differences(own.accuracy, other.accuracy)),
        flops_ratio=flops,
        parameters_ratio=_ratio(own.parameters, other.parameters),
        interquartile=interquartile_interval(paired_differences(*scores)),
        improvement=probability_of_improvement(*scores),
        p=p,
        corrected_p=corrected_p,
        verdict=verdict,
        sentence=sentence,
    )


def _ratio(own: Floats, other: Floats) -> Interval | None:
    return ratio_interval(own, other) if other.mean() > 0.0 else None


def _judge(claim: Interval, corrected_p: float, kind: Kind) -> Verdict:
    is_sure = corrected_p < LEVEL and claim.is_from_enough
    if kind == "same_epochs":
        if is_sure and _is_small(claim):
            return "as accurate"
        if is_sure and claim.is_above_zero:
            return "at least as accurate"
        return "worse" if claim.is_below_zero and claim.high < -EQUIVALENCE else "not shown"
    if is_sure and claim.excludes_zero:
        return "better" if claim.is_above_zero else "worse"
    return "not shown"


def _is_small(claim: Interval) -> bool:
    return claim.low > -EQUIVALENCE and claim.high < EQUIVALENCE


def _claim_in_words(verdict: Verdict, other: Arm, price: float, *, is_one_run: bool) -> str:
    """Return what was asked about another arm; what is worse is asked as that."""
    if other.kind == "same_epochs":
        words = "less accurate than" if verdict == "worse" else f"{verdict} as"
        words = "as accurate as" if verdict == "not shown" else words
        asked = f"{words} {other.label}"
    else:
        words = "worse" if verdict == "worse" else "better"
        equal = " at equal FLOPs" if other.kind == "same_flops" else ""
        asked = f"{words}{equal} than {other.label}"
        asked += "" if equal else f" at price {price:g}"
    return f"{asked}, for this one training run" if is_one_run else asked


def _reason(verdict: Verdict, claim: Interval, corrected_p: float, kind: Kind) -> str:
    """Return the answer with the interval that it follows from."""
    spread, margin = points(claim), f"{100 * EQUIVALENCE:g} points"
    if verdict == "as accurate":
        return f"yes, within {margin} ({spread.removesuffix(' points')})"
    if verdict == "worse":
        return spread
    if verdict != "not shown":
        return f"yes, {spread}"
    if not claim.is_from_enough:
        return f"not shown, {too_few(claim)}, {spread}"
    if claim.is_above_zero or (kind == "same_epochs" and _is_small(claim)):
        chance = f"p corrected for all comparisons is {probability(corrected_p)}"
        return f"not shown, {spread}, but {chance}"
    beyond = f", which is not within {margin}" if kind == "same_epochs" else ""
    return f"not shown, {spread}{beyond}"


def _is_one_run(own: Arm, other: Arm) -> bool:
    return max(own.n_runs, other.n_runs) == 1 and bool({own.kind, other.kind} & FOLLOWS_RUN)
