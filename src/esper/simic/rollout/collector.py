"""Fills a rollout buffer from a Gymnasium vector environment.

Shapes: ``E`` environments, ``H`` heads, ``K`` choices of the widest head.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from esper.errors import ShapeError, UnsupportedEnvironmentError
from esper.simic.agent import ActionSpec, Decision, PPOAgent, TamiyoRolloutBuffer
from esper.simic.stopwatch import Stopwatch


@dataclass
class CollectedEpisodes:
    """The episodes that ended while a buffer was filled."""

    returns: list[float] = field(default_factory=list[float])
    """Undiscounted sum of rewards of each."""

    lengths: list[int] = field(default_factory=list[int])
    """Steps of each."""

    @property
    def mean_return(self) -> float:
        """Mean of the returns; NaN if no episode ended."""
        return float(np.mean(self.returns)) if self.returns else float("nan")


@dataclass(frozen=True, eq=False)
class CollectedStep:
    """One step of all environments: what was seen and decided, and what came of it."""

    observations: Tensor
    """``[E, D]`` what the decision was made on."""
    decision: Decision
    actions: NDArray[np.int64]
    """``[E, H]``."""
    rewards: NDArray[Any]
    """``[E]``."""
    dones: NDArray[np.bool_]
    """``[E]`` episodes that ended, for whatever reason."""
    truncated: NDArray[np.bool_]
    """``[E]`` episodes that were cut short from outside."""
    episode_returns: NDArray[np.float64]
    """``[E]`` undiscounted sum of the episode's rewards so far, this one included."""
    episode_lengths: NDArray[np.int64]
    """``[E]`` the episode's steps so far, this one included."""
    info: dict[str, Any]
    """As the environments gave it."""


class VectorCollector:
    """Steps environments with an agent, from one buffer to the next without interruption.

    The environments have flat ``Box`` observations and ``MultiDiscrete`` (or ``Discrete``) actions
    and reset in the step that ends an episode. They may say what is legal in
    ``info["action_mask"]``: a tuple with a mask for each head, as ``MultiDiscrete.sample(mask=)``
    takes it, or the same masks as one flat array. Growth environments say more, which combinations
    are legal, in an attribute ``masks``; that is used where there is one.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], agent: PPOAgent, *, seed: int | None = None):
        _check_environment(envs, agent)
        self.envs, self.agent = envs, agent
        observations, info = envs.reset(seed=seed)
        self._observations = self._to_tensor(observations)
        self._masks = self._read_masks(info)
        self._state: Tensor = agent.initial_state(envs.num_envs)
        self._starts = torch.zeros(envs.num_envs, dtype=torch.bool, device=agent.device)
        self._returns = np.zeros(envs.num_envs)
        self._lengths = np.zeros(envs.num_envs, dtype=np.int64)
        self.stopwatch = Stopwatch()

    def collect(self, buffer: TamiyoRolloutBuffer) -> CollectedEpisodes:
        """Empty the buffer and fill it with new steps; return the episodes that ended."""
        buffer.reset()
        episodes = CollectedEpisodes()
        while not buffer.is_full:
            step = self.step(buffer)
            episodes.returns += step.episode_returns[step.dones].tolist()
            episodes.lengths += step.episode_lengths[step.dones].tolist()
        self.finish(buffer)
        return episodes

    def step(self, buffer: TamiyoRolloutBuffer) -> CollectedStep:
        """Take one step of all environments and add it to a buffer that has room."""
        with self.stopwatch.measure("acting"):
            decision = self.agent.act(self._observations, self._masks, self._state, self._starts)
            actions = decision.actions.cpu().numpy()
        is_single = isinstance(self.envs.single_action_space, spaces.Discrete)
        given = actions[:, 0] if is_single else actions
        observations, rewards, terminated, truncated, info = self.envs.step(given)
        # An episode that ended by itself needs no estimate of what would have followed.
        is_cut = truncated & ~terminated
        bootstraps = None
        if is_cut.any():
            final = self._final_observations(info, is_cut)
            bootstraps = self.agent.value(final, decision.next_state)
        dones = terminated | truncated
        with self.stopwatch.measure("storing"):
            buffer.add(
                self._observations,
                decision,
                rewards=rewards,
                dones=dones,
                truncated=is_cut,
                bootstrap_values=bootstraps,
            )
        seen, self._observations = self._observations, self._to_tensor(observations)
        self._masks = self._read_masks(info)
        self._state = decision.next_state
        self._starts = torch.from_numpy(dones).to(self.agent.device)
        returns, lengths = self._count(rewards, dones)
        return CollectedStep(
            seen, decision, actions, rewards, dones, is_cut, returns, lengths, info
        )

    def finish(self, buffer: TamiyoRolloutBuffer) -> None:
        """Give a buffer the values of the states that its last steps led to."""
        state = self._state.masked_fill(self._starts.unsqueeze(-1), 0.0)
        buffer.finish(self.agent.value(self._observations, state))

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of everything that the next step depends on, but environments and agent."""
        state: dict[str, Tensor] = {
            "observations": self._observations,
            "state": self._state,
            "starts": self._starts,
            "returns": torch.from_numpy(self._returns),
            "lengths": torch.from_numpy(self._lengths),
        }
        if isinstance(self._masks, Tensor):
            state["masks"] = self._masks
        return {name: tensor.clone() for name, tensor in state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Go on where :meth:`state_dict` was called; the environments must have been put there."""
        device = self.agent.device
        self._observations = state["observations"].to(device, copy=True)
        self._state = state["state"].to(device, copy=True)
        self._starts = state["starts"].to(device, copy=True)
        self._returns = state["returns"].numpy().copy()
        self._lengths = state["lengths"].numpy().copy()
        joint = getattr(self.envs.unwrapped, "masks", None)
        self._masks = state["masks"].to(device, copy=True) if "masks" in state else joint

    def _read_masks(self, info: dict[str, Any]) -> Any:
        """Return what is legal now: which combinations, if the environment says so."""
        joint = getattr(self.envs.unwrapped, "masks", None)
        return read_masks(info, self.agent) if joint is None else joint

    def _count(
        self, rewards: NDArray[Any], dones: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return what episodes have come to with this step, and begin anew those that ended."""
        returns, lengths = self._returns + rewards, self._lengths + 1
        self._returns, self._lengths = np.where(dones, 0.0, returns), np.where(dones, 0, lengths)
        return returns, lengths

    def _final_observations(self, info: dict[str, Any], is_cut: np.ndarray) -> Tensor:
        """Return ``[E, observation size]`` with the last observation of episodes cut short."""
        final = self._observations.clone()
        for env in np.flatnonzero(is_cut):
            final[env] = self._to_tensor(info["final_obs"][env])
        return final

    def _to_tensor(self, observations: Any) -> Tensor:
        # A copy: an environment may write its next observation into the same array.
        return torch.from_numpy(np.array(observations, np.float32)).to(self.agent.device)


def read_masks(info: dict[str, Any], agent: PPOAgent) -> Tensor | None:
    """Return ``info["action_mask"]`` of a vector environment as ``[E, H, K]``, or None."""
    if "action_mask" not in info:
        return None
    masks, spec = np.asarray(info["action_mask"]), agent.spec
    if masks.dtype == object:
        missing = [env for env, mask in enumerate(masks) if mask is None]
        if missing:
            raise ShapeError(
                f"environment {missing[0]} gave no info['action_mask'] but others did; "
                "every environment needs one at every reset and step."
            )
        heads = [np.stack(column) for column in zip(*masks, strict=True)]
    elif masks.ndim == 2 and masks.shape[1] == sum(spec.sizes):
        heads = np.split(masks, np.cumsum(spec.sizes)[:-1], axis=1)
    else:
        raise ShapeError(
            f"info['action_mask'] has shape {masks.shape}; a tuple with a mask for each head "
            f"(sizes {spec.sizes}), or all of them as one array of {sum(spec.sizes)}, is needed."
        )
    return spec.pad_masks(heads).to(agent.device)


def _check_environment(envs: VectorEnv[Any, Any, Any], agent: PPOAgent) -> None:
    rewards = getattr(envs.unwrapped, "rewards", None)
    gamma = getattr(rewards, "gamma", agent.config.gamma)
    if getattr(rewards, "shaping", 0.0) and gamma != agent.config.gamma:
        raise UnsupportedEnvironmentError(
            f"the rewards are shaped for gamma {gamma} and the agent's gamma is "
            f"{agent.config.gamma}; make them equal: PPOConfig(gamma={gamma})."
        )
    mode = envs.metadata.get("autoreset_mode")
    if mode != AutoresetMode.SAME_STEP:
        raise UnsupportedEnvironmentError(
            f"the vector environment's autoreset mode is {mode}; SAME_STEP is needed: "
            "SyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.SAME_STEP)."
        )
    space = cast(Any, envs.single_observation_space)
    size = agent.policy.observation_size
    if not isinstance(space, spaces.Box) or space.shape != (size,):
        raise UnsupportedEnvironmentError(
            f"the observation space is {space}; a flat Box of {size} numbers, as the policy reads, "
            "is needed. Wrap the environment in gymnasium.wrappers.FlattenObservation."
        )
    action_space = cast(Any, envs.single_action_space)
    if ActionSpec.from_space(action_space).sizes != agent.spec.sizes:
        raise UnsupportedEnvironmentError(
            f"the action space is {action_space}; the agent's heads have sizes {agent.spec.sizes}."
        )
