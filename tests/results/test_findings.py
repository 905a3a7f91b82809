"""Comparisons claim what intervals, corrected p-values and host counts support, and no more."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from esper import statistics
from esper.results import findings
from esper.results.arms import LABELS, Arm
from esper.results.findings import EQUIVALENCE, Finding, find_differences, weigh
from esper.results.sentences import comparison_sentences
from esper.statistics import holm, interquartile_mean, nested_interval, p_value
from tests.evidence.examples import make_arm, make_evidence, make_hosts

R, N = 5, 64


def own_arm(*, n_runs: int = R, n_hosts: int = N, flops: Any = 0.5, grown: float = 0.9) -> Arm:
    return make_arm(
        "learned",
        make_hosts(n_runs, n_hosts, seed=1),
        label="the learned controller",
        kind="learned",
        flops=flops,
        grown_share=grown,
        tuning_runs=50_000,
    )


def other(name: str, gain: float, *, n_runs: int = 1, n_hosts: int = N, **values: Any) -> Arm:
    return make_arm(name, make_hosts(n_runs, n_hosts, gain=gain, seed=2), **values)


def only(own: Arm, against: Arm, price: float = 0.2) -> Finding:
    (found,) = weigh(make_evidence(own, against, price=price))
    return found


def sentence(own: Arm, *others: Arm) -> str:
    return comparison_sentences(make_evidence(own, *others))[0]


def test_a_significant_difference_is_claimed_with_its_interval() -> None:
    arms = own_arm(), other("heuristic", -0.02, label="the tuned heuristic", kind="tuned")
    found = only(*arms)
    low, high = 100 * found.returns.low, 100 * found.returns.high
    assert sentence(*arms) == (
        f"vs the tuned heuristic at price 0.2: return +2.0 [{low:.1f}, {high:.1f}] points, better"
    )
    assert found.verdict == "better"
    assert 0.0 < low < 2.0 < high


@pytest.mark.parametrize(
    ("gain", "mean", "verdict"), [(-0.001, "+0.1", "not shown"), (0.02, "-2.0", "worse")]
)
def test_a_difference_within_noise_is_not_shown_and_a_loss_is_called_worse(
    gain: float, mean: str, verdict: str
) -> None:
    arms = own_arm(), other("x", gain)
    assert sentence(*arms).startswith(f"vs the x arm at price 0.2: return {mean} [-")
    assert sentence(*arms).endswith(f"] points, {verdict}")
    assert only(*arms).verdict == verdict


def test_the_price_decides_between_score_and_compute() -> None:
    own, wide = own_arm(flops=0.5), other("wide", 0.03, flops=1.0)
    assert only(own, wide, price=0.0).verdict == "worse"
    assert only(own, wide, price=0.2).verdict == "better"
    assert only(own, wide, price=0.2).flops_ratio == nested_interval(np.full((R, N), 0.5))


def test_few_hosts_support_no_claim() -> None:
    arms = own_arm(n_hosts=9), other("x", -0.2, n_hosts=9)
    assert only(*arms).returns.low > 0.1
    assert sentence(*arms).endswith("not shown (9 hosts are too few to tell)")


def test_many_comparisons_make_a_claim_harder() -> None:
    own = own_arm()
    level = own.score - other("x", 0.0).score
    gap = next(gap for gap in np.arange(0.001, 0.02, 0.0001) if p_value(level + gap) < 0.02)
    alone = only(own, other("x", -gap))
    assert alone.verdict == "better"
    arms = own, other("x", -gap), *(other(f"noise{number}", 0.0) for number in range(12))
    among = weigh(make_evidence(*arms))[0]
    assert among.returns == alone.returns
    assert among.corrected_p == pytest.approx(13 * alone.p)
    assert among.verdict == "not shown"
    assert not among.is_sure_difference
    assert sentence(*arms).endswith(
        f"not shown (p {among.corrected_p:.3f} after correction for all comparisons)"
    )


def scratch(gain: float, *, spread: float = 0.02, flops: float = 0.625) -> tuple[Arm, Arm]:
    """Return a learned arm and its architecture from scratch, with this much more score."""
    score = make_hosts(R, N, seed=1)
    noise = spread * np.random.default_rng(7).normal(size=(R, N))
    theirs = make_arm(
        "scratch", score + noise - noise.mean() + gain, kind="same_epochs", flops=flops
    )
    return own_arm(), theirs


def test_a_score_is_tied_only_if_the_whole_interval_is_small() -> None:
    found = only(*scratch(-0.001, spread=0.01))
    assert found.verdict == "as good"
    assert -EQUIVALENCE < found.score.low < found.score.high < EQUIVALENCE
    words = sentence(*scratch(-0.001, spread=0.01))
    assert words.startswith("vs the scratch arm: score +0.1 [")
    assert words.endswith("points, 20% [20, 20] fewer FLOPs, as good (within 0.5 points)")
    loose = scratch(-0.001, spread=0.2)
    assert only(*loose).verdict == "not shown"
    assert sentence(*loose).endswith("not shown (not within 0.5 points)")


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [(-0.02, "as good"), (0.02, "worse"), (0.004, "not shown"), (-0.006, "as good")],
)
def test_a_score_that_is_not_tied_is_as_good_or_worse(gain: float, verdict: str) -> None:
    assert only(*scratch(gain)).verdict == verdict


def test_a_tie_needs_both_ends_of_the_interval() -> None:
    for gain in (-0.003, 0.003):
        found = only(*scratch(gain, spread=0.05))
        assert abs(found.score.mean) < EQUIVALENCE
        assert max(-found.score.low, found.score.high) > EQUIVALENCE
        assert found.verdict == "not shown"
    few = [make_arm(str(number), make_hosts(1, 9, seed=1), kind="same_epochs") for number in (0, 1)]
    assert "too few" in sentence(*few)


def test_a_tie_that_is_not_significant_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "LEVEL", 0.0)
    assert only(*scratch(0.0, spread=0.01)).verdict == "not shown"


@pytest.mark.parametrize("gain", [0.0, -0.02])
@pytest.mark.parametrize(
    ("flops", "words"), [(0.4, "25% [25, 25] more FLOPs"), (0.5, "FLOPs not shown to differ (")]
)
def test_as_high_a_score_without_fewer_flops_is_no_claim(
    gain: float, flops: float, words: str
) -> None:
    arms = scratch(gain, spread=0.01, flops=flops)
    assert only(*arms).verdict == "not shown"
    assert words in sentence(*arms)
    assert sentence(*arms).endswith("not shown (no fewer FLOPs)")


def saved_by_hosts(share: float) -> tuple[Arm, Arm]:
    """Return a tie whose FLOPs vary widely by host and differ by ``share`` on average."""
    own, theirs = scratch(0.0, spread=0.01)
    noise = 0.1 * np.random.default_rng(8).normal(size=(1, N))
    noise = np.tile(noise - noise.mean(), (R, 1))
    return own, replace(theirs, flops=0.5 + share * 0.5 + noise)


def test_the_saving_of_flops_is_corrected_along_with_all_comparisons() -> None:
    share = next(
        share
        for share in np.arange(0.01, 0.2, 0.001)
        if p_value(np.subtract(*(arm.flops for arm in saved_by_hosts(share)))) < 0.02
    )
    own, theirs = saved_by_hosts(share)
    alone = only(own, theirs)
    assert alone.verdict == "as good"
    assert alone.flops_p == pytest.approx(stats.ttest_rel(own.flops[0], theirs.flops[0]).pvalue)
    assert [alone.corrected_p, alone.corrected_flops_p] == holm([alone.p, alone.flops_p])
    arms = own, theirs, *(other(f"noise{number}", 0.0) for number in range(12))
    among = weigh(make_evidence(*arms))[0]
    assert among.corrected_flops_p == pytest.approx(13 * alone.flops_p)
    assert (among.verdict, among.flops_ratio) == ("not shown", alone.flops_ratio)
    assert sentence(*arms).endswith(
        f"(p of the FLOPs {among.corrected_flops_p:.3f} after correction for all comparisons)"
    )


def test_a_lower_score_needs_the_corrected_p_too() -> None:
    own, theirs = scratch(0.02, spread=0.01)
    level = own.score - theirs.score + EQUIVALENCE
    shift = next(shift for shift in np.arange(0.0, 0.03, 0.00001) if p_value(level + shift) > 0.01)
    near = replace(theirs, score=theirs.score - shift)
    alone = only(own, near)
    assert alone.verdict == "worse"
    noise = [other(f"noise{number}", 0.0) for number in range(12)]
    among = weigh(make_evidence(own, near, *noise))[0]
    assert among.score == alone.score
    assert among.corrected_p > 0.05
    assert among.verdict == "not shown"


def test_at_equal_flops_scores_are_compared() -> None:
    arms = own_arm(), other("scratch", -0.02, kind="same_flops", flops=9.0)
    assert sentence(*arms).startswith("vs the scratch arm: score +2.0 [")
    assert sentence(*arms).endswith("points, 94% [94, 94] fewer FLOPs, better")
    better = only(arms[0], other("scratch", 0.02, kind="same_flops", flops=9.0))
    assert better.returns.is_above_zero  # because of the other's FLOPs
    assert better.verdict == "worse"


@pytest.mark.parametrize(("flops", "is_equal"), [(0.5, True), (0.491, True), (0.489, False)])
def test_better_at_equal_flops_needs_no_more_flops(flops: float, is_equal: bool) -> None:
    arms = own_arm(), other("scratch", -0.02, kind="same_flops", flops=flops)
    assert only(*arms).verdict == ("better" if is_equal else "not shown")
    ends = "] points, better" if is_equal else "2% [2, 2] more FLOPs, not shown (unequal FLOPs)"
    assert sentence(*arms).endswith(ends)
    assert only(arms[0], other("x", 0.02, kind="same_flops", flops=flops)).verdict == "worse"


def test_equal_flops_need_the_upper_end_of_their_interval() -> None:
    noise = 0.1 * np.random.default_rng(8).normal(size=(1, N))
    theirs = other("scratch", -0.02, kind="same_flops", flops=0.5 + noise - noise.mean())
    found = only(own_arm(), theirs)
    assert found.flops_ratio is not None
    assert found.flops_ratio.mean == pytest.approx(1.0)
    assert found.verdict == "not shown"
    none = sentence(own_arm(), other("scratch", -0.02, kind="same_flops", flops=0.0))
    assert "the other took no FLOPs, not shown" in none


def test_the_numbers_of_a_finding_follow_their_definitions() -> None:
    own, theirs = own_arm(), other("x", -0.01, flops=0.8)
    found = only(own, theirs)
    difference = (own.score - 0.2 * own.flops) - (theirs.score - 0.2 * theirs.flops)
    for name in ("mean", "low", "high"):
        assert getattr(found.returns, name) == pytest.approx(
            getattr(nested_interval(difference), name), abs=2e-6
        )
    assert found.score == nested_interval(own.score - theirs.score)
    assert found.interquartile.mean == pytest.approx(interquartile_mean(difference), abs=2e-6)
    assert found.improvement.mean == np.mean(difference > 0)
    assert found.flops_ratio is not None
    assert found.flops_ratio.mean == pytest.approx(0.625)
    assert only(own, other("y", 0.0, flops=0.0)).flops_ratio is None


def test_p_values_of_one_run_are_those_of_corrected_t_tests() -> None:
    own = own_arm(n_runs=1)
    arms = [other("a", -0.004), other("b", 0.001), other("c", 0.0, kind="same_flops")]
    found = weigh(make_evidence(own, *arms))
    expected = [stats.ttest_rel(own.score[0], arm.score[0]).pvalue for arm in arms]
    np.testing.assert_allclose([one.p for one in found], expected, rtol=1e-4)
    assert [one.corrected_p for one in found] == holm([one.p for one in found])


def test_noise_alone_is_seldom_claimed_among_many_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "N_RESAMPLES", 500)
    monkeypatch.setattr(statistics, "N_TABLES", 10)
    generator, wrong = np.random.default_rng(0), 0
    for _ in range(100):
        hosts = generator.normal(0.7, 0.1, size=N)
        arms = [
            make_arm(str(number), hosts + generator.normal(0.0, 0.02, size=(R, N)))
            for number in range(6)
        ]
        found = find_differences(arms[0], arms[1:])
        wrong += any(one.verdict != "not shown" for one in found)
    assert wrong / 100 <= 0.09  # at most 0.05, give or take 0.022


def test_no_two_arms_have_the_same_label() -> None:
    assert len(set(LABELS.values())) == len(LABELS)
