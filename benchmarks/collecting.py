"""Collecting steps, and whole training, against the bare network and against other libraries."""

from __future__ import annotations

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
from learning_environments import Recall
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
RECALL = "train on recall, LSTM, 8 environments, defaults"
RECALL_MATCHED = "train on recall, LSTM 128, 8 environments, minibatches of 128"
PEERS = {
    CARTPOLE: "SB3 PPO, same settings",
    RECALL: "RecurrentPPO, its defaults (LSTM 256)",
    RECALL_MATCHED: "RecurrentPPO, same settings and sizes",
}


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
    matched = {"n_steps": 128, "batch_size": 128, "sequence_length": None}
    ours: dict[str, Call] = {
        CARTPOLE: partial(PPO("CartPole-v1", n_envs=8).learn, ROLLOUT),
        RECALL: partial(PPO(Recall, "lstm", n_envs=8).learn, ROLLOUT),
        RECALL_MATCHED: partial(PPO(Recall, "lstm", n_envs=8, **matched).learn, ROLLOUT),
    }
    limits = {CARTPOLE: 3.0, RECALL: 8.0, RECALL_MATCHED: None}
    try:
        peers = _peers()
    except ImportError as error:
        timings = time_side_by_side(ours, effort)
        gone = partial(missing_row, timings, group=GROUP, kind=Ratio.SPEEDUP)
        note = f"not installed ({error.name})"
        return [gone(what, PEERS[what], limit=limits[what], note=note) for what in ours]
    timings = time_side_by_side({**ours, **peers}, effort)
    faster = partial(compare, timings, group=GROUP, kind=Ratio.SPEEDUP, per_call=ROLLOUT)
    return [faster(what, PEERS[what], limit=limits[what]) for what in ours]


def _peers() -> dict[str, Call]:
    """Return the same training by the peers: with the same settings, or with their defaults."""
    import stable_baselines3
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env

    common = {"seed": 0, "device": "cpu"}
    plain = stable_baselines3.PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs=8), n_steps=256, **common
    )
    defaults = RecurrentPPO("MlpLstmPolicy", make_vec_env(Recall, n_envs=8), **common)
    sizes = {"lstm_hidden_size": 128, "net_arch": {"pi": [], "vf": []}}
    matched = RecurrentPPO(
        "MlpLstmPolicy", make_vec_env(Recall, n_envs=8), policy_kwargs=sizes, **common
    )
    models = {CARTPOLE: plain, RECALL: defaults, RECALL_MATCHED: matched}
    return {PEERS[what]: partial(model.learn, ROLLOUT) for what, model in models.items()}
