"""Vector environments of Stable-Baselines3 (``VecEnv``) as Gymnasium's. Shapes: ``E`` environments.

The package need not be installed: a ``VecEnv`` is known by where its classes were defined.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from esper.simic.rollout.mask_sources import MASK_KEYS


def is_sb3_vec_env(env: Any) -> bool:
    """Return whether it is a ``VecEnv`` of Stable-Baselines3, or of a subclass."""
    return any(
        kind.__name__ == "VecEnv" and kind.__module__.startswith("stable_baselines3.")
        for kind in type(env).__mro__
    )


class Sb3VectorEnv(VectorEnv[Any, Any, Any]):
    """A ``VecEnv``, whose environments are reset in the step that ends an episode."""

    def __init__(self, envs: Any) -> None:
        self.envs_of_sb3 = envs
        self.num_envs = int(envs.num_envs)
        self.single_observation_space = envs.observation_space
        self.single_action_space = envs.action_space
        self.observation_space = batch_space(envs.observation_space, self.num_envs)
        self.action_space = batch_space(envs.action_space, self.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes."""
        if seed is not None:
            self.envs_of_sb3.seed(seed)
        observations = self.envs_of_sb3.reset()
        return observations, _masks_in(self.envs_of_sb3.unwrapped.reset_infos)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments; a time limit is told from an end as Stable-Baselines3 does."""
        observations, rewards, dones, infos = self.envs_of_sb3.step(actions)
        is_cut = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        final, infos = np.full(self.num_envs, None, object), list(infos)
        for number in np.flatnonzero(dones):
            final[number] = infos[number]["terminal_observation"]
            infos[number] = self.envs_of_sb3.unwrapped.reset_infos[number]
        truncated = np.asarray(dones) & is_cut
        info = {"final_obs": final, **_masks_in(infos)}
        return observations, rewards, dones & ~truncated, truncated, info

    def close(self, **_: Any) -> None:
        """Close the environments."""
        self.envs_of_sb3.close()

    def call(self, name: str, *args: Any) -> list[Any]:
        """Call a method of each environment."""
        try:
            return self.envs_of_sb3.env_method(name, *args)
        except AttributeError:
            if name != "has_wrapper_attr":  # which environments of other kinds do not have
                raise
            return [False] * self.num_envs


def _masks_in(infos: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the masks in the ``info`` of each environment, and which have one."""
    masks = dict[str, Any]()
    for key in MASK_KEYS:
        if any(key in info for info in infos):
            masks[key] = [info.get(key) for info in infos]
            masks[f"_{key}"] = [key in info for info in infos]
    return masks
