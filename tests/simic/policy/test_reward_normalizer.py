"""Rewards are scaled by the deviation of discounted returns, as VecNormalize does."""

import numpy as np
import pytest

from esper.simic.policy.normalizers import RewardNormalizer


def draw(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return 3.0 * random.standard_normal((n, 4)), random.random((n, 4)) < 0.1


def test_the_scale_is_the_deviation_of_all_discounted_returns_so_far() -> None:
    rewards, dones = draw(60)
    normalizer, gamma = RewardNormalizer(4, 0.9), 0.9
    returns, seen = np.zeros(4), []
    for reward, done in zip(rewards, dones, strict=True):
        returns = gamma * returns + reward
        seen.append(returns.copy())
        scaled = normalizer(reward, done)
        expected = np.clip(reward / max(np.std(seen), 1e-8), -10.0, 10.0)
        np.testing.assert_allclose(scaled, expected, rtol=1e-6)
        returns = np.where(done, 0.0, returns)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_size_of_rewards_does_not_matter(scale: float) -> None:
    rewards, dones = draw(50)
    plain, scaled = RewardNormalizer(4, 0.99), RewardNormalizer(4, 0.99)
    for reward, done in zip(rewards, dones, strict=True):
        np.testing.assert_allclose(scaled(scale * reward, done), plain(reward, done), rtol=1e-6)


def test_rewards_that_never_vary_and_outliers_stay_finite() -> None:
    normalizer, never = RewardNormalizer(2, 0.9), np.zeros(2, bool)
    assert normalizer(np.zeros(2), never).tolist() == [0.0, 0.0]
    assert np.abs(normalizer(np.array([1e30, -1e30]), never)).max() <= 10.0


def test_saved_statistics_continue() -> None:
    rewards, dones = draw(40)
    first, second = RewardNormalizer(4, 0.9), RewardNormalizer(4, 0.9)
    for reward, done in zip(rewards[:20], dones[:20], strict=True):
        first(reward, done)
    second.load_state_dict(first.state_dict())
    for reward, done in zip(rewards[20:], dones[20:], strict=True):
        assert second(reward, done).tolist() == first(reward, done).tolist()
    # Another number of environments has other running returns, but the same scale.
    other = RewardNormalizer(2, 0.9)
    other.load_state_dict(first.state_dict())
    assert np.abs(other(np.ones(2), np.zeros(2, bool))).max() < 1.0
