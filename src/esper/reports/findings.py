"""What is shown about one arm against others, from intervals. Shapes: R = runs, N = hosts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.reports.claims import EQUIVALENCE, Claim, Verdict, judge, tell
from esper.reports.evidence import Arm, Kind
from esper.reports.nested import nested_interval, paired_differences, ratio_interval
from esper.reports.robust import interquartile_interval, probability_of_improvement
from esper.reports.significance import holm, p_value
from esper.reports.statistics import Interval
from esper.reports.words import at_price

Floats = NDArray[np.float64]

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
    """Of equal scores; of equal accuracies at equal FLOPs; of being less accurate by 0.5 points
    than the same architecture for as many epochs."""
    corrected_p: float
    """The same with Holm's correction over all comparisons at one price."""
    flops_p: float | None
    """Of as many FLOPs, where fewer are part of the claim: for as many epochs."""
    corrected_flops_p: float | None
    """The same, corrected along with all others."""
    verdict: Verdict
    sentence: str

    @property
    def is_claim(self) -> bool:
        """Whether something was shown in favour of the arm that claims are about."""
        return self.verdict in ("better", "as accurate", "at least as accurate")

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def find_differences(
    own: Arm, others: Sequence[Arm], *, price: float, learned_price: float | None = None
) -> tuple[Finding, ...]:
    """Return what is shown about an arm against each of the others, in their order.

    A claim needs an interval that excludes what would refute it, a p-value below 0.05 after
    correction for the number of comparisons, and enough hosts. Fewer FLOPs than the same
    architecture takes for as many epochs are a comparison of their own.

    Args:
        own: What claims are about.
        others: What it is compared with, on the same hosts.
        price: Of computing, in the score.
        learned_price: What the first arm learned at, told where it is another.
    """
    differences = [_claimed_difference(own, other, price) for other in others]
    p_values = [p_value(difference) for difference in differences]
    saved = [number for number, other in enumerate(others) if other.kind == "same_epochs"]
    p_values += [p_value(paired_differences(own.flops, others[n].flops)) for n in saved]
    corrected, where = holm(p_values), at_price(price, learned_price)
    found: list[Finding] = []
    for number, other in enumerate(others):
        p = p_values[number], corrected[number], None, None
        if number in saved:
            flops = len(others) + saved.index(number)
            p = p_values[number], corrected[number], p_values[flops], corrected[flops]
        found.append(_make_finding(own, other, price=price, where=where, p=p))
    return tuple(found)


def _claimed_difference(own: Arm, other: Arm, price: float) -> Floats:
    """Return ``[R, N]`` how far what the claim against an arm is about is from refuting it."""
    if other.kind in ("same_epochs", "same_flops"):
        margin = EQUIVALENCE if other.kind == "same_epochs" else 0.0
        return paired_differences(own.accuracy, other.accuracy) + margin
    return paired_differences(own.score(price), other.score(price))


def _make_finding(
    own: Arm,
    other: Arm,
    *,
    price: float,
    where: str,
    p: tuple[float, float, float | None, float | None],
) -> Finding:
    """Return what is shown about an arm against another.

    Args:
        own: What claims are about.
        other: What it is compared with.
        price: Of computing.
        where: The price in words.
        p: Of the difference, plain and corrected, and of the FLOPs where they are claimed.
    """
    scores = paired_differences(own.score(price), other.score(price))
    score = nested_interval(scores)
    accuracy = nested_interval(paired_differences(own.accuracy, other.accuracy))
    difference_p, corrected_p, flops_p, corrected_flops_p = p
    claim = Claim(
        kind=other.kind,
        label=other.label,
        where=where,
        run=", for this one training run" if _is_one_run(own, other) else "",
        difference=accuracy if other.kind in ("same_epochs", "same_flops") else score,
        corrected_p=corrected_p,
        flops=_ratio(own.flops, other.flops),
        corrected_flops_p=corrected_flops_p,
        parameters=_ratio(own.parameters, other.parameters),
    )
    verdict = judge(claim)
    return Finding(
        against=other.name,
        label=other.label,
        kind=other.kind,
        score=score,
        accuracy=accuracy,
        flops_ratio=claim.flops,
        parameters_ratio=claim.parameters,
        interquartile=interquartile_interval(scores),
        improvement=probability_of_improvement(own.score(price), other.score(price)),
        p=difference_p,
        corrected_p=corrected_p,
        flops_p=flops_p,
        corrected_flops_p=corrected_flops_p,
        verdict=verdict,
        sentence=tell(claim, verdict),
    )


def _ratio(own: Floats, other: Floats) -> Interval | None:
    return ratio_interval(own, other) if other.mean() > 0.0 else None


def _is_one_run(own: Arm, other: Arm) -> bool:
    return max(own.n_runs, other.n_runs) == 1 and bool({own.kind, other.kind} & FOLLOWS_RUN)
