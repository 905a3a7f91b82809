"""Collecting steps, and whole training, against the bare network and against other libraries."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from esper.lifecycle.factored_actions import growth_action_spec
from esper.simic import PPO
from esper.simic.agent import PPOAgent
from esper.simic.policy import RecurrentPolicy
from esper.simic.policy.mask_reader import MaskReader
from esper.simic.rollout import VectorCollector
from esper.simic.rollout.environments import LocalEnvironments
from learning_environments import Catch, Recall
from masks import SLOTS
from rows import Ratio, Row, compare, missing_row
from timing import Call, Effort, time_side_by_side
from update import LSTM_SIZE, N_ENVS, N_STEPS, OBSERVATION_SIZE, make_agent

GROUP = "collecting"
SPEC = growth_action_spec(SLOTS)
ROLLOUT = 2048
"""Steps of a rollout in training, of 8 environments together."""

COLLECT = f"collect, {N_ENVS} environments x {N_STEPS} steps, LSTM {LSTM_SIZE}, 8 heads"
NETWORK = "the network alone"
MASKS_FLAT = f"read masks of {N_ENVS} environments, one array each"
MASKS_TUPLE = f"read masks of {N_ENVS} environments, 8 arrays each"
SCATTER = "one scatter of the same masks"
CARTPOLE = "train on CartPole, MLP, 8 environments"
PENDULUM = "train on Pendulum, MLP, 8 environments"
IMAGES = "train on 36x36 images, CNN, 8 environments"
MASKED = "train on three masked heads, MLP, 8 environments"
RECALL = "train on recall, LSTM, 8 environments, defaults"
RECALL_MATCHED = "train on recall, LSTM 128, 8 environments, minibatches of 128"
SB3 = "SB3 PPO, same settings and sizes"
PEERS = {
    CARTPOLE: SB3,
    PENDULUM: SB3,
    IMAGES: SB3,
    MASKED: "MaskablePPO, same settings and sizes",
    RECALL: "RecurrentPPO, its defaults (LSTM 256)",
    RECALL_MATCHED: "RecurrentPPO, same settings and sizes",
}
LIMITS = {CARTPOLE: 2.4, PENDULUM: 1.9, IMAGES: 1.5, MASKED: 2.8, RECALL: 3.0, RECALL_MATCHED: None}


class Idle(gymnasium.Env[np.ndarray, np.ndarray]):
    """Does nothing, so that what is measured is the collector."""

    observation_space = spaces.Box(-np.inf, np.inf, (OBSERVATION_SIZE,), np.float32)
    action_space = spaces.MultiDiscrete(SPEC.sizes)
    observation = np.zeros(OBSERVATION_SIZE, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode that never ends."""
        super().reset(seed=seed)
        self.info = {"action_mask": np.ones(sum(SPEC.sizes), np.int8)}
        return self.observation, self.info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Ignore the action."""
        return self.observation, 0.0, False, False, self.info


class ThreeHeads(gymnasium.Env[np.ndarray, np.ndarray]):
    """Three choices, of which each forbids one at random; a step costs little but the masks."""

    observation_space = spaces.Box(0.0, 1.0, (16,), np.float32)
    action_space = spaces.MultiDiscrete([5, 4, 3])

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode of 50 steps."""
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Reward one choice of the first head."""
        self.time += 1
        return self._observe(), float(action[0] == 1), False, self.time == 50, {}

    def action_masks(self) -> np.ndarray:
        """Return what is legal, all heads side by side."""
        return self.legal

    def _observe(self) -> np.ndarray:
        self.legal = np.ones(12, np.bool_)
        self.legal[self.np_random.integers((0, 5, 9), (5, 9, 12))] = False
        return self.np_random.random(16, dtype=np.float32)


def run(effort: Effort) -> list[Row]:
    """Measure collecting, reading masks and training."""
    agent = make_agent()
    calls: dict[str, Call] = {COLLECT: _collect(agent), NETWORK: _network(agent), **_mask_calls()}
    timings = time_side_by_side(calls, effort)
    cost = partial(compare, timings, group=GROUP, kind=Ratio.COST)
    rows = [
        cost(COLLECT, NETWORK, per_call=N_ENVS * N_STEPS),
        cost(MASKS_FLAT, SCATTER),
        cost(MASKS_TUPLE, SCATTER),
    ]
    return rows + _training(effort)


def _collect(agent: PPOAgent) -> Call:
    environments = LocalEnvironments([Idle() for _ in range(N_ENVS)], SPEC)
    collector = VectorCollector(environments, agent, seed=0)
    return partial(collector.collect, agent.make_buffer(N_ENVS, N_STEPS))


def _network(agent: PPOAgent) -> Call:
    policy = agent.policy
    assert isinstance(policy, RecurrentPolicy)
    observations, state = torch.zeros(N_ENVS, OBSERVATION_SIZE), agent.initial_state(N_ENVS)

    def steps() -> None:
        with torch.no_grad():
            for _ in range(N_STEPS):
                policy._step(observations, state)

    return steps


def _mask_calls() -> dict[str, Call]:
    reader = MaskReader(SPEC, torch.device("cpu"))
    heads = [tuple(np.ones(size, np.int8) for size in SPEC.sizes) for _ in range(N_ENVS)]
    flat = np.ones((N_ENVS, sum(SPEC.sizes)), np.int8)
    place = np.concatenate([np.arange(n) + h * SPEC.n_choices for h, n in enumerate(SPEC.sizes)])

    def scatter() -> None:
        padded = np.zeros((N_ENVS, SPEC.n_heads * SPEC.n_choices), np.bool_)
        padded[:, place] = flat

    return {
        MASKS_FLAT: partial(reader.read_batch, flat),
        MASKS_TUPLE: partial(reader.read_each, heads),
        SCATTER: scatter,
    }


def _training(effort: Effort) -> list[Row]:
    """Compare whole rounds of training: collecting and learning, environments included."""
    effort = replace(effort, counts_cpu=True)
    matched = {"n_steps": 128, "batch_size": 128, "sequence_length": None}
    models = {
        CARTPOLE: PPO("CartPole-v1", n_envs=8),
        PENDULUM: PPO("Pendulum-v1", n_envs=8),
        IMAGES: PPO(Catch, n_envs=8),
        MASKED: PPO(ThreeHeads, n_envs=8),
        RECALL: PPO(Recall, "lstm", n_envs=8),
        RECALL_MATCHED: PPO(Recall, "lstm", n_envs=8, **matched),
    }
    ours: dict[str, Call] = {what: partial(model.learn, ROLLOUT) for what, model in models.items()}
    try:
        peers = _peers()
    except ImportError as error:
        timings = time_side_by_side(ours, effort)
        gone = partial(missing_row, timings, group=GROUP, kind=Ratio.SPEEDUP)
        note = f"not installed ({error.name})"
        return [gone(what, PEERS[what], limit=LIMITS[what], note=note) for what in ours]
    rows = list[Row]()
    for what, call in ours.items():  # in pairs, so that the memory of one is in the caches
        timings = time_side_by_side({what: call, PEERS[what]: peers[what]}, effort)
        faster = partial(compare, timings, group=GROUP, kind=Ratio.SPEEDUP, per_call=ROLLOUT)
        rows.append(faster(what, PEERS[what], limit=LIMITS[what]))
    return rows


def _peers() -> dict[str, Call]:
    """Return the same training by the peers: with the same settings, or with their defaults."""
    from sb3_contrib import MaskablePPO, RecurrentPPO
    from stable_baselines3 import PPO as SB3PPO
    from stable_baselines3.common.env_util import make_vec_env

    common: dict[str, Any] = {"seed": 0, "device": "cpu"}
    same = {**common, "n_steps": ROLLOUT // 8}
    after_images = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}}
    sizes = {"lstm_hidden_size": 128, "net_arch": {"pi": [], "vf": []}}

    def envs(env: Any) -> Any:
        return make_vec_env(env, n_envs=8)

    models = {
        CARTPOLE: SB3PPO("MlpPolicy", envs("CartPole-v1"), **same),
        PENDULUM: SB3PPO("MlpPolicy", envs("Pendulum-v1"), **same),
        IMAGES: SB3PPO("CnnPolicy", envs(Catch), policy_kwargs=after_images, **same),
        MASKED: MaskablePPO("MlpPolicy", envs(ThreeHeads), **same),
        RECALL: RecurrentPPO("MlpLstmPolicy", envs(Recall), **common),
        RECALL_MATCHED: RecurrentPPO("MlpLstmPolicy", envs(Recall), policy_kwargs=sizes, **common),
    }
    return {what: partial(model.learn, ROLLOUT) for what, model in models.items()}
