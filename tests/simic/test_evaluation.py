"""An evaluation plays whole episodes, the same ones each time, and counts each once."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scipy import stats

from esper.errors import ConfigError, UnsupportedEnvironmentError
from esper.simic import PPO, evaluate
from tests.simic.small_envs import Countdown, Masked, Picks, Recall


@pytest.fixture(scope="module")
def model() -> PPO:
    return PPO(partial(Countdown, 4), n_envs=2, n_steps=16)


def test_returns_and_lengths_are_those_of_the_episodes(model: PPO) -> None:
    # A countdown from 4 pays 3 + 2 + 1 + 0.
    result = evaluate(model, n_episodes=21)
    assert result.returns.tolist() == [6.0] * 21
    assert result.lengths.tolist() == [4] * 21
    assert (result.mean, result.std, result.mean_length) == (6.0, 0.0, 4.0)
    assert "6 [6, 6] over 21 episodes" in str(result)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_vector_environments_are_evaluated_in_every_mode(model: PPO, mode: AutoresetMode) -> None:
    envs = SyncVectorEnv([partial(Countdown, n) for n in (2, 3, 5)], autoreset_mode=mode)
    result = evaluate(model, envs, n_episodes=7)
    # Short episodes do not count more often: shares of 3, 2 and 2 episodes.
    assert sorted(result.lengths.tolist()) == [2, 2, 2, 3, 3, 5, 5]
    assert sorted(result.returns.tolist()) == [1.0, 1.0, 1.0, 3.0, 3.0, 10.0, 10.0]


def test_the_interval_is_close_to_that_of_students_distribution() -> None:
    model = PPO(Picks, n_envs=2, n_steps=16)
    result = evaluate(model, n_episodes=30, deterministic=False)
    low, high = stats.t.interval(
        0.95, 29, loc=result.mean, scale=result.returns.std(ddof=1) / np.sqrt(30)
    )
    assert (result.low, result.high) == pytest.approx((low, high), rel=0.02)


def test_the_same_seed_gives_the_same_episodes() -> None:
    model = PPO("CartPole-v1", n_envs=2, n_steps=16)
    first, again = evaluate(model, n_episodes=5), evaluate(model, n_episodes=5)
    other = evaluate(model, n_episodes=5, seed=3)
    assert first.returns.tolist() == again.returns.tolist() != other.returns.tolist()
    drawn = [evaluate(model, n_episodes=5, deterministic=False).returns.tolist() for _ in range(2)]
    assert drawn[0] == drawn[1] != first.returns.tolist()


@pytest.mark.parametrize("policy", ["mlp", "lstm"])
def test_masks_hold_in_evaluation(policy: Any) -> None:
    model = PPO(Masked, policy, n_envs=2, n_steps=16)
    assert len(evaluate(model, n_episodes=8, deterministic=False).returns) == 8


def test_a_memory_is_reset_between_episodes() -> None:
    model = PPO(Recall, "lstm", n_envs=2, n_steps=16)
    policy, states = model.agent.policy, []
    act = policy.act

    def spy(observations: Any, masks: Any, state: Any, generator: Any) -> Any:
        is_first = observations[:, 0] != 0
        states.append(bool((state[is_first] == 0).all() and (state[~is_first] != 0).any(1).all()))
        return act(observations, masks, state, generator)

    policy.act = spy  # type: ignore[method-assign]
    evaluate(model, n_episodes=40)
    assert len(states) == 9
    assert all(states)


def test_an_environment_that_is_given_stays_open(model: PPO) -> None:
    class Closing(Countdown):
        is_open = True

        def close(self) -> None:
            self.is_open = False

    given = Closing()
    evaluate(model, given, n_episodes=2)
    assert given.is_open
    made: list[Closing] = []

    def make() -> Closing:
        made.append(Closing())
        return made[-1]

    evaluate(model, make, n_episodes=2)
    assert not any(env.is_open for env in made)


def test_a_model_trained_on_one_environment_needs_another_to_be_evaluated() -> None:
    model = PPO(gymnasium.make("CartPole-v1"), n_steps=16)
    with pytest.raises(UnsupportedEnvironmentError, match="pass env="):
        evaluate(model)
    assert len(evaluate(model, "CartPole-v1", 2).returns) == 2
    with pytest.raises(ConfigError, match="n_episodes is 0"):
        evaluate(model, "CartPole-v1", 0)
