"""Fills a rollout buffer from environments.

Shapes: ``E`` environments, ``D`` discrete heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from esper.errors import UnsupportedEnvironmentError, type_of
from esper.simic.agent import Decision, PPOAgent, TamiyoRolloutBuffer
from esper.simic.policy.masks import ChoiceMasks, Condition
from esper.simic.policy.normalizers import RewardNormalizer
from esper.simic.policy.observations import Observations, map_leaves, named_leaves
from esper.simic.rollout.environments import Environments, VectorEnvironments
from esper.simic.tensors import to_device
from esper.stopwatch import Stopwatch


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
    """One step of all environments: what was observed and decided, and what came of it."""

    observations: Any
    """``[E, ...]`` that the decision was based on."""
    decision: Decision
    actions: NDArray[np.int64]
    """``[E, D]``."""
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
    info: Any
    """As the environments gave it."""


class VectorCollector:
    """Steps environments with an agent, from one buffer to the next without interruption.

    Environments say what is legal in ``info["action_mask"]`` or by a method ``action_masks()``; see
    :class:`~esper.simic.policy.mask_reader.MaskReader` for the forms. Growth environments give the
    legal combinations in an attribute ``masks``.
    """

    def __init__(
        self,
        envs: VectorEnv[Any, Any, Any] | Environments,
        agent: PPOAgent,
        *,
        seed: int | None = None,
        reward_normalizer: RewardNormalizer | None = None,
    ) -> None:
        self.environments = _adapt(envs, agent)
        self.envs: Any = envs
        self.agent, self.reward_normalizer = agent, reward_normalizer
        n_envs = self.environments.n_envs
        self._masks: Any
        observations, self._masks = self.environments.reset(seed)
        self._observations = self._place(observations)
        self._state: Tensor = agent.initial_state(n_envs)
        self._starts = torch.zeros(n_envs, dtype=torch.bool, device=agent.device)
        self._any_start = False
        self._returns = np.zeros(n_envs)
        self._lengths = np.zeros(n_envs, dtype=np.int64)
        self.stopwatch = Stopwatch()

    @property
    def has_masks(self) -> bool:
        """Whether the environments say what is legal."""
        return self._masks is not None

    def collect(
        self,
        buffer: TamiyoRolloutBuffer,
        on_step: Callable[[CollectedStep], None] | None = None,
    ) -> CollectedEpisodes:
        """Empty the buffer and fill it with new steps; return the episodes that ended.

        A function is called after every step.
        """
        buffer.reset()
        episodes = CollectedEpisodes()
        while not buffer.is_full:
            step = self.step(buffer)
            if step.dones.any():
                episodes.returns += step.episode_returns[step.dones].tolist()
                episodes.lengths += step.episode_lengths[step.dones].tolist()
            if on_step is not None:
                on_step(step)
        self.finish(buffer)
        return episodes

    def step(self, buffer: TamiyoRolloutBuffer) -> CollectedStep:
        """Take one step of all environments and add it to a buffer that has room."""
        agent = self.agent
        with self.stopwatch.measure("acting"):
            starts = self._starts if self._any_start else None
            decision = agent.act(self._observations, self._masks, self._state, starts)
            actions, numbers = decision.read(agent.spec)
        taken = self.environments.step(actions, numbers)
        bootstraps = None
        if taken.final is not None:
            bootstraps = agent.value(self._place(taken.final), decision.next_state)
        dones = taken.terminated | taken.truncated
        rewards = taken.rewards
        if self.reward_normalizer is not None:
            rewards = self.reward_normalizer(rewards, dones)
        with self.stopwatch.measure("storing"):
            buffer.add(
                self._observations,
                decision,
                rewards=rewards,
                dones=dones,
                truncated=taken.truncated,
                bootstrap_values=bootstraps,
                skipped=taken.skipped,
            )
        seen, self._observations = self._observations, self._place(taken.observations)
        self._masks = taken.masks
        self._state = decision.next_state
        starts = dones if taken.skipped is None else dones | taken.skipped
        self._any_start = bool(starts.any())
        self._starts = to_device(torch.from_numpy(starts), agent.device)
        returns, lengths = self._count(taken.rewards, dones, taken.skipped)
        return CollectedStep(
            seen,
            decision,
            actions,
            taken.rewards,
            dones,
            taken.truncated,
            returns,
            lengths,
            taken.info,
        )

    def finish(self, buffer: TamiyoRolloutBuffer) -> None:
        """Give a buffer the values of the states that its last steps led to."""
        state = self._state.masked_fill(self._starts.unsqueeze(-1), 0.0)
        buffer.finish(self.agent.value(self._observations, state))

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of everything the next step depends on, except environments and agent."""
        state: dict[str, Tensor] = {
            "state": self._state,
            "starts": self._starts,
            "returns": torch.from_numpy(self._returns),
            "lengths": torch.from_numpy(self._lengths),
            **named_leaves("observations", self._observations),
        }
        legal = getattr(self._masks, "legal", None)
        if isinstance(legal, Tensor):
            state["masks"] = legal
            for number, condition in enumerate(self._masks.conditions):
                place = torch.tensor([condition.child, condition.parent])
                state[f"condition.{number}.heads"] = place
                state[f"condition.{number}.table"] = condition.table
        return {name: tensor.clone() for name, tensor in state.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue where :meth:`state_dict` was called; the environments must be there already."""
        device = self.agent.device
        leaves = {
            name.partition(".")[2]: tensor.to(device, copy=True)
            for name, tensor in state.items()
            if name.partition(".")[0] == "observations"
        }
        self._observations = leaves.get("", leaves)
        self._state = state["state"].to(device, copy=True)
        self._starts = state["starts"].to(device, copy=True)
        self._any_start = bool(self._starts.any())
        self._returns = state["returns"].numpy().copy()
        self._lengths = state["lengths"].numpy().copy()
        joint = getattr(getattr(self.envs, "unwrapped", None), "masks", None)
        self._masks = _saved_masks(state, device) if "masks" in state else joint

    def _count(
        self,
        rewards: NDArray[Any],
        dones: NDArray[np.bool_],
        skipped: NDArray[np.bool_] | None,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the totals of the episodes that end with this step, and reset their counters."""
        returns, lengths = self._returns + rewards, self._lengths + 1
        if skipped is not None:
            returns, lengths = np.where(skipped, 0.0, returns), np.where(skipped, 0, lengths)
        self._returns, self._lengths = returns, lengths
        if dones.any():
            self._returns = np.where(dones, 0.0, returns)
            self._lengths = np.where(dones, 0, lengths)
        return returns, lengths

    def _place(self, observations: Observations) -> Observations:
        return map_leaves(lambda tensor: to_device(tensor, self.agent.device), observations)


def _saved_masks(state: dict[str, Tensor], device: torch.device) -> Any:
    conditions: list[Condition] = []
    while f"condition.{len(conditions)}.heads" in state:
        prefix = f"condition.{len(conditions)}"
        child, parent = cast("list[int]", state[f"{prefix}.heads"].tolist())
        table = state[f"{prefix}.table"].to(device, copy=True)
        conditions.append(Condition(child, parent, table))
    return ChoiceMasks(state["masks"].to(device, copy=True), tuple(conditions))


def _adapt(envs: VectorEnv[Any, Any, Any] | Environments, agent: PPOAgent) -> Environments:
    """Return environments that a collector can drive, checked against the agent."""
    squash = bool(getattr(getattr(agent.policy, "heads", None), "squash", False))
    if isinstance(envs, VectorEnv):
        rewards = getattr(envs.unwrapped, "rewards", None)
        gamma = getattr(rewards, "gamma", agent.config.gamma)
        if getattr(rewards, "shaping", 0.0) and gamma != agent.config.gamma:
            raise UnsupportedEnvironmentError(
                f"the rewards are shaped for gamma {gamma} and the agent's gamma is "
                f"{agent.config.gamma}; make them equal: PPOConfig(gamma={gamma})."
            )
        envs = VectorEnvironments(envs, agent.spec, squash=squash, device=agent.device)
    if not isinstance(envs, Environments):
        raise UnsupportedEnvironmentError(
            f"envs is {type_of(envs)}; a Gymnasium vector environment is needed, such as "
            "SyncVectorEnv([make_env] * 8)."
        )
    given, expected = envs.observation_spec.leaves, agent.policy.observation_spec.leaves
    if given != expected:
        raise UnsupportedEnvironmentError(
            f"observations are {given}; the policy was built for {expected}. A policy for vectors "
            "reads a flat Box: wrap the environment in gymnasium.wrappers.FlattenObservation."
        )
    return envs
