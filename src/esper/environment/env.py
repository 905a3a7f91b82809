"""Growing one host as a Gymnasium environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from esper.environment.options import require_options
from esper.environment.rewards import REWARD_TERMS
from esper.environment.vector_env import GrowthVectorEnv
from esper.errors import ResetNeededError
from esper.simic.policy.action_spec import ActionSpec
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout
from esper.tasks import Task


class GrowthEnv(gymnasium.Env[NDArray[np.float32], NDArray[np.int64]]):
    """One host; each step trains it for one epoch.

    Episodes are those of a :class:`GrowthVectorEnv` with one environment, which explains
    termination, masks and illegal actions.

    Examples:
        >>> env = esper.GrowthEnv("spirals")
        >>> observation, info = env.reset(seed=0)
        >>> action = env.action_space.sample(mask=info["action_mask"])
        >>> observation, reward, terminated, truncated, info = env.step(action)
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's name and form

    def __init__(self, task: str | Task = "digits", **options: Any) -> None:
        """Make the environment; options are those of :class:`GrowthVectorEnv`."""
        self.vector = GrowthVectorEnv(task, 1, autoreset=False, **options)
        """The underlying vector environment."""
        self.layout: ObservationLayout = self.vector.layout
        """The meaning of each column of an observation."""
        self.action_spec: ActionSpec = self.vector.action_spec
        """The heads of an action, and which of them each op reads."""
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space

    def __repr__(self) -> str:
        return f"GrowthEnv({self.vector.task.name!r})"

    @property
    def masks(self) -> ActionMasks:
        """The current legal actions, as a batch of one."""
        return self.vector.masks

    def action_masks(self) -> NDArray[np.bool_]:
        """Return the concatenated masks of all heads, the union over ops, as sb3-contrib needs."""
        return self.vector.action_masks()[0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Start a new episode; equal seeds give equal episodes."""
        require_options(options or {}, ())
        observations, info = self.vector.reset(seed=seed)
        super().reset(seed=None if seed is None else int(seed))
        return observations[0], {"action_mask": info["action_mask"][0]}

    def step(
        self, action: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Apply one action, a choice for each of eight heads, and train for one epoch."""
        if self.vector.growth.records.is_over[0]:
            raise ResetNeededError("the episode is over; call reset() to start another.")
        observations, rewards, terminated, truncated, info = self.vector.step(
            np.asarray(action)[None]
        )
        names = ("was_refused", "was_restored", "illegal_action", "refusal", "intervention", "op")
        single: dict[str, Any] = {"action_mask": info["action_mask"][0]}
        single |= {name: _plain(info[name][0]) for name in (*names, "score", "flops")}
        single["reward_terms"] = {n: _plain(info["reward_terms"][n][0]) for n in REWARD_TERMS}
        if "final_info" in info:
            names = ("final_score", "n_epochs", "host_parameters", "seed_parameters")
            single |= {name: _plain(info["final_info"][name][0]) for name in names}
        return observations[0], float(rewards[0]), bool(terminated[0]), bool(truncated[0]), single

    def state_dict(self) -> dict[str, Any]:
        """Return everything the next step depends on: tensors and plain values."""
        return self.vector.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned, bit for bit."""
        self.vector.load_state_dict(state)


def _plain(value: Any) -> Any:
    """Return a number of NumPy's as Python's own."""
    item = getattr(value, "item", None)
    return value if item is None else item()
