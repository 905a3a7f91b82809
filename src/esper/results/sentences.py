"""What results show, in words: the one place that turns intervals into sentences."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from esper.arrays import Flags
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
MARGIN = f"{100 * EQUIVALENCE:g} points"

_PHRASES = {
    "better": "beats",
    "worse": "loses to",
    "as good": "is as good as",
    "not shown": "cannot be told apart from",
}


def verdict_sentences(evidence: Evidence) -> tuple[str, ...]:
    """Return the verdict on the learned arm.

    First comes the best baseline, then whether growth helped, and how many baselines are beaten.
    """
    findings = [one for one in weigh(evidence) if one.kind != "ablation"]
    if not findings:
        return (f"{capital(evidence.own.label)} was not compared with any baseline.",)
    found = [best_baseline_sentence(evidence, findings)]
    plain = next((arm for arm in evidence.others if arm.name == NO_GROWTH), None)
    if plain is not None:
        found.append(growth_sentence(evidence.own, plain))
    elif evidence.own.kind == "learned" and evidence.own.grown_share < SELDOM:
        found.append(
            f"{capital(evidence.own.label)} hardly grows: it grew {evidence.own.grown_share:.1%} "
            "of hosts, so none of its gain comes from growth."
        )
    return (*found, *([count_sentence(findings)] if len(findings) > 1 else []))


def best_baseline_sentence(evidence: Evidence, findings: list[Finding]) -> str:
    """Return the sentence that a result opens with, about the baseline with the highest return."""
    best = min(findings, key=lambda one: one.returns.mean)
    difference, own = best.difference, evidence.own
    is_one_run = own.n_runs == 1 and own.kind == "learned"
    phrase = _PHRASES[best.verdict]
    if best.verdict == "not shown" and difference.is_above_zero:
        phrase = "is not shown to beat"
    among = f", the best of {len(findings)} baselines" if len(findings) > 1 else ""
    facts = [
        f"{_measure(best)} {points(difference)}, 95% CI",
        where(evidence),
        _reason(best) if best.verdict == "not shown" else "",
        "one training run; other seeds may differ" if is_one_run else "",
    ]
    return f"{capital(own.label)} {phrase} {best.label}{among} ({'; '.join(filter(None, facts))})."


def count_sentence(findings: list[Finding]) -> str:
    """Return how many baselines the learned arm is shown to beat, of the tuned ones if any."""
    tuned = [one for one in findings if one.kind == "tuned"]
    counted, what = (tuned, "tuned baseline") if tuned else (findings, "baseline")
    n_better = sum(one.verdict == "better" for one in counted)
    worse = [one.label for one in findings if one.verdict == "worse"]
    but = listed(worse) if len(worse) <= 3 else f"{len(worse)} baselines"
    better = f"{n_better} of {many(len(counted), what)}" if n_better else f"any {what}"
    return f"It is {'shown' if n_better else 'not shown'} to be better than {better}" + (
        f", and {'worse' if n_better else 'shown to be worse'} than {but}." if worse else "."
    )


def comparison_sentences(evidence: Evidence) -> tuple[str, ...]:
    """Return a line about each other arm: the difference, and what it shows."""
    return tuple(finding_sentence(one, where(evidence)) for one in weigh(evidence))


def finding_sentence(finding: Finding, at: str) -> str:
    """Return the numbers of a comparison and what they show.

    Args:
        finding: The comparison.
        at: The price in words.
    """
    at = {"same_epochs": "for as many epochs", "same_flops": "with as many FLOPs"}.get(
        finding.kind, at
    )
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
        is_claimed = finding.is_as_high
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


def growth_sentence(own: Arm, plain: Arm) -> str:
    """Return whether growth helped, judged by the hosts that were grown in any training run.

    Args:
        own: The result of a controller.
        plain: That of no growth.
    """
    is_grown: Flags = own.grown_parameters.max(0) > 0.0
    counted = f"{int(is_grown.sum())} of {len(is_grown)} hosts"
    overall = f"Over all hosts, {_overall(own, plain)}"
    if own.grown_share < SELDOM:
        return (
            f"Growth was not shown to help: {counted} were grown. {overall}; "
            f"{_return_without_growth(own, plain)}."
        )
    score = paired_interval(own.score[:, is_grown], plain.score[:, is_grown])
    value = paired_interval(own.returns[:, is_grown], plain.returns[:, is_grown])
    grown = f"in the {counted} that were grown, the score is {points(score)} against no growth"
    if not score.is_from_enough:
        verdict = f"Growth was not shown to help: {grown}; these are too few hosts to tell"
    elif score.is_below_zero:
        verdict = f"Growth did not help: {grown}"
    elif not score.is_above_zero:
        verdict = f"Growth was not shown to help: {grown}"
    elif value.is_below_zero:
        verdict = f"Growth raised the score but cost more than it gained: {grown}"
        verdict += f" and the return {points(value)}"
    elif paired_interval(own.score, plain.score).is_below_zero:
        verdict = f"Growth helped some hosts but not all hosts together: {grown}"
    else:
        verdict = f"Growth helped: {grown}"
    if value.is_above_zero and not score.is_above_zero:
        verdict += f" (the return is {points(value)})"
    return f"{verdict}. {overall}."


def _overall(own: Arm, plain: Arm) -> str:
    """Return the gain over all hosts, and how much compute they took."""
    theirs = float(plain.flops.mean())
    share = float(own.flops.mean()) / theirs if theirs > 0.0 else 1.0
    compute = f"{abs(share - 1.0):.0%} {'more' if share > 1.0 else 'less'} compute"
    if abs(share - 1.0) < 0.005:
        compute = "as much compute"
    return f"the score is {points(paired_interval(own.score, plain.score))}, with {compute}"


def _return_without_growth(own: Arm, plain: Arm) -> str:
    """Return how the return of a controller that hardly grows compares with no growth."""
    value = paired_interval(own.returns, plain.returns)
    if not value.is_above_zero:
        return "the return is not shown to be higher"
    if paired_interval(plain.flops, own.flops).is_above_zero:
        return "the higher return is compute saved by stopping early"
    return f"the return is {points(value)}"


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
            one.to_json() | {"sentence": finding_sentence(one, where(evidence))}
            for one in weigh(evidence)
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
