"""Sentences state what the intervals support and nothing more."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from esper.formatting import points
from esper.results.arms import Arm
from esper.results.evidence import Evidence
from esper.results.findings import weigh
from esper.results.sentences import growth_sentence, verdict_json, verdict_sentences
from esper.statistics import nested_interval, paired_interval
from tests.evidence.examples import make_arm, make_evidence, make_hosts
from tests.results.test_findings import other, own_arm

N = 40


def arm(
    scores: Any, *, returns: Any = None, flops: float = 1.0, grown: Any = 0.0, name: str = "learned"
) -> Arm:
    scores = np.broadcast_to(np.asarray(scores, float), (1, N))
    return Arm(
        name=name,
        label=f"the {name} arm",
        score=scores,
        returns=scores - 0.2 if returns is None else np.reshape(returns, (1, N)),
        flops=np.full((1, N), flops),
        n_epochs=np.full((1, N), 10.0),
        parameters=np.full((1, N), 130.0),
        grown_parameters=np.broadcast_to(np.asarray(grown, float), (1, N)),
    )


def noise(scale: float = 0.05, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=N)
    return scale * (values - values.mean())


HALF_GROWN = np.where(np.arange(N) % 2, 30.0, 0.0)
PLAIN = arm(0.6 + noise(), name="no-growth")


@pytest.mark.parametrize(
    ("best", "words"),
    [
        (other("table", 0.03, kind="tuned"), "loses to the table arm, the best of 3 baselines ("),
        (other("table", -0.01, kind="tuned"), "beats the table arm, the best of 3 baselines ("),
        (other("table", 0.0, kind="tuned"), "cannot be told apart from the table arm, the best "),
        (other("table", -0.02, flops=1.0, kind="same_epochs"), "is as good as the table arm"),
    ],
)
def test_the_first_sentence_is_about_the_best_baseline(best: Arm, words: str) -> None:
    arms = (other("x", -0.2), best, other("random", -0.3))
    evidence = make_evidence(own_arm(flops=0.5), *arms, other("blind", 0.1, kind="ablation"))
    first = verdict_sentences(evidence)[0]
    assert first.startswith(f"The learned controller {words}")
    difference = points(weigh(evidence)[1].difference)
    assert first.endswith(f"{difference}, 95% CI; at price 0.2).")


def test_a_difference_that_only_the_correction_hides_is_not_called_a_tie() -> None:
    own = own_arm()
    crowd = [other(f"noise{number}", 0.0, kind="ablation") for number in range(12)]
    for gap in np.arange(0.001, 0.02, 0.0001):
        evidence = make_evidence(own, other("x", -gap), *crowd)
        found = weigh(evidence)[0]
        if found.returns.is_above_zero:
            break
    assert found.verdict == "not shown"
    first = verdict_sentences(evidence)[0]
    assert "is not shown to beat the x arm" in first
    assert f"; p {found.corrected_p:.3f} after correction for all comparisons" in first


def test_too_few_hosts_do_not_decide_about_the_best_baseline() -> None:
    evidence = make_evidence(own_arm(n_hosts=9), other("x", -0.2, n_hosts=9))
    first = verdict_sentences(evidence)[0]
    assert "not shown to beat" in first or "cannot be told apart" in first
    assert "9 hosts are too few to tell" in first


def test_a_claim_about_one_run_says_so() -> None:
    one = verdict_sentences(make_evidence(own_arm(n_runs=1), other("x", -0.02)))
    assert "one training run; other seeds may differ" in one[0]
    several = verdict_sentences(make_evidence(own_arm(), other("x", -0.02)))
    assert "one training run" not in " ".join(several)


def test_a_price_other_than_that_of_learning_is_mentioned() -> None:
    arms = own_arm(), other("x", -0.02, kind="tuned"), other("y", -0.02, kind="same_flops")
    evidence = make_evidence(*arms, learned_price=0.1)
    assert "at price 0.2 (learned at price 0.1)" in evidence.sentences[0]
    assert "vs the x arm at price 0.2 (learned at price 0.1): return" in evidence.sentences[2]
    plain = make_evidence(*arms).sentences
    assert make_evidence(*arms, learned_price=0.2).sentences == plain
    assert "learned at" not in " ".join(plain)


def test_prices_of_the_hosts_own_are_not_mentioned() -> None:
    evidence = replace(make_evidence(own_arm(), other("x", -0.02)), price=None)
    assert "price" not in str(evidence)
    assert "points, 95% CI)." in evidence.sentences[0]


def test_the_baselines_that_are_beaten_are_counted() -> None:
    own = own_arm()
    arms = [
        other("heuristic", -0.03, kind="tuned"),
        other("schedule", -0.02, kind="tuned"),
        other("size", 0.0, kind="tuned"),
        other("table", 0.03, kind="tuned"),
        other("random", -0.3),
    ]
    assert verdict_sentences(make_evidence(own, *arms))[1] == (
        "It is shown to be better than 2 of 4 tuned baselines, and worse than the table arm."
    )
    assert verdict_sentences(make_evidence(own, arms[4], other("b", 0.0)))[1] == (
        "It is shown to be better than 1 of 2 baselines."
    )
    assert len(verdict_sentences(make_evidence(own, arms[0]))) == 1
    (alone,) = verdict_sentences(make_evidence(own))
    assert "not compared" in alone
    assert verdict_sentences(make_evidence(own, arms[2], arms[3]))[1] == (
        "It is not shown to be better than any tuned baseline, and shown to be worse than the "
        "table arm."
    )


def test_a_controller_that_hardly_grows_is_called_out_after_the_verdict() -> None:
    against = other("x", -0.02)
    first, second = verdict_sentences(make_evidence(own_arm(grown=0.02), against))
    assert second.startswith("The learned controller hardly grows: it grew 3.1% of hosts")
    assert (first,) == verdict_sentences(make_evidence(own_arm(), against))


def test_the_gain_is_the_score_minus_that_of_no_growth() -> None:
    learned = arm(PLAIN.score + 0.1 + noise(0.02, 1), grown=HALF_GROWN)
    found = make_evidence(learned, PLAIN)
    assert found.gain == paired_interval(learned.score[0], PLAIN.score[0])
    assert f"Over all hosts, the score is {points(found.gain)}" in found.sentences[1]
    assert make_evidence(learned).gain is None


def test_growth_that_raises_the_score_of_grown_hosts_is_called_a_help() -> None:
    learned = arm(PLAIN.score + 0.1 + noise(0.02, 1), flops=0.8, grown=HALF_GROWN)
    sentence = growth_sentence(learned, PLAIN)
    assert sentence.startswith("Growth helped: in the 20 of 40 hosts")
    assert "20% less compute" in sentence


def test_growth_that_lowers_the_score_is_not() -> None:
    learned = arm(PLAIN.score - 0.1 + noise(0.02, 1), flops=1.5, grown=HALF_GROWN)
    sentence = growth_sentence(learned, PLAIN)
    assert sentence.startswith("Growth did not help: in the 20 of 40 hosts")
    assert "the score is -10." in sentence
    assert "50% more compute" in sentence


def test_a_difference_within_noise_is_not_called_a_help() -> None:
    sentence = growth_sentence(arm(PLAIN.score + noise(0.2, 1), grown=30.0), PLAIN)
    assert sentence.startswith("Growth was not shown to help: in the 40 of 40 hosts")


def test_only_grown_hosts_count_for_growth() -> None:
    gain = np.where(HALF_GROWN > 0, 0.0, 0.3)
    sentence = growth_sentence(arm(PLAIN.score + gain, grown=HALF_GROWN), PLAIN)
    assert sentence.startswith("Growth was not shown to help")


def test_hosts_that_any_training_run_grew_count_for_growth() -> None:
    plain = make_arm("no-growth", make_hosts(1, 30))
    learned = make_arm("learned", make_hosts(3, 30, gain=0.1), grown_share=[0.0, 0.2, 0.6])
    sentence = growth_sentence(learned, plain)
    assert sentence.startswith("Growth helped: in the 18 of 30 hosts")
    assert points(nested_interval((learned.score - plain.score)[:, :18])) in sentence


@pytest.mark.parametrize(
    ("gain", "words"),
    [(0.1, "saved by stopping early"), (0.0, "is not shown to be higher")],
)
def test_a_controller_that_hardly_grows_gets_no_credit_for_growth(gain: float, words: str) -> None:
    few = np.where(np.arange(N) == 3, 30.0, 0.0)
    returns = PLAIN.returns + gain + noise(0.02, 1)
    sentence = growth_sentence(arm(PLAIN.score + 0.5, returns=returns, flops=0.5, grown=few), PLAIN)
    assert sentence.startswith("Growth was not shown to help: 1 of 40 hosts were grown")
    assert words in sentence
    assert "50% less compute" in sentence


def test_growth_that_costs_more_than_it_gains_is_not_called_a_help() -> None:
    returns = PLAIN.returns - 0.05 + noise(0.02, 2)
    learned = arm(PLAIN.score + 0.1 + noise(0.02, 1), returns=returns, grown=HALF_GROWN)
    sentence = growth_sentence(learned, PLAIN)
    assert sentence.startswith("Growth raised the score but cost more")
    assert "the return -" in sentence


def test_too_few_grown_hosts_show_nothing() -> None:
    few = np.where(np.arange(N) < 9, 30.0, 0.0)
    sentence = growth_sentence(arm(PLAIN.score + 0.1, grown=few), PLAIN)
    assert sentence.startswith("Growth was not shown to help: in the 9 of 40 hosts")
    assert "too few" in sentence


def test_growth_that_harms_hosts_overall_is_not_called_a_help() -> None:
    scores = PLAIN.score + np.where(HALF_GROWN > 0, 0.02, -0.2) + noise(0.002, 1)
    sentence = growth_sentence(arm(scores, grown=HALF_GROWN), PLAIN)
    assert sentence.startswith("Growth helped some hosts but not all")


def test_a_saving_is_only_claimed_where_there_is_one() -> None:
    sentence = growth_sentence(arm(PLAIN.score + 0.1, flops=1.2), PLAIN)
    assert "20% more compute" in sentence
    assert "saved" not in sentence
    assert "the return is +10.0" in sentence


def test_the_verdict_survives_json() -> None:
    evidence: Evidence = make_evidence(own_arm(), other("x", -0.02), notes=("A note.",))
    plain = json.loads(json.dumps(verdict_json(evidence), allow_nan=False))
    lines = [one["sentence"] for one in plain["findings"]]
    assert [*plain["sentences"], *lines, *plain["notes"]] == list(evidence.sentences)
    assert plain["findings"][0]["returns"]["mean"] == weigh(evidence)[0].returns.mean
    assert (plain["findings"][0]["verdict"], plain["findings"][0]["is_sure"]) == ("better", True)
    assert plain["arms"][0]["score"]["mean"] == nested_interval(evidence.own.score).mean
