"""What can be claimed against an arm of each kind, when it is shown, and in which words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from esper.reports.evidence import Kind
from esper.reports.statistics import Interval
from esper.reports.words import change, points, probability, saving, too_few

LEVEL = 0.05
"""Corrected p-values below this allow a claim."""
EQUIVALENCE = 0.005
"""Accuracies whose difference is shown to be smaller than this are as good as each other."""
FLOPS_SLACK = 0.02
"""Share by which FLOPs may be above the other's and still be called equal."""
PARAMETERS_SLACK = 0.05
"""Share by which parameters may differ and still be called as many."""

Verdict = Literal["better", "worse", "as accurate", "at least as accurate", "not shown"]

MARGIN = f"{100 * EQUIVALENCE:g} points"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a claim against one arm rests on."""

    kind: Kind
    """What the other arm is."""
    label: str
    """The other arm in words."""
    where: str
    """What the claim is restricted to, such as "at price 0.2"."""
    run: str
    """", for this one training run" if it is about that only, else nothing."""
    difference: Interval
    """Of score; of accuracy against the same architecture."""
    corrected_p: float
    """Of the difference."""
    flops: Interval | None
    """FLOPs as a share of the other's; None if the other has none."""
    corrected_flops_p: float | None
    """Of as many FLOPs, where fewer are part of the claim."""
    parameters: Interval | None
    """Parameters as a share of the other's; None if the other has none."""

    @property
    def is_sure(self) -> bool:
        """Whether the difference is more than chance among so many."""
        return self.corrected_p < LEVEL and self.difference.is_from_enough

    @property
    def is_small(self) -> bool:
        """Whether the whole interval of the difference is within the margin."""
        return self.difference.low > -EQUIVALENCE and self.difference.high < EQUIVALENCE

    @property
    def has_fewer_flops(self) -> bool:
        """Whether FLOPs are shown to be fewer, by interval and corrected p-value."""
        if self.flops is None or self.corrected_flops_p is None:
            return False
        return saving(self.flops).is_above_zero and self.corrected_flops_p < LEVEL

    @property
    def has_equal_flops(self) -> bool:
        """Whether the whole interval of FLOPs is at most a little above the other's."""
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
        """Whether the other arm has as much as its kind says of what it is to share."""
        if self.kind == "same_flops":
            return self.has_equal_flops
        return self.kind != "same_parameters" or self.has_equal_parameters


def judge(claim: Claim) -> Verdict:
    """Return what is shown; what is worse needs no equal FLOPs or parameters."""
    if claim.kind == "same_epochs":
        if claim.is_sure and claim.difference.high < -EQUIVALENCE:
            return "worse"
        return _accuracy(claim) if claim.has_fewer_flops else "not shown"
    if not (claim.is_sure and claim.difference.excludes_zero):
        return "not shown"
    if claim.difference.is_below_zero:
        return "worse"
    return "better" if claim.is_of_equals else "not shown"


def tell(claim: Claim, verdict: Verdict) -> str:
    """Return a sentence of what was asked, the answer, and what it follows from."""
    if claim.kind == "same_epochs":
        return _tell_same_epochs(claim, verdict)
    equal = " at equal FLOPs" if claim.kind == "same_flops" else ""
    where = "" if equal else f" {claim.where}"
    asked = f"{'worse' if verdict == 'worse' else 'better'}{equal} than {claim.label}{where}"
    spread = points(claim.difference)
    answer = {"better": f"yes, {spread}", "worse": spread}.get(verdict, f"not shown, {spread}")
    if verdict == "not shown":
        answer = _doubt(claim) if not claim.is_sure else answer
    return f"{asked}{claim.run}: {answer}{_inequality(claim, verdict)}"


def _accuracy(claim: Claim) -> Verdict:
    """Return what is shown about accuracy alone, against the same architecture."""
    if claim.is_sure and claim.is_small:
        return "as accurate"
    return (
        "at least as accurate" if claim.is_sure and claim.difference.is_above_zero else "not shown"
    )


def _tell_same_epochs(claim: Claim, verdict: Verdict) -> str:
    what, spread = f"{claim.label} for as many epochs", points(claim.difference)
    flops = "" if claim.flops is None else f"with {change(claim.flops, 'FLOPs')}"
    if verdict == "worse":
        return f"less accurate than {what}{claim.run}: {spread}{flops and f', {flops}'}"
    within = f"within {MARGIN} ({spread.removesuffix(' points')})"
    if verdict != "not shown":
        answer = within if verdict == "as accurate" else spread
        return f"{verdict} as {what}, {flops}{claim.run}: yes, {answer}"
    asked = f"as accurate as {what}, with fewer FLOPs{claim.run}"
    shown = _accuracy(claim)
    if shown == "not shown":
        return f"{asked}: {_doubt(claim)}{flops and f', {flops}'}"
    answer = f"as accurate {within}" if shown == "as accurate" else f"{shown} ({spread})"
    but = flops or "the other took no FLOPs"
    if claim.flops is not None and saving(claim.flops).is_above_zero:
        assert claim.corrected_flops_p is not None, "fewer FLOPs are part of this claim"
        but += f", whose p corrected for all comparisons is {probability(claim.corrected_flops_p)}"
    return f"{asked}: not shown, {answer}, but {but}"


def _doubt(claim: Claim) -> str:
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


def _inequality(claim: Claim, verdict: Verdict) -> str:
    """Return by how much the other arm has not as much as its kind says; nothing if it has."""
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
