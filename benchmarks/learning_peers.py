"""Training with Esper, Stable-Baselines3 and sb3-contrib, and evaluating what they learned.

Every library gets environments made by the same function, and the episodes of training are logged
by the same wrapper. A trained policy is a function of observations, recurrent state, masks and
whether an episode starts, all of several environments; it returns actions and the next state.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO, RecurrentPPO
from stable_baselines3 import PPO as SB3PPO
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn

from esper.simic import PPO
from learning_environments import ReplaceIllegal, Task

Policy = Callable[[Any, Any, Any, np.ndarray], tuple[Any, Any]]

N_ENVS = 8
MATCHED_OR_NOT = ("defaults", "matched")
MATCHED_BATCH_SIZES = {False: 64, True: 128}
"""Without and with memory; what else is matched is Esper's default."""
PEERS = {"sb3": SB3PPO, "maskable": MaskablePPO, "recurrent": RecurrentPPO}
NAMES = {
    "esper": "Esper",
    "sb3": "SB3 PPO",
    "maskable": "MaskablePPO",
    "recurrent": "RecurrentPPO",
    "random": "random",
}
SEED_SPACING = 1000
"""Environment i of a run gets seed + i; far apart, so that no two runs share one."""
FIRST_EVALUATION_SEED = 1_000_000


class EpisodeLog(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Notes the return of each episode, and the steps that its environment had taken by then."""

    def __init__(self, env: gymnasium.Env[Any, Any], episodes: list[tuple[int, float]]) -> None:
        super().__init__(env)
        self._episodes, self._steps, self._sum = episodes, 0, 0.0

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._sum = 0.0
        return self.env.reset(**options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step and count it."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._steps += 1
        self._sum += float(reward)
        if terminated or truncated:
            self._episodes.append((self._steps, self._sum))
        return observation, reward, terminated, truncated, info


class OneLayer(BaseFeaturesExtractor):
    """The layer between observation and LSTM that Esper's recurrent policy has."""

    def __init__(self, observation_space: spaces.Space[Any], features_dim: int) -> None:
        super().__init__(observation_space, features_dim=features_dim)
        self.layer = nn.Linear(spaces.flatdim(observation_space), features_dim)

    def forward(self, observations: Tensor) -> Tensor:
        """Return the features."""
        return torch.relu(self.layer(observations))


def libraries_for(task: Task) -> tuple[str, ...]:
    """Return the libraries that a task is run with, Esper first."""
    if task.needs_memory:
        return ("esper", "maskable", "recurrent") if task.has_masks else ("esper", "recurrent")
    return ("esper", "maskable") if task.has_masks else ("esper", "sb3")


def settings_for(task: Task, library: str) -> tuple[str, ...]:
    """Return the settings that a library is run with on a task.

    Where Esper's defaults are the matched settings, it is run once.
    """
    if library != "esper":
        return ("defaults", "matched")
    configs = [make_esper(task, task.make, 0, setting).config for setting in MATCHED_OR_NOT]
    settings = ("defaults",) if configs[0] == configs[1] else MATCHED_OR_NOT
    has_heads = isinstance(task.make().action_space, spaces.MultiDiscrete)
    return (*settings, "joint clip") if has_heads else settings


def train(
    task: Task, library: str, setting: str, seed: int, steps: int
) -> tuple[Policy, list[tuple[int, float]]]:
    """Train a policy; return it and the episodes: environment steps by then, and return."""
    episodes: list[tuple[int, float]] = []
    if library == "esper":
        model = make_esper(task, partial(_logged, task.make, episodes), seed, setting)
        model.learn(steps)
        return _esper_policy(model), _in_order(episodes, model.n_envs)
    make = task.make
    if task.has_masks and library == "recurrent":
        make = partial(_replacing, make)
    n_envs, settings = 1, dict[str, Any]()
    if setting == "matched":
        n_envs, settings = N_ENVS, matched_settings(task, library)
    envs = DummyVecEnv([partial(_logged, make, episodes)] * n_envs)
    names = {"vector": "MlpPolicy", "image": "CnnPolicy", "dict": "MultiInputPolicy"}
    policy = "MlpLstmPolicy" if library == "recurrent" else names[task.kind]
    model = PEERS[library](
        policy, envs, seed=seed * SEED_SPACING, device="cpu", verbose=0, **settings
    )
    model.learn(steps)
    return _peer_policy(model, library), _in_order(episodes, n_envs)


def make_esper(
    task: Task, env: Callable[[], gymnasium.Env[Any, Any]], seed: int, setting: str = "defaults"
) -> PPO:
    """Return Esper's PPO as its documentation makes it."""
    policy = "lstm" if task.needs_memory else None
    extra: dict[str, Any] = {}
    if setting == "matched":
        extra["batch_size"] = MATCHED_BATCH_SIZES[task.needs_memory]
    if setting == "joint clip":
        extra["clip"] = "joint"
    return PPO(env, policy, n_envs=N_ENVS, seed=seed * SEED_SPACING, **extra)


def matched_settings(task: Task, library: str) -> dict[str, Any]:
    """Return Esper's matched settings on a task as arguments for another library."""
    model = make_esper(task, task.make, 0, "matched")
    config, network = model.config, model.network
    layers = list(network.hidden_sizes)
    activation = {"tanh": nn.Tanh, "relu": nn.ReLU}[network.activation]
    shape: dict[str, Any] = {
        "net_arch": {"pi": layers, "vf": layers},
        "activation_fn": activation,
        "log_std_init": network.log_std_init,
    }
    if library == "recurrent":
        shape["net_arch"] = {"pi": [], "vf": []}
        shape["lstm_hidden_size"] = network.lstm_size
        shape["features_extractor_class"] = OneLayer
        shape["features_extractor_kwargs"] = {"features_dim": network.feature_size}
    elif task.kind == "image":
        shape["features_extractor_kwargs"] = {"features_dim": network.image_size}
    if library == "maskable":
        del shape["log_std_init"]
    names = (
        "learning_rate",
        "batch_size",
        "n_epochs",
        "gamma",
        "gae_lambda",
        "clip_range",
        "ent_coef",
        "vf_coef",
        "max_grad_norm",
    )
    settings = {name: getattr(config, name) for name in names}
    return {**settings, "n_steps": model.n_steps, "policy_kwargs": shape}


def random_policy(task: Task, seed: int) -> Policy:
    """Return a policy that draws legal actions."""
    generator = np.random.default_rng(seed)
    space = task.make().action_space

    def act(observations: Any, state: Any, masks: Any, starts: np.ndarray) -> tuple[Any, Any]:
        if masks is None:
            space.seed(int(generator.integers(2**31)))
            return [space.sample() for _ in starts], None
        sizes = space.nvec if isinstance(space, spaces.MultiDiscrete) else [space.n]
        heads = np.split(masks, np.cumsum(sizes)[:-1], axis=1)
        drawn = [np.where(head, generator.random(head.shape), -1.0).argmax(1) for head in heads]
        return np.stack(drawn, 1) if len(drawn) > 1 else drawn[0], None

    return act


def evaluate(task: Task, library: str, policy: Policy, n_episodes: int) -> list[float]:
    """Return the return of each of some episodes, the same ones for every policy."""
    make = task.make
    if task.has_masks and library == "recurrent":
        make = partial(_replacing, make)
    envs = [make() for _ in range(n_episodes)]
    observations = [
        env.reset(seed=FIRST_EVALUATION_SEED + number)[0] for number, env in enumerate(envs)
    ]
    returns = np.zeros(n_episodes)
    is_over = np.zeros(n_episodes, np.bool_)
    masks = _read_masks(envs) if task.has_masks else None
    state, starts = None, np.ones(n_episodes, np.bool_)
    while not is_over.all():
        actions, state = policy(_batch(observations), state, masks, starts)
        starts = np.zeros(n_episodes, np.bool_)
        # Episodes that ended keep their last observation until all have.
        for number in np.flatnonzero(~is_over):
            step = envs[number].step(actions[number])
            observations[number], reward, terminated, truncated, _ = step
            returns[number] += float(reward)
            is_over[number] = terminated or truncated
            if masks is not None and not is_over[number]:
                masks[number] = envs[number].get_wrapper_attr("action_masks")()
    return returns.tolist()


def _esper_policy(model: PPO) -> Policy:
    def act(observations: Any, state: Any, masks: Any, starts: np.ndarray) -> tuple[Any, Any]:
        return model.predict(observations, state, masks=masks, deterministic=True)

    return act


def _peer_policy(model: Any, library: str) -> Policy:
    def act(observations: Any, state: Any, masks: Any, starts: np.ndarray) -> tuple[Any, Any]:
        extra = {"action_masks": masks} if library == "maskable" else {}
        return model.predict(
            observations, state=state, episode_start=starts, deterministic=True, **extra
        )

    return act


def _batch(observations: list[Any]) -> Any:
    if isinstance(observations[0], dict):
        return {key: np.stack([one[key] for one in observations]) for key in observations[0]}
    return np.stack(observations)


def _read_masks(envs: list[gymnasium.Env[Any, Any]]) -> np.ndarray:
    return np.stack([env.get_wrapper_attr("action_masks")() for env in envs])


def _logged(
    make: Callable[[], gymnasium.Env[Any, Any]], episodes: list[tuple[int, float]]
) -> gymnasium.Env[Any, Any]:
    return EpisodeLog(make(), episodes)


def _replacing(make: Callable[[], gymnasium.Env[Any, Any]]) -> gymnasium.Env[Any, Any]:
    return ReplaceIllegal(make())


def _in_order(episodes: list[tuple[int, float]], n_envs: int) -> list[tuple[int, float]]:
    """Return episodes with the steps of all environments instead of their own."""
    return [(steps * n_envs, total) for steps, total in episodes]
