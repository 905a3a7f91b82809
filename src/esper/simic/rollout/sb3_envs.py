"""Vector environments of Stable-Baselines3 (``VecEnv``) as Gymnasium's. Shapes: ``E`` environments.

The package need not be installed: a ``VecEnv`` is known by where its classes were defined.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


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
        if all(self._have_masks()):
            self.action_masks = self._read_masks

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start new episodes."""
        if seed is not None:
            self.envs_of_sb3.seed(seed)
        return self.envs_of_sb3.reset(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments; a time limit is told from an end as Stable-Baselines3 does."""
        observations, rewards, dones, infos = self.envs_of_sb3.step(actions)
        is_cut = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        final = np.full(self.num_envs, None, object)
        for number in np.flatnonzero(dones):
            final[number] = infos[number]["terminal_observation"]
        truncated = np.asarray(dones) & is_cut
        return observations, rewards, dones & ~truncated, truncated, {"final_obs": final}

    def close(self, **_: Any) -> None:
        """Close the environments."""
        self.envs_of_sb3.close()

    def _have_masks(self) -> list[bool]:
        try:
            return self.envs_of_sb3.env_method("has_wrapper_attr", "action_masks")
        except AttributeError:  # environments of other kinds than Gymnasium's
            return [False]

    def _read_masks(self) -> Any:
        return np.stack(self.envs_of_sb3.env_method("action_masks"))
