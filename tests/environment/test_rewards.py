"""Rewards sum to the final score minus the costs, in every form."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.config.growth import Budget, RewardConfig
from esper.environment.records import EpisodeRecords
from esper.environment.rewards import REWARD_TERMS, potential, settle_step
from esper.errors import ConfigError
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.stages import Stage

BUDGET = Budget(n_epochs=8, flop_price=0.3, parameter_rent=0.1)
SHARES = st.floats(0.0, 2.0)
STAGES = st.integers(0, 8)


@st.composite
def episodes(draw: st.DrawFn) -> dict[str, np.ndarray]:
    n = draw(st.integers(1, 8))
    return {
        "scores": np.array(draw(st.lists(st.floats(-1, 1), min_size=n + 1, max_size=n + 1))),
        "flops": np.array(draw(st.lists(SHARES, min_size=n, max_size=n))),
        "added": np.array(draw(st.lists(SHARES, min_size=n, max_size=n))),
        "stages": np.array(
            draw(st.lists(st.tuples(STAGES, STAGES), min_size=n + 1, max_size=n + 1))
        ),
        "restored": np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))),
        "final": np.array([draw(st.floats(-1, 1))]),
    }


def pay(
    episode: dict[str, np.ndarray], config: RewardConfig, *, is_cut: bool = False
) -> dict[str, np.ndarray]:
    """Return the terms of each step, ``[T]`` each."""
    n = len(episode["flops"])
    records = EpisodeRecords.blank(SlotArrays.blank(1, 2))
    records.flop_price[:] = BUDGET.flop_price
    potentials = potential(episode["stages"], np.zeros_like(episode["stages"]), config)
    terms: dict[str, list[float]] = {name: [] for name in REWARD_TERMS}
    for t in range(n):
        is_end = t == n - 1 and not is_cut
        records.was_restored[:] = episode["restored"][t]
        records.flops_used[:] += episode["flops"][t]
        after = 0.0 if is_end else potentials[t + 1 : t + 2]
        found = settle_step(
            records,
            config,
            progress=episode["scores"][t + 1 : t + 2] - episode["scores"][t : t + 1],
            flops=episode["flops"][t : t + 1],
            rent=-BUDGET.parameter_rent / BUDGET.n_epochs * episode["added"][t : t + 1],
            shaping=config.gamma * after - potentials[t : t + 1],
            is_end=np.array([is_end]),
            final_score=episode["final"],
        )
        for name, value in found.by_name().items():
            terms[name].append(float(value[0]))
    return {name: np.array(values) for name, values in terms.items()}


@given(episode=episodes(), reward=st.sampled_from(["dense", "sparse"]))
def test_an_episode_pays_its_final_score_minus_its_costs(
    episode: dict[str, np.ndarray], reward: str
) -> None:
    episode["stages"][0] = 0  # hosts start without seeds
    config = RewardConfig(reward=reward, shaping=0.7, governor_penalty=0.05)  # type: ignore[arg-type]
    terms = pay(episode, config)
    costs = 0.3 * episode["flops"].sum() + 0.1 * episode["added"].sum() / 8
    costs += 0.05 * episode["restored"].sum()
    total = sum(values.sum() for values in terms.values())
    assert total == pytest.approx(episode["final"][0] - costs, abs=1e-12)
    assert terms["shaping"].sum() == pytest.approx(0.0, abs=1e-12)


@given(episode=episodes())
def test_the_sparse_reward_is_zero_before_the_end(episode: dict[str, np.ndarray]) -> None:
    terms = pay(episode, RewardConfig(reward="sparse"))
    for values in terms.values():
        assert (values[:-1] == 0).all()


@given(episode=episodes(), gamma=st.floats(0.5, 1.0), is_cut=st.booleans())
def test_shaping_changes_a_return_only_by_the_first_and_last_potential(
    episode: dict[str, np.ndarray], gamma: float, is_cut: bool
) -> None:
    config = RewardConfig(shaping=0.5, gamma=gamma)
    discounts = gamma ** np.arange(len(episode["flops"]))
    shaped = pay(episode, config, is_cut=is_cut)
    plain = pay(episode, RewardConfig(shaping=0.0, gamma=gamma), is_cut=is_cut)
    difference = sum((discounts * (shaped[name] - plain[name])).sum() for name in REWARD_TERMS)
    potentials = potential(episode["stages"], np.zeros_like(episode["stages"]), config)
    last = 0.0 if is_cut is False else gamma ** len(discounts) * potentials[-1]
    assert difference == pytest.approx(last - potentials[0], abs=1e-9)


def test_a_slot_with_a_fossil_keeps_the_potential_of_a_committed_seed() -> None:
    stages = np.array([[Stage.FOSSILIZED, Stage.DORMANT], [Stage.DORMANT, Stage.TRAINING]])
    config = RewardConfig(shaping=0.5)
    assert potential(stages, np.zeros_like(stages), config).tolist() == [0.25, 0.1]
    assert potential(stages, np.array([[0, 0], [2, 1]]), config).tolist() == [0.25, 0.5]


@given(st.lists(episodes(), min_size=2, max_size=4))
def test_shaping_leaves_the_ordering_of_policies_unchanged(
    all_episodes: list[dict[str, np.ndarray]],
) -> None:
    for episode in all_episodes:
        episode["stages"][0] = 0
    returns = []
    for config in (RewardConfig(shaping=0.0), RewardConfig(shaping=0.9)):
        paid = [pay(episode, config) for episode in all_episodes]
        returns.append([sum(v.sum() for v in terms.values()) for terms in paid])
    for a, b in itertools.combinations(range(len(all_episodes)), 2):
        gaps = [values[a] - values[b] for values in returns]
        assert gaps[0] == pytest.approx(gaps[1], abs=1e-9)


def test_a_worked_example() -> None:
    episode = {
        "scores": np.array([0.1, 0.5, 0.4]),
        "flops": np.array([0.5, 0.25]),
        "added": np.array([0.0, 2.0]),
        "stages": np.array([[0, 0], [1, 0], [5, 0]]),
        "restored": np.array([False, True]),
        "final": np.array([0.6]),
    }
    terms = pay(episode, RewardConfig(shaping=0.2))
    np.testing.assert_allclose(terms["progress"], [0.4, -0.1])
    np.testing.assert_allclose(terms["settlement"], [0.0, 0.3])
    np.testing.assert_allclose(terms["flops_cost"], [-0.15, -0.075])
    np.testing.assert_allclose(terms["rent"], [0.0, -0.025])
    np.testing.assert_allclose(terms["penalty"], [0.0, -0.01])
    # One of two slots germinated: 0.2 * 0.2 / 2, given back at the end.
    np.testing.assert_allclose(terms["shaping"], [0.02, -0.02])


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"reward is 'spars'.*Did you mean 'sparse'"):
        RewardConfig(reward="spars")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="shaping is -1"):
        RewardConfig(shaping=-1.0)
    with pytest.raises(ConfigError, match="governor_penalty is -1"):
        RewardConfig(governor_penalty=-1.0)
    with pytest.raises(ConfigError, match="gamma is 0"):
        RewardConfig(gamma=0.0)
