"""How good a policy is: whole episodes on environments of their own, with an interval."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv

from esper.arrays import Floats, Integers
from esper.config.checks import PositiveInt, check
from esper.config.sb3_names import answers_names
from esper.modes import evaluation_mode, suitable_threads
from esper.progress import ProgressBar, ShowProgress
from esper.simic.policy.observations import map_leaves
from esper.simic.rollout.environments import Environments
from esper.simic.rollout.factory import EnvLike
from esper.simic.tensors import to_device
from esper.statistics import mean_interval

if TYPE_CHECKING:
    from esper.simic.algorithm import PPO


@dataclass(frozen=True, eq=False)
class Evaluated:
    """The episodes of an evaluation."""

    returns: Floats
    """``[n_episodes]`` undiscounted sum of rewards of each episode."""

    lengths: Integers
    """``[n_episodes]`` steps of each episode."""

    low: float
    """Lower end of the 95% confidence interval of the mean return; NaN for one episode."""

    high: float
    """Upper end of the 95% confidence interval of the mean return; NaN for one episode."""

    @property
    def mean(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the returns."""
        return float(self.returns.std())

    @property
    def mean_length(self) -> float:
        """Mean number of steps."""
        return float(self.lengths.mean())

    def __repr__(self) -> str:
        """Return the mean with its interval."""
        return f"Evaluated({self})"

    def __str__(self) -> str:
        """Return the mean with its interval."""
        n = len(self.returns)
        if n == 1:
            return f"return {self.mean:.4g} over 1 episode, which is too few for an interval"
        return f"mean return {self.mean:.4g} [{self.low:.4g}, {self.high:.4g}] over {n} episodes"


@answers_names("evaluate")
@torch.no_grad()
def evaluate(
    model: PPO,
    env: EnvLike | Environments | None = None,
    n_episodes: int = 20,
    *,
    deterministic: bool = True,
    seed: int = 1_000_000,
    progress: ShowProgress = "auto",
) -> Evaluated:
    """Play whole episodes with a policy and return how they went.

    Args:
        model: The model.
        env: As for :class:`PPO`; by default another environment of the kind it was trained on. One
            that is given stays open.
        n_episodes: Episodes to play.
        deterministic: Take the most likely action instead of drawing one.
        seed: Decides the episodes.
        progress: Whether to show a bar; by default in terminals and notebooks.
    """
    check("n_episodes", n_episodes, PositiveInt)
    environments = model.make_environments(env, n_envs=min(n_episodes, 16))
    # Each environment plays a fixed share, so that short episodes do not count more often.
    n_envs = environments.n_envs
    quota = np.array([n_episodes // n_envs + (i < n_episodes % n_envs) for i in range(n_envs)])
    generator = None if deterministic else torch.Generator().manual_seed(seed)
    policy = model.agent.policy
    observations, masks = environments.reset(seed)
    device = model.device
    state = torch.zeros(n_envs, policy.state_size, device=device)
    sums, steps = np.zeros(n_envs), np.zeros(n_envs, np.int64)
    returns, lengths = list[float](), list[int]()
    with ExitStack() as stack:
        stack.enter_context(evaluation_mode(policy))
        stack.enter_context(suitable_threads(policy))
        if not isinstance(env, (gymnasium.Env, VectorEnv, Environments)):
            stack.callback(environments.close)
        bar = stack.enter_context(ProgressBar(progress, title="evaluating"))
        while (quota > 0).any():
            seen = map_leaves(lambda tensor: to_device(tensor, device), observations)
            decision = policy.act(seen, masks, state, generator)
            taken = environments.step(*decision.read(policy.spec))
            counts = np.ones(n_envs, np.bool_) if taken.skipped is None else ~taken.skipped
            sums += np.where(counts, taken.rewards, 0.0)
            steps += counts
            bar.show("evaluating", len(returns) / n_episodes)
            dones = taken.terminated | taken.truncated
            for i in np.flatnonzero(dones & counts):
                if quota[i] > 0:
                    returns.append(float(sums[i]))
                    lengths.append(int(steps[i]))
                    quota[i] -= 1
            sums, steps = np.where(dones, 0.0, sums), np.where(dones, 0, steps)
            starts = to_device(torch.from_numpy(dones | ~counts), device)
            state = decision.next_state.masked_fill(starts.unsqueeze(-1), 0.0)
            observations, masks = taken.observations, taken.masks
    low, high = float("nan"), float("nan")
    if n_episodes > 1:
        interval = mean_interval(returns)
        low, high = interval.low, interval.high
    return Evaluated(np.array(returns), np.array(lengths), low, high)
