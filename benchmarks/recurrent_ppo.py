"""The update's peer: sb3-contrib's RecurrentPPO, in the configuration closest to ours.

It has our layers: a features extractor of one ReLU layer of 128, an LSTM of 128, and nothing
between the LSTM and the outputs. It has no masks and no causal relevance.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn

from esper.lifecycle.factored_actions import growth_action_spec
from timing import Call
from update import (
    FEATURE_SIZE,
    LEARNING_RATE,
    LSTM_SIZE,
    N_ENVS,
    N_EPOCHS,
    N_STEPS,
    OBSERVATION_SIZE,
    P_DONE,
    SLOTS,
    Episodes,
)


class NoiseEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Random observations and rewards, whatever the action."""

    observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,), np.float32)
    action_space = spaces.MultiDiscrete(growth_action_spec(SLOTS).sizes)

    def __init__(self, kind: Episodes) -> None:
        self.kind = kind

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed, options=options)
        self.time = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Draw the next observation and reward; the kind of rollout decides when episodes end."""
        self.time += 1
        is_over = {
            Episodes.WHOLE: self.time == N_STEPS,
            Episodes.ENDING_INSIDE: self.np_random.random() < P_DONE,
            Episodes.ONGOING: False,
        }[self.kind]
        return self._observe(), float(self.np_random.standard_normal()), is_over, False, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.standard_normal(OBSERVATION_SIZE, dtype=np.float32)


class OneLayer(BaseFeaturesExtractor):
    """The layer between the observation and the LSTM, as in our policy."""

    def __init__(self, observation_space: spaces.Space[Any]) -> None:
        super().__init__(observation_space, features_dim=FEATURE_SIZE)
        self.layer = nn.Linear(OBSERVATION_SIZE, FEATURE_SIZE)

    def forward(self, observations: Tensor) -> Tensor:
        """Return the features."""
        return torch.relu(self.layer(observations))


def make_trainer(kind: Episodes, *, shares_lstm: bool) -> Call:
    """Return the ``train()`` of a RecurrentPPO whose buffer has just been filled.

    Args:
        kind: Where episodes start and end in the rollout.
        shares_lstm: Whether the critic uses the actor's LSTM, as ours does (but without training
            it). By default the critic of RecurrentPPO has its own LSTM.
    """
    envs = DummyVecEnv([lambda: NoiseEnv(kind)] * N_ENVS)
    model = RecurrentPPO(
        "MlpLstmPolicy",
        envs,
        learning_rate=LEARNING_RATE,
        n_steps=N_STEPS,
        batch_size=N_ENVS * N_STEPS,
        n_epochs=N_EPOCHS,
        ent_coef=0.01,
        policy_kwargs={
            "features_extractor_class": OneLayer,
            "net_arch": {"pi": [], "vf": []},
            "lstm_hidden_size": LSTM_SIZE,
            "shared_lstm": shares_lstm,
            "enable_critic_lstm": not shares_lstm,
        },
        seed=0,
        device="cpu",
    )
    _, callback = model._setup_learn(total_timesteps=1_000_000)
    # The first rollout starts with the first step of an episode; a second one does not.
    n_rollouts = 2 if kind is Episodes.ONGOING else 1
    for _ in range(n_rollouts):
        model.collect_rollouts(envs, callback, model.rollout_buffer, N_STEPS)
    as_collected = dict(vars(model.rollout_buffer))

    def train() -> None:
        # Training replaces the buffer's arrays by reshaped ones; restore the collected ones.
        vars(model.rollout_buffer).update(as_collected)
        model.train()

    return train
