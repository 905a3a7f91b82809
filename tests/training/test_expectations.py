"""Values after training against a schedule: gains, and nothing else has changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from esper.config.growth import RewardConfig
from esper.config.learning import PolicyConfig
from esper.config.run import RunConfig
from esper.environment import GrowthVectorEnv, run_episodes
from esper.tamiyo import LearnedController
from esper.tamiyo.controllers.learned import expected_return, expects_gain
from esper.tasks import make_task
from esper.training import expectations
from esper.training.expectations import fit_line, learn_gains
from esper.training.setup import make_policy, stream_seed


def test_the_line_is_that_of_least_squares() -> None:
    rng = np.random.default_rng(0)
    inputs, true = rng.standard_normal((500, 4)), np.array([1.0, -2.0, 0.5, 0.0])
    targets = inputs @ true + 3.0 + 0.1 * rng.standard_normal(500)
    slopes, intercept = fit_line(inputs, targets)
    expected = np.linalg.lstsq(np.column_stack([inputs, np.ones(500)]), targets)[0]
    np.testing.assert_allclose([*slopes, intercept], expected, atol=5e-3)
    assert np.mean(inputs @ slopes + intercept) == pytest.approx(targets.mean(), abs=1e-12)


def test_values_become_gains_and_actions_stay_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expectations, "N_HOSTS", 6)
    config = RunConfig(
        task="prior",
        policy=PolicyConfig(feature_size=12, lstm_size=8),
        rewards=RewardConfig(reward="scheduled", shaping=0.0),
    )
    task = make_task("prior", kind="rings", n_epochs=5)
    rewards = replace(config.rewards, reward="paired")
    envs = GrowthVectorEnv(task, 6, reward=rewards, purpose="training", autoreset=False)
    before = make_policy(config, envs.slot_config).state_dict()
    after = learn_gains(config, task, before)
    for name, weight in before.items():
        kept = slice(None, -1) if name.startswith("outputs.") else slice(None)
        assert torch.equal(after[name][kept], weight[kept]), name

    policy = make_policy(config, envs.slot_config)
    policy.load_state_dict(after)
    controller = LearnedController(policy, return_scale=(0.0, 1.0), rewards="scheduled")
    assert expects_gain(controller)
    values: list[list[float]] = []
    rewards_of: list[np.ndarray] = []
    running: list[np.ndarray] = []

    def note(actions: np.ndarray, result: object) -> None:
        values.append([expected_return(controller, host) or 0.0 for host in range(6)])
        rewards_of.append(np.where(result.was_running, result.terms.total, 0.0))  # type: ignore[attr-defined]
        running.append(result.was_running)  # type: ignore[attr-defined]

    # The same hosts again: with an intercept, the mean expectation is the mean gain.
    run_episodes(envs, controller, seed=stream_seed(config.seed, "expectations"), on_step=note)
    was_running = np.array(running)
    gains = np.array(rewards_of)[::-1].cumsum(0)[::-1]
    expected = np.array(values)[was_running]
    assert expected.mean() == pytest.approx(gains[was_running].mean(), abs=1e-5)
    assert np.corrcoef(expected, gains[was_running])[0, 1] > 0.2
