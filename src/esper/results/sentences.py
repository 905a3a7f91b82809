"""What results show, in words: the one place that turns intervals into sentences."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from esper.formatting import change, listed, many, points, probability, too_few
from esper.results.arms import NO_GROWTH, Arm
from esper.results.evidence import Evidence
from esper.results.findings import (
    EQUIVALENCE,
    FLOPS_SLACK,
    LEVEL,
    OF_SCORE,
    Finding,
    weigh,
)
from esper.statistics import nested_interval, paired_interval

SELDOM = 0.05
"""A controller that grows a smaller share of hosts than this hardly grows."""
AS_TAUGHT = "The compared controller is that of round 0: as taught, before any round of PPO."
"""The note on a run that no round of PPO improved."""
MARGIN = f"{100 * EQUIVALENCE:g} points"

_PHRASES = {
    "better": "better",
    "worse": "worse",
    "as good": "as good with fewer FLOPs",
    "not shown": "no clear difference",
}


def verdict_sentences(evidence: Evidence) -> tuple[str, ...]:
    """Return the verdict on the learned arm.

    First comes whether growth helped, then the best baseline, and how many baselines are beaten.
    """
    findings = [one for one in weigh(evidence) if one.kind != "ablation"]
    if not findings:
        return (f"{capital(evidence.own.label)} was not compared with any baseline.",)
    growth, best = growth_sentence(evidence), best_baseline_sentence(evidence, findings)
    found = [growth, best] if growth else [best]
    if not growth and evidence.own.kind == "learned" and evidence.own.grown_share < SELDOM:
        found.append(
            f"{capital(evidence.own.label)} hardly grows: it grew {evidence.own.grown_share:.1%} "
            "of hosts, so none of its gain comes from growth."
        )
    found += [count_sentence(findings)] if len(findings) > 1 else []
    return tuple(f"{one.removesuffix('.')}{_unfinished(evidence)}." for one in found)


def _unfinished(evidence: Evidence) -> str:
    """Return what is wrong with training runs, with a leading space; empty if nothing is."""
    return f" ({'; '.join(evidence.unfinished)})" if evidence.unfinished else ""


def best_baseline_sentence(evidence: Evidence, findings: list[Finding]) -> str:
    """Return how the learned arm compares with the baseline that has the highest return."""
    best = min(findings, key=lambda one: one.returns.mean)
    difference, own = best.difference, evidence.own
    is_one_run = own.n_runs == 1 and own.kind == "learned"
    others = "others" if any(one.kind == "learned" for one in findings) else "baselines"
    among = f", the best of {len(findings)} {others}" if len(findings) > 1 else ""
    if not evidence.arm(best.against).n_epochs.any():
        among += ", which does not train at all"
    facts = [
        f"{_measure(best)} {points(difference)}",
        where(evidence),
        _reason(best) if best.verdict == "not shown" else "",
        "one training run; other seeds may differ" if is_one_run else "",
    ]
    return (
        f"{capital(own.label)} against {best.label}{among}: {_PHRASES[best.verdict]} "
        f"({'; '.join(filter(None, facts))})."
    )


def count_sentence(findings: list[Finding]) -> str:
    """Return how many baselines the learned arm is shown to beat, of several tuned ones if any."""
    tuned = [one for one in findings if one.kind == "tuned"]
    what = "other" if any(one.kind == "learned" for one in findings) else "baseline"
    counted, what = (tuned, "tuned baseline") if len(tuned) > 1 else (findings, what)
    n_better = sum(one.verdict == "better" for one in counted)
    worse = [one.label for one in findings if one.verdict == "worse"]
    but = listed(worse) if len(worse) <= 3 else f"{len(worse)} of them"
    sentence = f"It beats {n_better or 'none'} of {many(len(counted), what)}"
    return f"{sentence} and loses to {but}." if worse else f"{sentence}."


def comparison_sentences(evidence: Evidence) -> tuple[str, ...]:
    """Return a line about each other arm: the difference, and what it shows."""
    return tuple(
        finding_sentence(one, where(evidence)) + _unfinished(evidence) for one in weigh(evidence)
    )


def finding_sentence(finding: Finding, at: str) -> str:
    """Return the numbers of a comparison and what they show.

    Args:
        finding: The comparison.
        at: The price in words.
    """
    at = "" if finding.kind in OF_SCORE else at  # their epochs or FLOPs are what is equal
    numbers = f"{_measure(finding)} {points(finding.difference)}"
    if finding.kind in OF_SCORE:
        ratio = finding.flops_ratio
        if ratio is None:
            numbers += ", the other took no FLOPs"
        elif finding.kind == "same_epochs" or not (
            ratio.low >= 1.0 - FLOPS_SLACK and finding.has_equal_flops
        ):
            numbers += f", {change(ratio, 'FLOPs')}"
    why = _reason(finding)
    against = " ".join(filter(None, ("vs", finding.label, at)))
    return f"{against}: {numbers}, {finding.verdict}{why and f' ({why})'}"


def _reason(finding: Finding) -> str:
    """Return why nothing, or no more, is shown; empty where the numbers say so."""
    difference = finding.difference
    if finding.verdict != "not shown":
        return f"within {MARGIN}" if finding.verdict == "as good" else ""
    if not difference.is_from_enough:
        return too_few(difference)
    is_claimed = difference.excludes_zero
    if finding.kind == "same_epochs":
        is_claimed = finding.is_as_high or difference.high < -EQUIVALENCE
        if not is_claimed:
            return f"not within {MARGIN}"
    if is_claimed and finding.corrected_p >= LEVEL:
        return f"p {probability(finding.corrected_p)} after correction for all comparisons"
    p = finding.corrected_flops_p
    if p is not None and finding.saves_flops and p >= LEVEL:
        return f"p of the FLOPs {probability(p)} after correction for all comparisons"
    if finding.kind == "same_epochs":
        return "no fewer FLOPs"
    return "unequal FLOPs" if finding.kind == "same_flops" and is_claimed else ""


def growth_sentence(evidence: Evidence) -> str:
    """Return whether growth helped, judged by the scores of all hosts; empty if not measured.

    Hosts whose seeds were kept are those that growth happened to help, so they prove nothing.
    """
    against = next((one for one in weigh(evidence) if one.against == NO_GROWTH), None)
    if against is None:
        return ""
    own, plain = evidence.own, evidence.arm(NO_GROWTH)
    n_grown = int((own.grown_parameters.max(0) > 0.0).sum())
    were = "was" if n_grown == 1 else "were"
    counted = f"{n_grown} of {many(evidence.n_hosts, 'host')} {were} grown"
    facts = f"score {points(against.score)} with {_compute(own, plain)}"
    why = _return_without_growth(against, own, plain) if own.grown_share < SELDOM else ""
    if not n_grown:
        return f"No host was grown: {facts} ({why})."
    if why:
        return f"Growth was too rare to tell: {facts} ({counted}; {why})."
    return f"{_growth_verdict(against)}: {facts} ({counted}{_growth_reason(against)})."


def _growth_verdict(against: Finding) -> str:
    """Return whether growth helped, in words, given the comparison with no growth."""
    if not against.is_gain_sure:
        only_score = " in score" if against.verdict != "not shown" else ""
        return f"Growth made no clear difference{only_score}"
    if against.score.is_below_zero:
        is_better = against.verdict == "better"
        return "The score is lower but the return higher" if is_better else "Growth did not help"
    costs_more = against.verdict == "worse"
    return "Growth raised the score but cost more than it gained" if costs_more else "Growth helped"


def _growth_reason(against: Finding) -> str:
    """Return what the verdict on growth depends on besides the score, with a separator."""
    if not against.score.is_from_enough:
        return f"; {too_few(against.score)}"
    reason, p = "", against.corrected_growth_p
    if not against.is_gain_sure and against.score.excludes_zero and p is not None:
        reason = f"; p {probability(p)} after correction for all comparisons"
    agrees = against.verdict == ("better" if against.score.mean > 0.0 else "worse")
    if against.verdict == "not shown" or (against.is_gain_sure and agrees):
        return reason
    return f"{reason}; the return is {points(against.returns)}"


def _compute(own: Arm, plain: Arm) -> str:
    """Return how much compute a controller took, against no growth."""
    theirs = float(plain.flops.mean())
    share = float(own.flops.mean()) / theirs if theirs > 0.0 else 1.0
    if abs(share - 1.0) < 0.005:
        return "as much compute"
    return f"{abs(share - 1.0):.0%} {'more' if share > 1.0 else 'less'} compute"


def _return_without_growth(against: Finding, own: Arm, plain: Arm) -> str:
    """Return how the return of a controller that hardly grows compares with no growth."""
    if not against.returns.is_from_enough:
        return too_few(against.returns)
    if against.verdict == "not shown":
        return "no clear difference in return"
    is_shorter = paired_interval(plain.flops, own.flops).is_above_zero
    why = ", which comes from stopping early" if is_shorter else ""
    return f"the return is {points(against.returns)}{why}"


def verdict_json(evidence: Evidence) -> dict[str, Any]:
    """Return the verdict as plain values: sentences, and the means and findings behind them."""
    return {
        "price": evidence.price,
        "n_hosts": evidence.n_hosts,
        "split": evidence.split,
        "sentences": list(verdict_sentences(evidence)),
        "notes": list(evidence.notes),
        "arms": [_arm_json(arm) for arm in evidence.arms],
        "findings": [
            one.to_json() | {"sentence": sentence}
            for one, sentence in zip(weigh(evidence), comparison_sentences(evidence), strict=True)
        ],
    }


def _arm_json(arm: Arm) -> dict[str, Any]:
    """Return the mean results of an arm."""
    names = ("flops", "n_epochs", "parameters", "grown_parameters")
    return {
        "name": arm.name,
        "label": arm.label,
        "returns": asdict(nested_interval(arm.returns)),
        "score": asdict(nested_interval(arm.score)),
        **{name: float(getattr(arm, name).mean()) for name in names},
        "grown_share": arm.grown_share,
    }


def where(evidence: Evidence) -> str:
    """Return the price of FLOPs in words, and that of training if it differs.

    It is empty if each host has its own price.
    """
    price, learned = evidence.price, evidence.learned_price
    if price is None:
        return ""
    other = "" if learned in (None, price) else f" (learned at price {learned:g})"
    return f"at price {price:g}{other}"


def capital(text: str) -> str:
    """Return text that starts a sentence."""
    return text[:1].upper() + text[1:]


def _measure(finding: Finding) -> str:
    return "score" if finding.kind in OF_SCORE else "return"
