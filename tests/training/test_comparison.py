"""A comparison states what its intervals support and nothing more."""

import json
from typing import Any

import numpy as np
import pytest

from esper.statistics import mean_interval, paired_interval
from esper.training.comparison import ArmResults, Comparison, compare_arms

N = 40


def arm(
    scores: Any, *, returns: Any = None, flops: float = 1.0, seed_parameters: Any = 0.0
) -> ArmResults:
    scores = np.broadcast_to(np.asarray(scores, float), N).copy()
    return ArmResults(
        returns=scores - 0.2 if returns is None else np.asarray(returns, float),
        scores=scores,
        flops=np.full(N, flops),
        n_epochs=np.full(N, 10.0),
        host_parameters=np.full(N, 100.0),
        seed_parameters=np.broadcast_to(np.asarray(seed_parameters, float), N).copy(),
    )


def noise(scale: float = 0.05, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=N)
    return scale * (values - values.mean())


HALF_GROWN = np.where(np.arange(N) % 2, 30.0, 0.0)


def growth_sentence(learned: ArmResults, wait: ArmResults) -> str:
    return compare_arms({"learned": learned, "wait": wait}).sentences[1]


def opponents(differences: dict[str, float], n: int = N) -> Comparison:
    """Compare a controller with opponents whose mean return is that much above its own."""
    own = arm(0.6 + noise(), seed_parameters=30.0)
    others = {name: arm(own.scores + d + noise(0.01, 1)) for name, d in differences.items()}
    results = {"learned": own, **others}
    return compare_arms(
        {
            name: ArmResults(**{field: values[:n] for field, values in vars(one).items()})
            for name, one in results.items()
        }
    )


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        (0.02, "The controller loses to the fixed schedule, the strongest of 3 opponents: "),
        (-0.02, "The controller beats the fixed schedule, the strongest of 3 opponents: "),
        (0.0, "The controller is not shown to beat the fixed schedule, the strongest of 3 "),
    ],
)
def test_the_first_sentence_is_about_the_strongest_opponent(fixed: float, words: str) -> None:
    found = opponents({"wait": -0.1, "fixed": fixed, "random": -0.3})
    assert found.sentences[0].startswith(words)
    assert found.sentences[0].endswith(f": return {found.differences[1].ep_rew.text()}.")
    assert found.sentences[1].startswith("Growth helped")


def test_too_few_hosts_do_not_decide_about_the_strongest_opponent() -> None:
    found = opponents({"wait": 0.1}, n=9)
    assert found.sentences[0].startswith(
        "The controller was tried on too few hosts to tell whether it beats hosts left alone: "
    )


def test_a_summary_of_an_earlier_version_opens_with_the_strongest_opponent_too() -> None:
    found = opponents({"wait": -0.1, "fixed": 0.02})
    stored = json.loads(json.dumps(found.to_json()))
    stored["sentences"] = stored["sentences"][1:]
    assert Comparison.from_json(stored) == found


def test_the_gain_is_the_score_minus_that_of_the_same_hosts_left_alone() -> None:
    wait = arm(0.6 + noise())
    learned = arm(wait.scores + 0.1 + noise(0.02, 1), seed_parameters=HALF_GROWN)
    found = compare_arms({"learned": learned, "wait": wait})
    assert found.gain == paired_interval(learned.scores, wait.scores)
    assert f"the gain in score is {found.gain.text()}" in found.sentences[1]
    assert compare_arms({"learned": learned}).gain is None


def test_growth_that_raises_the_score_of_grown_hosts_is_called_a_help() -> None:
    wait = arm(0.6 + noise())
    learned = arm(wait.scores + 0.1 + noise(0.02, 1), flops=0.8, seed_parameters=HALF_GROWN)
    sentence = growth_sentence(learned, wait)
    assert sentence.startswith("Growth helped: in the 20 of 40 hosts")
    assert "20% less computing" in sentence


def test_growth_that_lowers_the_score_is_not() -> None:
    wait = arm(0.6 + noise())
    learned = arm(wait.scores - 0.1 + noise(0.02, 1), flops=1.5, seed_parameters=HALF_GROWN)
    sentence = growth_sentence(learned, wait)
    assert sentence.startswith("Growth did not help: in the 20 of 40 hosts")
    assert "-0.1" in sentence
    assert "50% more computing" in sentence


def test_a_difference_within_noise_is_not_called_a_help() -> None:
    wait = arm(0.6 + noise())
    sentence = growth_sentence(arm(wait.scores + noise(0.2, 1), seed_parameters=30.0), wait)
    assert sentence.startswith("Growth was not shown to help: in the 40 of 40 hosts")
    assert "within noise" in sentence


def test_only_grown_hosts_count_for_growth() -> None:
    wait = arm(0.6 + noise())
    gain = np.where(HALF_GROWN > 0, 0.0, 0.3)
    sentence = growth_sentence(arm(wait.scores + gain, seed_parameters=HALF_GROWN), wait)
    assert sentence.startswith("Growth was not shown to help")


@pytest.mark.parametrize(
    ("gain", "words"),
    [(0.1, "saved by stopping early"), (0.0, "is not shown to be higher")],
)
def test_a_controller_that_hardly_grows_gets_no_credit_for_growth(gain: float, words: str) -> None:
    wait = arm(0.6 + noise())
    few = np.where(np.arange(N) == 3, 30.0, 0.0)
    returns = wait.returns + gain + noise(0.02, 1)
    sentence = growth_sentence(
        arm(wait.scores + 0.5, returns=returns, flops=0.5, seed_parameters=few), wait
    )
    assert sentence.startswith("Growth was not shown to help: the controller grew 1 of 40 hosts")
    assert words in sentence
    assert "50% less computing" in sentence


def test_each_controller_is_compared_in_return_on_the_same_hosts() -> None:
    wait = arm(0.6 + noise())
    results = {
        "learned": arm(wait.scores + 0.1, seed_parameters=30.0),
        "wait": wait,
        "random": arm(wait.scores + 0.2),
        "heuristic": arm(wait.scores + 0.1 + noise(0.01, 2)),
        "own": arm(wait.scores),
    }
    found = compare_arms(results)
    assert [one.against for one in found.differences] == ["wait", "random", "heuristic", "own"]
    learned = results["learned"]
    for one in found.differences:
        other = results[one.against]
        assert one.ep_rew == paired_interval(learned.returns, other.returns)
        assert one.score == paired_interval(learned.scores, other.scores)
    words = found.sentences[2:]
    assert "hosts left alone: better, +0.100" in words[0]
    assert "random legal growth: worse, -0.100" in words[1]
    assert "the heuristic: no significant difference" in words[2]
    assert "own: better" in words[3]
    assert [summary.grown_share for summary in found.arms] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert found.arms[0].ep_rew == mean_interval(learned.returns)


def test_the_best_host_has_the_highest_return_and_its_actions() -> None:
    learned = arm(0.5, returns=np.where(np.arange(N) == 7, 0.9, 0.1))
    actions = np.arange(N * 3 * 8).reshape(N, 3, 8)
    actions[7, 2] = -1
    best = compare_arms({"learned": learned}, actions=actions).best_host
    assert best is not None
    assert (best.number, best.ep_rew, best.score) == (7, 0.9, 0.5)
    assert best.actions == actions[7, :2].tolist()


def test_a_comparison_survives_json() -> None:
    wait = arm(0.6 + noise())
    learned = arm(wait.scores + noise(0.2, 1), seed_parameters=HALF_GROWN)
    actions = np.zeros((N, 3, 8), np.int64)
    for given in (actions, None):
        found = compare_arms({"learned": learned, "wait": wait}, actions=given)
        assert Comparison.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_growth_that_costs_more_than_it_gains_is_not_called_a_help() -> None:
    wait = arm(0.6 + noise())
    scores = wait.scores + 0.1 + noise(0.02, 1)
    learned = arm(scores, returns=wait.returns - 0.05 + noise(0.02, 2), seed_parameters=HALF_GROWN)
    sentence = growth_sentence(learned, wait)
    assert sentence.startswith("Growth raised the score but cost more")
    assert "the return -0.0" in sentence


def test_too_few_grown_hosts_show_nothing() -> None:
    wait = arm(0.6 + noise())
    few = np.where(np.arange(N) < 9, 30.0, 0.0)
    learned = arm(wait.scores + 0.1, seed_parameters=few)
    sentence = growth_sentence(learned, wait)
    assert sentence.startswith("Growth was not shown to help: in the 9 of 40 hosts")
    assert "too few" in sentence


def test_growth_that_harms_hosts_overall_is_not_called_a_help() -> None:
    wait = arm(0.6 + noise())
    scores = wait.scores + np.where(HALF_GROWN > 0, 0.02, -0.2) + noise(0.002, 1)
    sentence = growth_sentence(arm(scores, seed_parameters=HALF_GROWN), wait)
    assert sentence.startswith("Growth helped some hosts but not all")


def test_a_saving_is_only_claimed_where_there_is_one() -> None:
    wait = arm(0.6 + noise())
    better = arm(wait.scores + 0.1, flops=1.2)
    sentence = growth_sentence(better, wait)
    assert "20% more computing" in sentence
    assert "saved" not in sentence
    assert "theirs is +0.100" in sentence
