"""Verdicts claim what intervals, corrected p-values and host counts support, and no more."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from esper import statistics
from esper.evidence import claims
from esper.evidence.claims import (
    EQUIVALENCE,
    Finding,
    find_differences,
    headline,
    verdict_json,
    verdict_sentences,
    weigh,
)
from esper.evidence.results import Arm
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


def test_a_significant_difference_is_claimed_with_its_interval() -> None:
    found = only(own_arm(), other("heuristic", -0.02, label="the tuned heuristic", kind="tuned"))
    low, high = 100 * found.score.low, 100 * found.score.high
    assert found.sentence == (
        f"better than the tuned heuristic at price 0.2: yes, +2.0 [{low:.1f}, {high:.1f}] points"
    )
    assert found.verdict == "better"
    assert 0.0 < low < 2.0 < high


def test_a_difference_within_noise_is_not_shown() -> None:
    found = only(own_arm(), other("static", -0.001))
    assert found.sentence.startswith(
        "better than the static arm at price 0.2: not shown, +0.1 [-0."
    )
    assert not found.is_claim


def test_a_significant_loss_is_called_worse() -> None:
    found = only(own_arm(), other("static", 0.02))
    assert found.sentence.startswith("worse than the static arm at price 0.2: -2.0 [-")
    assert (found.verdict, found.is_claim) == ("worse", False)


def test_the_price_decides_between_accuracy_and_computing() -> None:
    own, wide = own_arm(flops=0.5), other("wide", 0.03, flops=1.0)
    assert only(own, wide, price=0.0).verdict == "worse"
    assert only(own, wide, price=0.2).verdict == "better"
    assert only(own, wide, price=0.2).flops_ratio == nested_interval(np.full((R, N), 0.5))


def test_few_hosts_support_no_claim() -> None:
    found = only(own_arm(n_hosts=9), other("static", -0.2, n_hosts=9))
    assert found.score.low > 0.1
    assert "not shown, 9 hosts are too few" in found.sentence


def test_a_claim_about_one_run_says_so() -> None:
    own, against = own_arm(n_runs=1), other("static", -0.02)
    evidence = make_evidence(own, against)
    assert "at price 0.2, for this one training run: yes" in weigh(evidence)[0].sentence
    assert "for this one training run" in headline(evidence, weigh(evidence))
    assert "one training run" not in " ".join(verdict_sentences(make_evidence(own_arm(), against)))


def test_many_comparisons_make_a_claim_harder() -> None:
    own = own_arm()
    level = own.accuracy - other("static", 0.0).accuracy
    gap = next(gap for gap in np.arange(0.001, 0.02, 0.0001) if p_value(level + gap) < 0.02)
    alone = only(own, other("static", -gap))
    assert alone.verdict == "better"
    noise = [other(f"noise{number}", 0.0) for number in range(12)]
    among = weigh(make_evidence(own, other("static", -gap), *noise))[0]
    assert among.score == alone.score
    assert among.corrected_p == pytest.approx(13 * alone.p)
    assert among.verdict == "not shown"
    words = f"points, but p corrected for all comparisons is {among.corrected_p:.3f}"
    assert among.sentence.endswith(words)


def scratch(gain: float, *, spread: float = 0.02, flops: float = 0.625) -> tuple[Arm, Arm]:
    """Return a learned arm and its architecture from scratch, with this much more accuracy."""
    accuracy = make_hosts(R, N, seed=1)
    noise = spread * np.random.default_rng(7).normal(size=(R, N))
    theirs = make_arm(
        "scratch",
        accuracy + noise - noise.mean() + gain,
        label="the same architecture trained from scratch",
        kind="same_epochs",
        flops=flops,
    )
    return own_arm(), theirs


def test_accuracy_is_tied_only_if_the_whole_interval_is_small() -> None:
    found = only(*scratch(-0.001, spread=0.01))
    assert found.verdict == "as accurate"
    assert -EQUIVALENCE < found.accuracy.low < found.accuracy.high < EQUIVALENCE
    assert found.sentence.startswith(
        "as accurate as the same architecture trained from scratch for as many epochs, "
        "with 20% [20, 20] fewer FLOPs: yes, within 0.5 points (+0.1 ["
    )
    assert found.is_claim
    loose = only(*scratch(-0.001, spread=0.2))
    assert loose.verdict == "not shown"
    assert ", with fewer FLOPs: not shown, +0.1 [" in loose.sentence
    assert "points, which is not within 0.5 points, with 20%" in loose.sentence


@pytest.mark.parametrize(
    ("gain", "verdict", "words"),
    [
        (-0.02, "at least as accurate", "at least as accurate as the same architecture"),
        (0.02, "worse", "less accurate than the same architecture"),
        (0.004, "not shown", "as accurate as the same architecture"),
        (-0.006, "at least as accurate", "at least as accurate as the same architecture"),
    ],
)
def test_accuracy_that_is_not_tied_is_called_better_or_worse(
    gain: float, verdict: str, words: str
) -> None:
    found = only(*scratch(gain))
    assert found.verdict == verdict
    assert found.sentence.startswith(words)


def test_a_tie_needs_both_ends_of_the_interval() -> None:
    for gain in (-0.003, 0.003):
        found = only(*scratch(gain, spread=0.05))
        assert abs(found.accuracy.mean) < EQUIVALENCE
        assert max(-found.accuracy.low, found.accuracy.high) > EQUIVALENCE
        assert found.verdict == "not shown"
    few = [make_arm(str(number), make_hosts(1, 9, seed=1), kind="same_epochs") for number in (0, 1)]
    assert "too few" in only(*few).sentence


def test_a_tie_that_is_not_significant_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "LEVEL", 0.0)
    found = only(*scratch(0.0, spread=0.01))
    assert found.verdict == "not shown"
    assert "but p corrected for all comparisons is <0.001" in found.sentence
    assert "not within" not in found.sentence


@pytest.mark.parametrize(
    ("gain", "shown"), [(0.0, "as accurate within 0.5 points ("), (-0.02, "at least as accurate (")]
)
@pytest.mark.parametrize(
    ("flops", "words"), [(0.4, "25% [25, 25] more FLOPs"), (0.5, "FLOPs not shown to differ (")]
)
def test_as_accurate_without_fewer_flops_is_no_claim(
    gain: float, shown: str, flops: float, words: str
) -> None:
    evidence = make_evidence(*scratch(gain, spread=0.01, flops=flops))
    (found,) = weigh(evidence)
    assert (found.verdict, found.is_claim) == ("not shown", False)
    assert f", with fewer FLOPs: not shown, {shown}" in found.sentence
    assert f", but with {words}" in found.sentence
    assert headline(evidence, weigh(evidence)).startswith("Nothing was shown")


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
    assert (alone.verdict, alone.is_claim) == ("as accurate", True)
    assert alone.flops_p == pytest.approx(stats.ttest_rel(own.flops[0], theirs.flops[0]).pvalue)
    assert [alone.corrected_p, alone.corrected_flops_p] == holm([alone.p, alone.flops_p])
    noise = [other(f"noise{number}", 0.0) for number in range(12)]
    among = weigh(make_evidence(own, theirs, *noise))[0]
    assert among.corrected_flops_p == pytest.approx(13 * alone.flops_p)
    assert (among.verdict, among.flops_ratio) == ("not shown", alone.flops_ratio)
    words = f"FLOPs, whose p corrected for all comparisons is {among.corrected_flops_p:.3f}"
    assert among.sentence.endswith(words)


def test_less_accurate_needs_the_corrected_p_too() -> None:
    own, theirs = scratch(0.02, spread=0.01)
    level = own.accuracy - theirs.accuracy + EQUIVALENCE
    shift = next(shift for shift in np.arange(0.0, 0.03, 0.00001) if p_value(level + shift) > 0.01)
    near = replace(theirs, accuracy=theirs.accuracy - shift)
    alone = only(own, near)
    assert alone.verdict == "worse"
    noise = [other(f"noise{number}", 0.0) for number in range(12)]
    among = weigh(make_evidence(own, near, *noise))[0]
    assert among.accuracy == alone.accuracy
    assert among.corrected_p > 0.05
    assert among.verdict == "not shown"


def test_at_equal_flops_accuracies_are_compared() -> None:
    own, theirs = own_arm(), other("scratch", -0.02, kind="same_flops", flops=9.0)
    found = only(own, theirs)
    assert found.sentence.startswith("better at equal FLOPs than the scratch arm: yes, +2.0 [")
    assert found.sentence.endswith("points, with 94% [94, 94] fewer FLOPs")
    better = only(own, other("scratch", 0.02, kind="same_flops", flops=9.0))
    assert better.score.is_above_zero  # because of the other's FLOPs
    assert better.verdict == "worse"


@pytest.mark.parametrize(("flops", "is_equal"), [(0.5, True), (0.491, True), (0.489, False)])
def test_better_at_equal_flops_needs_no_more_flops(flops: float, is_equal: bool) -> None:
    own = own_arm()
    found = only(own, other("scratch", -0.02, kind="same_flops", flops=flops))
    assert found.is_claim == is_equal
    if is_equal:
        assert found.sentence.endswith("] points")
    else:
        assert "scratch arm: not shown, +2.0 [" in found.sentence
        assert found.sentence.endswith("points, but with 2% [2, 2] more FLOPs")
    worse = only(own, other("scratch", 0.02, kind="same_flops", flops=flops))
    assert worse.verdict == "worse"


def test_equal_flops_need_the_upper_end_of_their_interval() -> None:
    noise = 0.1 * np.random.default_rng(8).normal(size=(1, N))
    theirs = other("scratch", -0.02, kind="same_flops", flops=0.5 + noise - noise.mean())
    found = only(own_arm(), theirs)
    assert found.flops_ratio is not None
    assert found.flops_ratio.mean == pytest.approx(1.0)
    assert found.verdict == "not shown"
    assert ", but with FLOPs not shown to be equal (0.0% [-" in found.sentence
    none = only(own_arm(), other("scratch", -0.02, kind="same_flops", flops=0.0))
    assert none.sentence.endswith("points, but the other has no FLOPs")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (1000.0, ""),
        (960.0, ""),
        (1040.0, ""),
        (500.0, "100% [100, 100] more parameters"),
        (1100.0, "9% [9, 9] fewer parameters"),
    ],
)
def test_a_claim_at_equal_parameters_needs_equal_parameters(parameters: float, words: str) -> None:
    found = only(own_arm(), other("wide", -0.02, kind="same_parameters", parameters=parameters))
    assert found.is_claim == (not words)
    answer = "not shown" if words else "yes"
    assert f"better than the wide arm at price 0.2: {answer}, +2.0 [" in found.sentence
    assert found.sentence.endswith(f"points, but with {words}" if words else "points")


def test_a_price_other_than_that_of_learning_is_mentioned() -> None:
    arms = own_arm(), other("static", -0.02, kind="tuned"), other("x", -0.02, kind="same_flops")
    sentences = verdict_sentences(make_evidence(*arms, learned_price=0.1))
    assert sentences[0].endswith(" points at price 0.2 (learned at price 0.1).")
    assert "1 of 1 tuned arms at price 0.2 (learned at price 0.1)." in sentences[1]
    assert sentences[2].startswith(
        "Better than the static arm at price 0.2 (learned at price 0.1): yes"
    )
    plain = verdict_sentences(make_evidence(*arms))
    assert verdict_sentences(make_evidence(*arms, learned_price=0.2)) == plain
    assert "learned at" not in " ".join(plain)


def test_the_numbers_of_a_finding_follow_their_definitions() -> None:
    own, theirs = own_arm(), other("x", -0.01, flops=0.8, parameters=4000.0)
    found = only(own, theirs)
    difference = (own.accuracy - 0.2 * own.flops) - (theirs.accuracy - 0.2 * theirs.flops)
    assert found.score == nested_interval(difference)
    assert found.accuracy == nested_interval(own.accuracy - theirs.accuracy)
    assert found.interquartile.mean == interquartile_mean(difference)
    assert found.improvement.mean == np.mean(difference > 0)
    assert found.flops_ratio is not None
    assert found.flops_ratio.mean == pytest.approx(0.625)
    assert found.parameters_ratio is not None
    assert found.parameters_ratio.mean == pytest.approx(0.25)
    assert only(own, other("y", 0.0, flops=0.0)).flops_ratio is None


def test_p_values_of_one_run_are_those_of_corrected_t_tests() -> None:
    own = own_arm(n_runs=1)
    arms = [other("a", -0.004), other("b", 0.001), other("c", 0.0, kind="same_flops")]
    found = weigh(make_evidence(own, *arms))
    expected = [stats.ttest_rel(own.accuracy[0], arm.accuracy[0]).pvalue for arm in arms]
    np.testing.assert_allclose([one.p for one in found], expected)
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
        found = find_differences(arms[0], arms[1:], price=0.2)
        wrong += any(one.verdict != "not shown" for one in found)
    assert wrong / 100 <= 0.09  # at most 0.05, give or take 0.022


def test_the_headline_counts_the_tuned_arms() -> None:
    own = own_arm()
    arms = [
        other("heuristic", -0.03, kind="tuned"),
        other("schedule", -0.02, kind="tuned"),
        other("static", 0.0, kind="tuned"),
        other("table", 0.03, kind="tuned"),
        other("random", -0.3),
    ]
    sentences = verdict_sentences(make_evidence(own, *arms))
    assert sentences[1] == (
        "The learned controller is shown to be better than 2 of 4 tuned arms at price 0.2; "
        "it is worse than the table arm."
    )
    assert len(sentences) == 7
    assert sentences[6].startswith("Better than the random arm at price 0.2: yes, +30.0 [")
    assert verdict_sentences(make_evidence(own, *arms[2:3], arms[4]))[1].startswith(
        "The learned controller is not shown to be better than any of 1 tuned arms"
    )
    assert "1 of 1 arms, none of them tuned, at price" in headline(
        make_evidence(own, arms[4]), weigh(make_evidence(own, arms[4]))
    )


def test_the_headline_says_when_nothing_is_claimed() -> None:
    evidence = make_evidence(own_arm(), other("a", 0.0, kind="tuned"), other("b", 0.02))
    assert verdict_sentences(evidence)[1] == (
        "Nothing was shown: the learned controller is not shown to be better than any of 2 arms "
        "at price 0.2; it is worse than the b arm."
    )


def test_a_controller_that_hardly_grows_is_called_out_after_the_verdict() -> None:
    against = other("static", -0.02)
    first, second, *others = verdict_sentences(make_evidence(own_arm(grown=0.02), against))
    assert second.startswith("The learned controller hardly grows")
    assert "2.0% of hosts" in second
    assert (first, *others) == verdict_sentences(make_evidence(own_arm(), against))


@pytest.mark.parametrize(
    ("strongest", "words"),
    [
        (other("table", 0.03, kind="tuned"), "loses to the table arm, the strongest of 3 "),
        (other("table", -0.01, kind="tuned"), "beats the table arm, the strongest of 3 "),
        (other("table", 0.0, kind="tuned"), "is not shown to beat the table arm, the strongest "),
        (other("table", -0.02, flops=1.0, kind="same_epochs"), "is as accurate as the table arm"),
    ],
)
def test_the_first_sentence_is_about_the_strongest_opponent(strongest: Arm, words: str) -> None:
    arms = (other("static", -0.2), strongest, other("random", -0.3))
    evidence = make_evidence(own_arm(flops=0.5), *arms, other("blind", 0.1, kind="ablation"))
    first = verdict_sentences(evidence)[0]
    assert first.startswith(f"The learned controller {words}")
    assert "opponents: score " in first or "opponents: accuracy " in first


def test_the_verdict_survives_json() -> None:
    evidence = make_evidence(own_arm(), other("static", -0.02))
    plain = json.loads(json.dumps(verdict_json(evidence), allow_nan=False))
    assert plain["sentences"] == list(verdict_sentences(evidence))
    assert plain["findings"][0]["score"]["mean"] == weigh(evidence)[0].score.mean
    assert plain["findings"][0]["verdict"] == "better"
