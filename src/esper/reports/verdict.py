"""The verdict on a learned controller, in sentences that its intervals support."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from esper.reports.comparison import SELDOM
from esper.reports.evidence import Arm, Evidence
from esper.reports.findings import FOLLOWS_RUN, Finding, find_differences
from esper.reports.words import at_price, listed


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
    """Return the verdict: whether it grows at all, how much was shown, then arm by arm."""
    findings = weigh(evidence)
    found = [headline(evidence, findings), *(f"{_capital(one.sentence)}." for one in findings)]
    share = float(evidence.own.grown_share.mean())
    if share < SELDOM:
        found.insert(
            0,
            f"{_capital(evidence.own.label)} hardly grows: something was committed in "
            f"{share:.1%} of hosts, so what it gains it does not gain by growing.",
        )
    return tuple(found)


def headline(evidence: Evidence, findings: Sequence[Finding]) -> str:
    """Return for how many of the tuned arms the learned one is shown to be better."""
    at = at_price(evidence.price, evidence.learned_price)
    if evidence.own.n_runs == 1 and evidence.own.kind == "learned":
        at += ", for this one training run"
    tuned = [one for one in findings if one.kind == "tuned"]
    counted, what = (tuned, "tuned arms") if tuned else (findings, "arms, none of them tuned,")
    better = [one.label for one in counted if one.verdict == "better"]
    worse = [one.label for one in findings if one.verdict == "worse"]
    own = _capital(evidence.own.label)
    if not any(one.is_claim for one in findings):
        said = f"Nothing was shown: {evidence.own.label} is not shown to be better than any of "
        said += f"{len(findings)} arms {at}"
    elif not better:
        said = f"{own} is not shown to be better than any of {len(counted)} {what} {at}"
    else:
        said = f"{own} is shown to be better than {len(better)} of {len(counted)} {what} {at}"
    if worse:
        said += f"; it is worse than {listed(worse) if len(worse) <= 3 else f'{len(worse)} arms'}"
    return f"{said}."


def verdict_json(evidence: Evidence) -> dict[str, Any]:
    """Return the verdict as plain values: sentences and the findings behind them."""
    return {
        "price": evidence.price,
        "sentences": list(verdict_sentences(evidence)),
        "findings": [one.to_json() for one in weigh(evidence)],
    }


def difference_sentence(own: Arm, other: Arm, *, price: float) -> str:
    """Return what is shown about any arm against any other, each a controller of its own.

    There is no correction: for one arm against several use :func:`weigh`.
    """
    # What an arm is for a third one decides nothing between these two.
    kind = "learned" if other.kind in FOLLOWS_RUN else "simple"
    (finding,) = find_differences(own, [replace(other, kind=kind)], price=price)
    return f"{_capital(own.label)}: {finding.sentence}."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
