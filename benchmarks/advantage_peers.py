"""Advantages as computed by other libraries and by a loop over single steps.

Shapes: E = environments, T = steps of each. Each peer gets the data in its fastest layout, and
everything that can be prepared is prepared outside the timed call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

GAMMA, GAE_LAMBDA = 0.99, 0.95
P_TERMINATED = 0.02

Estimate = Callable[[], tuple[Tensor, Tensor]]
"""A call to time; its advantages and returns, in any layout, are checked first."""


@dataclass(frozen=True)
class Rollout:
    """Random steps ``[T, E]`` without truncation, which the peers treat differently if at all."""

    rewards: Tensor
    values: Tensor
    next_values: Tensor
    terminated: Tensor
    truncated: Tensor

    @classmethod
    def random(cls, n_envs: int, n_steps: int) -> Rollout:
        """Draw a rollout whose next values are the values of the following step."""
        generator = torch.Generator().manual_seed(n_envs + n_steps)
        rewards = torch.randn(n_steps, n_envs, generator=generator)
        values = torch.randn(n_steps + 1, n_envs, generator=generator)
        terminated = torch.rand(n_steps, n_envs, generator=generator) < P_TERMINATED
        truncated = torch.zeros_like(terminated)
        return cls(rewards, values[:-1].clone(), values[1:].clone(), terminated, truncated)


def stable_baselines3(rollout: Rollout) -> Estimate:
    """Return Stable-Baselines3's own method on a filled buffer: numpy, a loop over steps."""
    from gymnasium import spaces
    from stable_baselines3.common.buffers import RolloutBuffer

    n_steps, n_envs = rollout.rewards.shape
    one = spaces.Box(-1.0, 1.0, (1,), np.float32)
    buffer = RolloutBuffer(
        n_steps, one, one, "cpu", gae_lambda=GAE_LAMBDA, gamma=GAMMA, n_envs=n_envs
    )
    ended = rollout.terminated.numpy()
    buffer.rewards[:] = rollout.rewards.numpy()
    buffer.values[:] = rollout.values.numpy()
    buffer.episode_starts[1:] = ended[:-1]
    last_values, last_dones = rollout.next_values[-1], ended[-1]

    def estimate() -> tuple[Tensor, Tensor]:
        buffer.compute_returns_and_advantage(last_values, last_dones)
        return torch.from_numpy(buffer.advantages), torch.from_numpy(buffer.returns)

    return estimate


def torchrl_loop(rollout: Rollout) -> Estimate:
    """Return TorchRL's loop over steps, in the faster of its two layouts."""
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    return _faster_layout(generalized_advantage_estimate, rollout)


def torchrl_vectorised(rollout: Rollout) -> Estimate:
    """Return TorchRL's convolution over padded episodes, in the faster of its two layouts."""
    from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

    return _faster_layout(vec_generalized_advantage_estimate, rollout)


def tianshou(rollout: Rollout) -> Estimate:
    """Return Tianshou's numba loop over all steps of all environments, one after another."""
    from tianshou.algorithm.algorithm_base import _gae

    def flat(stored: Tensor) -> np.ndarray:
        return stored.t().contiguous().view(-1).numpy()

    ends = rollout.terminated.clone()
    ends[-1] = True
    reachable = rollout.next_values.masked_fill(rollout.terminated, 0.0)
    rewards, values = flat(rollout.rewards), flat(rollout.values)
    next_values, end_flag = flat(reachable), flat(ends)
    shape = tuple(rollout.rewards.t().shape)

    def estimate() -> tuple[Tensor, Tensor]:
        advantages = _gae(values, next_values, rewards, end_flag, GAMMA, GAE_LAMBDA)
        returns = advantages + values
        return torch.from_numpy(advantages).view(shape), torch.from_numpy(returns).view(shape)

    return estimate


PEERS: dict[str, Callable[[Rollout], Estimate]] = {
    "stable-baselines3": stable_baselines3,
    "torchrl, loop": torchrl_loop,
    "torchrl, vectorised": torchrl_vectorised,
    "tianshou": tianshou,
}


def step_by_step(rollout: Rollout, n_envs: int | None = None) -> Estimate:
    """Return a loop over environments and single steps, with one tensor per number."""
    rewards, values = rollout.rewards.t().contiguous(), rollout.values.t().contiguous()
    next_values, terminated = rollout.next_values.t().contiguous(), rollout.terminated.t()
    n_envs = n_envs or len(rewards)

    def estimate() -> tuple[Tensor, Tensor]:
        advantages, returns = torch.zeros_like(rewards), torch.zeros_like(rewards)
        for env in range(n_envs):
            carried = torch.tensor(0.0)
            for t in reversed(range(rewards.shape[1])):
                continues = 1.0 - float(terminated[env, t])
                reached = next_values[env, t] * continues
                delta = rewards[env, t] + GAMMA * reached - values[env, t]
                carried = delta + GAMMA * GAE_LAMBDA * continues * carried
                advantages[env, t] = carried
                returns[env, t] = carried + values[env, t]
        return advantages, returns

    return estimate


def seconds_step_by_step(rollout: Rollout) -> float:
    """Estimate how long the loop over single steps takes, from a few environments."""
    total = rollout.rewards.shape[1]
    some = min(total, 4)
    start = perf_counter()
    step_by_step(rollout, some)()
    return (perf_counter() - start) * total / some


def _faster_layout(function: Callable[..., tuple[Tensor, Tensor]], rollout: Rollout) -> Estimate:
    """Return a TorchRL estimator on ``[T, E]`` or on ``[E, T, 1]``, whichever runs faster."""

    def build(lay_out: Callable[[Tensor], Tensor]) -> Estimate:
        values, next_values = lay_out(rollout.values), lay_out(rollout.next_values)
        rewards, terminated = lay_out(rollout.rewards), lay_out(rollout.terminated)

        @torch.no_grad()
        def estimate() -> tuple[Tensor, Tensor]:
            return function(GAMMA, GAE_LAMBDA, values, next_values, rewards, terminated, terminated)

        return estimate

    def seconds(estimate: Estimate) -> float:
        times: list[float] = []
        for _ in range(4):
            start = perf_counter()
            estimate()
            times.append(perf_counter() - start)
        return min(times)

    time_major = build(lambda stored: stored)
    env_major = build(lambda stored: stored.t().contiguous().unsqueeze(-1))
    return min((time_major, env_major), key=seconds)
