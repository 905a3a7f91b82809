"""Mistakes of a first hour get one clear line, and nothing of a run is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from esper.errors import ConfigError, UnsupportedEnvironmentError
from esper.simic import PPO, Checkpoint, NetworkConfig, linear
from esper.simic.algorithm import EsperWarning


class Line(gymnasium.Env[np.ndarray, int]):
    """Three steps, each rewarded by the action."""

    observation_space = spaces.Box(0.0, 3.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.time += 1
        return np.full(1, self.time, np.float32), float(action), self.time == 3, False, {}


class Masked(Line):
    def action_masks(self) -> np.ndarray:
        return np.ones(2, np.int8)


class Dropout(nn.Module):
    output_size = 8

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5))

    def forward(self, observations: Tensor) -> Tensor:
        return self.layers(observations)


def small(env: Any = Line, policy: Any = None, **settings: Any) -> PPO:
    return PPO(env, policy, n_steps=8, n_epochs=1, **settings)


def test_a_folder_of_another_runs_checkpoints_is_not_written_to(tmp_path: Path) -> None:
    callback = Checkpoint(tmp_path / "run", every=8)
    model = small().learn(24, callbacks=callback)
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with pytest.raises(ConfigError, match=r"run holds checkpoints of another run"):
        small().learn(8, callbacks=Checkpoint(tmp_path / "run", every=8))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
    # The same run may go on there, by itself or resumed.
    model.learn(8, callbacks=callback)
    resumed = PPO.resume(tmp_path / "run", Line)
    resumed.total_timesteps += 8
    resumed.learn(callbacks=Checkpoint(tmp_path / "run", every=8))
    assert resumed.num_timesteps == 40


def test_resuming_with_other_environments_is_one_clear_line(tmp_path: Path) -> None:
    small(Masked, n_envs=2).learn(16, callbacks=Checkpoint(tmp_path / "run"))
    with pytest.raises(UnsupportedEnvironmentError, match=r"pass it: PPO\.resume"):
        PPO.resume(tmp_path / "run")
    with pytest.raises(UnsupportedEnvironmentError, match="1 environments; 2 were saved"):
        PPO.resume(tmp_path / "run", Masked())
    with pytest.raises(UnsupportedEnvironmentError, match="action_masks"):
        PPO.resume(tmp_path / "run", Line)


def test_a_rate_that_cannot_be_saved_is_announced(tmp_path: Path) -> None:
    with pytest.warns(EsperWarning, match="learning_rate is a function"):
        small(learning_rate=lambda left: 1e-3 * left).save(tmp_path / "model")
    small(learning_rate=linear(1e-3)).save(tmp_path / "other")


def test_a_prediction_does_not_drop_units() -> None:
    model = small(policy=Dropout, seed=1).learn(8)
    drawn = [model.predict(np.ones(1, np.float32), deterministic=True) for _ in range(20)]
    assert len({int(action) for action, _ in drawn}) == 1
    assert model.agent.policy.training  # type: ignore[attr-defined]


def test_learning_leaves_the_number_of_threads_as_it_was() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        small().learn(8)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


class NoSpace(Dropout):
    def __init__(self) -> None:
        super().__init__(Line.observation_space)


class WrongSize(Dropout):
    output_size = 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "MlpPolicy", "policy": "CartPole-v1"}, "environment comes first"),
        ({"network": {"hidden_sizes": (3,)}}, "must be a NetworkConfig"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'"),
        ({"policy_kwargs": {}}, r"'policy_kwargs'.*NetworkConfig"),
        ({"nenvs": 3}, r"'nenvs'.*'n_envs'"),
        ({"policy": NoSpace}, "takes the observation space"),
        ({"policy": WrongSize}, "WrongSize failed"),
        (
            {"policy": Dropout, "network": NetworkConfig(normalize_observations=True)},
            "normalize_observations",
        ),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**{"env": Line, **arguments})


def test_an_environment_of_the_old_kind_is_named() -> None:
    class Old(Line):
        def reset(self, **_: Any) -> Any:
            return np.zeros(1, np.float32)

    with pytest.raises(UnsupportedEnvironmentError, match="reset"):
        small(Old).learn(8)
