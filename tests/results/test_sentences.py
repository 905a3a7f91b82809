"""Sentences state what the intervals support and nothing more."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from esper import statistics
from esper.formatting import points
from esper.results.arms import BASELINES, Arm
from esper.results.evidence import Evidence
from esper.results.findings import weigh
from esper.results.sentences import growth_sentence, verdict_json, verdict_sentences
from esper.statistics import nested_interval, p_value, paired_interval
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
        (other("table", 0.03, kind="tuned"), "worse"),
        (other("table", -0.01, kind="tuned"), "better"),
        (other("table", 0.0, kind="tuned"), "no clear difference"),
        (other("table", -0.02, flops=1.0, kind="same_epochs"), "as good with fewer FLOPs"),
    ],
)
def test_a_sentence_is_about_the_best_baseline(best: Arm, words: str) -> None:
    arms = (other("x", -0.2), best, other("random", -0.3))
    evidence = make_evidence(own_arm(flops=0.5), *arms, other("blind", 0.1, kind="ablation"))
    first = verdict_sentences(evidence)[0]
    against = "The learned controller against the table arm, the best of 3 baselines: "
    assert first.startswith(f"{against}{words} (")
    difference = points(weigh(evidence)[1].difference)
    assert first.endswith(f"{difference}; at price 0.2).")


def test_learned_controllers_are_not_called_baselines() -> None:
    arms = (other("x", -0.2), other("sparse rewards", -0.1, kind="learned"))
    sentences = verdict_sentences(make_evidence(own_arm(), *arms))
    assert "the best of 2 others" in sentences[0]
    assert sentences[1] == "It beats 2 of 2 others."


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_difference_that_only_the_correction_hides_is_given_with_its_p_value(sign: int) -> None:
    own = own_arm()
    crowd = [other(f"noise{number}", 0.0, kind="ablation") for number in range(12)]
    for gap in np.geomspace(0.002, 0.02, 10):
        evidence = make_evidence(own, other("x", sign * gap), *crowd)
        found = weigh(evidence)[0]
        if not found.returns.excludes_zero:
            continue
        assert found.verdict == "not shown"
        first = verdict_sentences(evidence)[0]
        assert "the x arm: no clear difference (" in first
        assert f"; p {found.corrected_p:.3f} after correction for all comparisons" in first
        return
    raise AssertionError("no interval excluded zero")


def test_too_few_hosts_do_not_decide_about_the_best_baseline() -> None:
    evidence = make_evidence(own_arm(n_hosts=9), other("x", -0.2, n_hosts=9))
    first = verdict_sentences(evidence)[0]
    assert "no clear difference" in first
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
    assert "points)." in evidence.sentences[0]


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
        "It beats 2 of 4 tuned baselines and loses to the table arm."
    )
    assert verdict_sentences(make_evidence(own, arms[4], other("b", 0.0)))[1] == (
        "It beats 1 of 2 baselines."
    )
    assert verdict_sentences(make_evidence(own, arms[3], arms[4]))[1] == (
        "It beats 1 of 2 baselines and loses to the table arm."
    )
    assert len(verdict_sentences(make_evidence(own, arms[0]))) == 1
    (alone,) = verdict_sentences(make_evidence(own))
    assert "not compared" in alone
    assert verdict_sentences(make_evidence(own, arms[2], arms[3]))[1] == (
        "It beats none of 2 tuned baselines and loses to the table arm."
    )


def test_the_best_baseline_may_not_train_at_all() -> None:
    idle = replace(other("fixed", 0.1, kind="tuned"), n_epochs=0.0 * own_arm().n_epochs[:1])
    first = verdict_sentences(make_evidence(own_arm(), idle, other("x", -0.1)))[0]
    assert ", the best of 2 baselines, which does not train at all: worse (" in first


def test_a_controller_that_hardly_grows_is_called_out_after_the_verdict() -> None:
    against = other("x", -0.02)
    first, second = verdict_sentences(make_evidence(own_arm(grown=0.02), against))
    assert second.startswith("The learned controller hardly grows: it grew 3.1% of hosts")
    assert (first,) == verdict_sentences(make_evidence(own_arm(), against))


def evidence_of(*arms: Arm) -> Evidence:
    """Return the evidence of arms with the returns that they have."""
    runs = tuple(f"run{number}" for number in range(arms[0].n_runs))
    return Evidence(task="t", price=None, runs=runs, arms=arms, learned="learned")


def growth_of(learned: Arm, plain: Arm = PLAIN) -> str:
    """Return what is said about growth."""
    return growth_sentence(evidence_of(learned, plain))


def test_the_gain_is_the_score_minus_that_of_no_growth() -> None:
    learned = arm(PLAIN.score + 0.1 + noise(0.02, 1), grown=HALF_GROWN)
    found = make_evidence(learned, PLAIN)
    assert found.gain is not None
    assert found.gain == paired_interval(learned.score[0], PLAIN.score[0])
    assert f"score {points(found.gain)}" in found.sentences[0]
    assert make_evidence(learned).gain is None
    assert growth_sentence(make_evidence(learned)) == ""


def test_growth_that_raises_the_score_is_called_a_help() -> None:
    learned = arm(PLAIN.score + 0.1 + noise(0.02, 1), flops=0.8, grown=HALF_GROWN)
    sentence = growth_of(learned)
    assert sentence.startswith("Growth helped: score +10.0 [")
    assert "20% less compute" in sentence
    assert sentence.endswith(" (20 of 40 hosts were grown).")


def test_growth_that_lowers_the_score_is_not() -> None:
    learned = arm(PLAIN.score - 0.1 + noise(0.02, 1), flops=1.5, grown=HALF_GROWN)
    sentence = growth_of(learned)
    assert sentence.startswith("Growth did not help: score -10.")
    assert "50% more compute" in sentence


def test_a_difference_within_noise_is_not_called_a_help() -> None:
    sentence = growth_of(arm(PLAIN.score + noise(0.2, 1), grown=30.0))
    assert sentence.startswith("Growth made no clear difference: score ")


def test_hosts_whose_seed_was_kept_because_it_helped_prove_nothing() -> None:
    # Without any effect: seeds are kept where chance was kind, others cost as much as those gain.
    for seed in range(20):
        luck = noise(0.05, seed)
        kept = np.where(luck > 0.0, 30.0, 0.0)
        assert paired_interval(luck[kept > 0], 0.0 * luck[kept > 0]).is_above_zero
        sentence = growth_of(arm(PLAIN.score + luck, grown=kept))
        assert sentence.startswith("Growth made no clear difference"), seed


def test_the_claim_that_growth_helped_is_corrected_with_all_others() -> None:
    level = PLAIN.score + noise(0.05, 1)
    gaps = np.arange(0.0, 0.1, 0.001)
    gap = next(gap for gap in gaps if p_value(level + gap - PLAIN.score) < 0.03)
    crowd = [replace(PLAIN, name=str(number), score=PLAIN.score - 0.5) for number in range(3)]
    learned = arm(level + gap, returns=PLAIN.returns, grown=30.0)
    sentence = growth_sentence(evidence_of(learned, PLAIN, *crowd))
    assert sentence.startswith("Growth made no clear difference")
    assert "after correction for all comparisons" in sentence


def test_equal_opponents_are_seldom_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "N_TABLES", 2)
    monkeypatch.setattr(statistics, "N_RESAMPLES", 400)
    rng, n_flagged = np.random.default_rng(0), 0
    for _ in range(100):
        scores = 0.7 + 0.05 * rng.normal(size=(6, N))
        names = ("learned", *BASELINES)
        arms = [arm(row, grown=30.0, name=name) for name, row in zip(names, scores, strict=True)]
        evidence = evidence_of(*arms)
        claims = [one.verdict != "not shown" for one in weigh(evidence)]
        n_flagged += any(claims) or "no clear difference" not in growth_sentence(evidence)
    assert n_flagged <= 9  # the 95% quantile of Binomial(100, 0.05)


def test_hosts_that_any_training_run_grew_are_counted() -> None:
    plain = make_arm("no-growth", make_hosts(1, 30))
    learned = make_arm("learned", make_hosts(3, 30, gain=0.1), grown_share=[0.0, 0.2, 0.6])
    sentence = growth_of(learned, plain)
    assert sentence.startswith("Growth helped: score +")
    assert points(nested_interval(learned.score - plain.score)) in sentence
    assert sentence.endswith(" (18 of 30 hosts were grown).")


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (0.1, "points, which comes from stopping early"),
        (-0.1, "points, which comes from stopping early"),
        (0.0, "no clear difference in return"),
    ],
)
def test_a_controller_that_hardly_grows_gets_no_credit_for_growth(gain: float, words: str) -> None:
    few = np.where(np.arange(N) == 3, 30.0, 0.0)
    returns = PLAIN.returns + gain + noise(0.02, 1)
    sentence = growth_of(arm(PLAIN.score + 0.5, returns=returns, flops=0.5, grown=few))
    assert sentence.startswith("Growth was too rare to tell: score ")
    assert words in sentence
    assert ("no clear difference" in sentence) == (gain == 0.0)
    assert "50% less compute" in sentence
    assert "(1 of 40 hosts was grown; " in sentence


def test_a_controller_that_grows_nothing_is_said_to() -> None:
    learned = arm(PLAIN.score - 0.15 + noise(0.02, 1), flops=0.1)
    evidence = evidence_of(learned, PLAIN)
    assert weigh(evidence)[0].verdict == "worse"
    sentence = growth_sentence(evidence)
    assert sentence.startswith("No host was grown: score -15.")
    assert "no clear difference" not in sentence
    assert f"the return is {points(weigh(evidence)[0].returns)}, which comes from" in sentence


@pytest.mark.parametrize(("change", "verdict"), [(0.1, "better"), (-0.1, "worse")])
@pytest.mark.parametrize(
    ("score", "words"),
    [
        (0.1 + noise(0.02, 1), {"better": "Growth helped", "worse": "Growth raised the score but"}),
        (-0.1 + noise(0.02, 1), {"better": "The score is lower", "worse": "Growth did not help"}),
        (noise(0.2, 1), dict.fromkeys(("better", "worse"), "Growth made no clear difference in")),
    ],
)
def test_the_verdict_on_growth_does_not_contradict_the_return(
    score: np.ndarray, words: dict[str, str], change: float, verdict: str
) -> None:
    returns = PLAIN.returns + change + noise(0.02, 2)
    evidence = evidence_of(arm(PLAIN.score + score, returns=returns, grown=HALF_GROWN), PLAIN)
    (found,) = weigh(evidence)
    assert found.verdict == verdict
    sentence = growth_sentence(evidence)
    assert sentence.startswith(words[verdict])
    agrees = found.is_gain_sure and (found.score.mean > 0.0) == (change > 0.0)
    assert (f"the return is {points(found.returns)}" in sentence) != agrees


def test_growth_that_costs_more_than_it_gains_is_not_called_a_help() -> None:
    returns = PLAIN.returns - 0.05 + noise(0.02, 2)
    sentence = growth_of(arm(PLAIN.score + 0.1 + noise(0.02, 1), returns=returns, grown=HALF_GROWN))
    assert sentence.startswith("Growth raised the score but cost more")
    assert "the return is -" in sentence


def test_too_few_hosts_show_nothing_about_growth() -> None:
    plain = make_arm("no-growth", make_hosts(1, 9))
    sentence = growth_of(make_arm("learned", make_hosts(1, 9, gain=0.3), grown_share=1.0), plain)
    assert sentence.startswith("Growth made no clear difference")
    assert "9 hosts are too few to tell" in sentence


def test_too_few_hosts_show_nothing_about_a_controller_that_hardly_grows() -> None:
    plain = make_arm("no-growth", make_hosts(1, 9))
    sentence = growth_of(make_arm("learned", make_hosts(1, 9, gain=-0.3), grown_share=0.0), plain)
    assert "9 hosts are too few to tell" in sentence
    assert "no clear difference" not in sentence


def test_a_saving_is_only_claimed_where_there_is_one() -> None:
    sentence = growth_of(arm(PLAIN.score + 0.1, flops=1.2))
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
