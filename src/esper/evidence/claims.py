"""Claims: what can be claimed against each kind of arm, when, and in which words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Literal

from esper.arrays import Floats
from esper.evidence.results import Arm, Evidence, Kind
from esper.formatting import at_price, change, listed, points, probability, saving, too_few
from esper.statistics import (
    Interval,
    holm,
    interquartile_interval,
    nested_interval,
    p_value,
    paired_differences,
    probability_of_improvement,
    ratio_interval,
)
from esper.training.comparison import SELDOM, Outcome, verdict_sentence

LEVEL = 0.05
"""A claim needs a corrected p-value below this."""
EQUIVALENCE = 0.005
"""Accuracies that are shown to differ by less than this count as equal."""
FLOPS_SLACK = 0.02
"""FLOPs may exceed the other's by this share and still count as equal."""
PARAMETERS_SLACK = 0.05
"""Parameters may differ by this share and still count as equal."""

Verdict = Literal["better", "worse", "as accurate", "at least as accurate", "not shown"]

MARGIN = f"{100 * EQUIVALENCE:g} points"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The evidence for a claim against one arm."""

    kind: Kind
    """Kind of the other arm."""
    label: str
    """The other arm in words."""
    where: str
    """What the claim is restricted to, such as "at price 0.2"."""
    run: str
    """", for this one training run" if the claim is only about that, else empty."""
    difference: Interval
    """Difference of score, or of accuracy against the same architecture."""
    corrected_p: float
    """Corrected p-value of the difference."""
    flops: Interval | None
    """FLOPs as a share of the other's; None if the other has none."""
    corrected_flops_p: float | None
    """Corrected p-value of equal FLOPs, where fewer FLOPs are part of the claim."""
    parameters: Interval | None
    """Parameters as a share of the other's; None if the other has none."""

    @property
    def is_sure(self) -> bool:
        """Whether the difference is significant and from enough hosts."""
        return self.corrected_p < LEVEL and self.difference.is_from_enough

    @property
    def is_small(self) -> bool:
        """Whether the whole interval of the difference is within the margin of equivalence."""
        return self.difference.low > -EQUIVALENCE and self.difference.high < EQUIVALENCE

    @property
    def has_fewer_flops(self) -> bool:
        """Whether FLOPs are shown to be fewer, by interval and corrected p-value."""
        if self.flops is None or self.corrected_flops_p is None:
            return False
        return saving(self.flops).is_above_zero and self.corrected_flops_p < LEVEL

    @property
    def has_equal_flops(self) -> bool:
        """Whether the whole interval of FLOPs is at most slightly above the other's."""
        return self.flops is not None and self.flops.high <= 1.0 + FLOPS_SLACK

    @property
    def has_equal_parameters(self) -> bool:
        """Whether the whole interval of parameters is close to the other's."""
        ratio = self.parameters
        if ratio is None:
            return False
        return ratio.low >= 1.0 - PARAMETERS_SLACK and ratio.high <= 1.0 + PARAMETERS_SLACK

    @property
    def is_of_equals(self) -> bool:
        """Whether both arms have equal FLOPs or parameters, if the other's kind requires it."""
        if self.kind == "same_flops":
            return self.has_equal_flops
        return self.kind != "same_parameters" or self.has_equal_parameters


def judge(claim: Claim) -> Verdict:
    """Return what is shown; "worse" does not require equal FLOPs or parameters."""
    if claim.kind == "same_epochs":
        if claim.is_sure and claim.difference.high < -EQUIVALENCE:
            return "worse"
        return _judge_accuracy(claim) if claim.has_fewer_flops else "not shown"
    if not (claim.is_sure and claim.difference.excludes_zero):
        return "not shown"
    if claim.difference.is_below_zero:
        return "worse"
    return "better" if claim.is_of_equals else "not shown"


def claim_sentence(claim: Claim, verdict: Verdict) -> str:
    """Return a sentence with the question, the answer and the numbers behind it."""
    if claim.kind == "same_epochs":
        return _same_epochs_sentence(claim, verdict)
    equal = " at equal FLOPs" if claim.kind == "same_flops" else ""
    where = "" if equal else f" {claim.where}"
    asked = f"{'worse' if verdict == 'worse' else 'better'}{equal} than {claim.label}{where}"
    spread = points(claim.difference)
    answer = {"better": f"yes, {spread}", "worse": spread}.get(verdict, f"not shown, {spread}")
    if verdict == "not shown":
        answer = _not_shown(claim) if not claim.is_sure else answer
    return f"{asked}{claim.run}: {answer}{_unequal_resources(claim, verdict)}"


def _judge_accuracy(claim: Claim) -> Verdict:
    """Return what is shown about accuracy alone, against the same architecture."""
    if claim.is_sure and claim.is_small:
        return "as accurate"
    return (
        "at least as accurate" if claim.is_sure and claim.difference.is_above_zero else "not shown"
    )


def _same_epochs_sentence(claim: Claim, verdict: Verdict) -> str:
    what, spread = f"{claim.label} for as many epochs", points(claim.difference)
    flops = "" if claim.flops is None else f"with {change(claim.flops, 'FLOPs')}"
    if verdict == "worse":
        return f"less accurate than {what}{claim.run}: {spread}{flops and f', {flops}'}"
    within = f"within {MARGIN} ({spread.removesuffix(' points')})"
    if verdict != "not shown":
        answer = within if verdict == "as accurate" else spread
        return f"{verdict} as {what}, {flops}{claim.run}: yes, {answer}"
    asked = f"as accurate as {what}, with fewer FLOPs{claim.run}"
    shown = _judge_accuracy(claim)
    if shown == "not shown":
        return f"{asked}: {_not_shown(claim)}{flops and f', {flops}'}"
    answer = f"as accurate {within}" if shown == "as accurate" else f"{shown} ({spread})"
    but = flops or "the other took no FLOPs"
    if claim.flops is not None and saving(claim.flops).is_above_zero:
        assert claim.corrected_flops_p is not None, "fewer FLOPs are part of this claim"
        but += f", whose p corrected for all comparisons is {probability(claim.corrected_flops_p)}"
    return f"{asked}: not shown, {answer}, but {but}"


def _not_shown(claim: Claim) -> str:
    """Return why a difference shows nothing."""
    spread = points(claim.difference)
    if not claim.difference.is_from_enough:
        return f"not shown, {too_few(claim.difference)}, {spread}"
    is_tie = claim.kind == "same_epochs" and claim.is_small
    if claim.corrected_p >= LEVEL and (claim.difference.is_above_zero or is_tie):
        chance = f"p corrected for all comparisons is {probability(claim.corrected_p)}"
        return f"not shown, {spread}, but {chance}"
    beyond = f", which is not within {MARGIN}" if claim.kind == "same_epochs" else ""
    return f"not shown, {spread}{beyond}"


def _unequal_resources(claim: Claim, verdict: Verdict) -> str:
    """Return by how much FLOPs or parameters that should be equal differ; empty if they do not."""
    what = {"same_flops": "FLOPs", "same_parameters": "parameters"}.get(claim.kind)
    ratio = claim.flops if what == "FLOPs" else claim.parameters
    if what is None:
        return ""
    but = "but " if verdict == "not shown" and not claim.is_of_equals else ""
    if ratio is None:
        return f", {but}the other has no {what}"
    slack = FLOPS_SLACK if what == "FLOPs" else PARAMETERS_SLACK
    if ratio.low >= 1.0 - slack and ratio.high <= 1.0 + slack:
        return ""
    return f", {but}with {change(ratio, what, unclear='not shown to be equal')}"


OF_ACCURACY: frozenset[Kind] = frozenset({"same_epochs", "same_flops"})
"""Kinds of arms that are compared in accuracy, because their epochs or FLOPs are equal."""

FOLLOWS_RUN: frozenset[Kind] = frozenset(
    {"learned", "same_epochs", "same_flops", "same_parameters", "ablation"}
)
"""Kinds of arms whose results depend on training runs."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The difference between two arms on the same hosts, and the claim that it supports."""

    against: str
    """Name of the other arm."""
    label: str
    """The other arm in words."""
    kind: Kind
    """Kind of the other arm."""
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
    """p-value of equal scores; at equal FLOPs, of equal accuracies; against the same architecture
    for as many epochs, of being less accurate by 0.5 points."""
    corrected_p: float
    """``p`` with Holm's correction over all comparisons at one price."""
    flops_p: float | None
    """p-value of equal FLOPs, where fewer FLOPs are part of the claim."""
    corrected_flops_p: float | None
    """``flops_p``, corrected along with all others."""
    verdict: Verdict
    sentence: str

    @property
    def difference(self) -> Interval:
        """The difference that the claim is about, of score or accuracy."""
        return self.accuracy if self.kind in OF_ACCURACY else self.score

    @property
    def is_claim(self) -> bool:
        """Whether something was shown in favor of the arm that claims are about."""
        return self.verdict in ("better", "as accurate", "at least as accurate")

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        return asdict(self)


def is_sure_difference(score: Interval, verdict: str) -> bool:
    """Return whether a difference of score is shown, corrected for the number of comparisons."""
    return verdict != "not shown" and score.excludes_zero


def find_differences(
    own: Arm, others: Sequence[Arm], *, price: float, learned_price: float | None = None
) -> tuple[Finding, ...]:
    """Return what is shown about an arm against each of the others, in their order.

    A claim needs an interval that excludes what would refute it, a p-value below 0.05 after
    correction for the number of comparisons, and enough hosts. Fewer FLOPs than the same
    architecture for as many epochs count as a comparison of their own.

    Args:
        own: The arm that claims are about.
        others: The arms to compare it with, on the same hosts.
        price: Price of FLOPs in the score.
        learned_price: Price that the first arm learned at, mentioned if it differs.
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
    """Return the differences ``[R, N]`` whose mean must not be zero for a claim against an arm."""
    if other.kind in OF_ACCURACY:
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
        own: The arm that claims are about.
        other: The arm to compare it with.
        price: Price of FLOPs in the score.
        where: The price in words.
        p: p-values of the difference, plain and corrected, and of the FLOPs if they are claimed.
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
        difference=accuracy if other.kind in OF_ACCURACY else score,
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
        sentence=claim_sentence(claim, verdict),
    )


def _ratio(own: Floats, other: Floats) -> Interval | None:
    return ratio_interval(own, other) if other.mean() > 0.0 else None


def _is_one_run(own: Arm, other: Arm) -> bool:
    return max(own.n_runs, other.n_runs) == 1 and bool({own.kind, other.kind} & FOLLOWS_RUN)


@lru_cache(maxsize=32)
def weigh(evidence: Evidence) -> tuple[Finding, ...]:
    """Return what is shown about the learned arm against each other arm, in their order."""
    return find_differences(
        evidence.own,
        evidence.others,
        price=evidence.price,
        learned_price=evidence.learned_price,
    )


def verdict_sentences(evidence: Evidence) -> tuple[str, ...]:
    """Return the verdict.

    First comes the strongest opponent, then whether the controller grows at all, how many arms it
    beats, and the arms one by one.
    """
    findings = weigh(evidence)
    found = [headline(evidence, findings), *(f"{_capital(one.sentence)}." for one in findings)]
    share = float(evidence.own.grown_share.mean())
    if share < SELDOM:
        found.insert(
            0,
            f"{_capital(evidence.own.label)} hardly grows: it committed a seed in {share:.1%} of "
            "hosts, so nothing it wins comes from growth.",
        )
    return (*strongest_sentence(evidence, findings), *found)


def strongest_sentence(evidence: Evidence, findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return a sentence about the opponent with the highest mean score, if there is any.

    The controller itself with something removed is no opponent.
    """
    opponents = [one for one in findings if one.kind != "ablation"]
    if not opponents:
        return ()
    strongest = min(opponents, key=lambda one: one.score.mean)
    outcome: Outcome = "not shown"
    if strongest.verdict in ("better", "worse"):
        outcome = strongest.verdict
    elif strongest.is_claim:
        outcome = "as good"
    elif not strongest.difference.is_from_enough:
        outcome = "too few"
    measured = "score" if strongest.difference is strongest.score else "accuracy"
    return (
        verdict_sentence(
            _capital(evidence.own.label),
            strongest.label,
            outcome,
            n_opponents=len(opponents),
            difference=f"{measured} {points(strongest.difference)} {_where(evidence)}",
        ),
    )


def _where(evidence: Evidence) -> str:
    """Return the price, and whether the claims are about one training run only."""
    at = at_price(evidence.price, evidence.learned_price)
    is_one = evidence.own.n_runs == 1 and evidence.own.kind == "learned"
    return f"{at}, for this one training run" if is_one else at


def headline(evidence: Evidence, findings: Sequence[Finding]) -> str:
    """Return how many of the tuned arms the learned arm is shown to beat."""
    at = _where(evidence)
    tuned = [one for one in findings if one.kind == "tuned"]
    counted, what = (tuned, "tuned arms") if tuned else (findings, "arms, none of them tuned,")
    better = [one.label for one in counted if one.verdict == "better"]
    worse = [one.label for one in findings if one.verdict == "worse"]
    own = _capital(evidence.own.label)
    if not any(one.is_claim for one in findings):
        verdict = f"Nothing was shown: {evidence.own.label} is not shown to be better than any of "
        verdict += f"{len(findings)} arms {at}"
    elif not better:
        verdict = f"{own} is not shown to be better than any of {len(counted)} {what} {at}"
    else:
        verdict = f"{own} is shown to be better than {len(better)} of {len(counted)} {what} {at}"
    if worse:
        verdict += (
            f"; it is worse than {listed(worse) if len(worse) <= 3 else f'{len(worse)} arms'}"
        )
    return f"{verdict}."


def verdict_json(evidence: Evidence) -> dict[str, Any]:
    """Return the verdict as plain values: sentences and the findings behind them."""
    return {
        "price": evidence.price,
        "sentences": list(verdict_sentences(evidence)),
        "findings": [one.to_json() for one in weigh(evidence)],
    }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
