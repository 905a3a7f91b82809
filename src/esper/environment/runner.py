"""The loop in which a controller steers each host through one episode.

Shapes: E = environments, N = hosts, H = heads, O = ops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper

from esper.arrays import Floats, Integers
from esper.config.checks import Seed, check
from esper.environment.episodes import GrowthEpisodes, StepResult
from esper.environment.vector_env import GrowthVectorEnv
from esper.errors import UnsupportedEnvironmentError, type_of
from esper.formatting import many, share
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.tamiyo import Controller
from esper.tamiyo.controllers.controller import require_controller

OnStep = Callable[[Integers, StepResult], None]
"""Called after each step with the actions ``[N, H]`` and their result."""


def ignore_step(actions: Integers, result: StepResult) -> None:
    """Do nothing after a step."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeResults:
    """The outcome of each environment's episode, ``[E]`` each.

    Examples:
        >>> envs = esper.make_env("spirals", num_envs=2, autoreset=False)
        >>> waiting = esper.make_controller("no-growth", envs.layout)
        >>> results = esper.run_episodes(envs, waiting, seed=0)
        >>> bool((results.scores <= 1).all())
        True
    """

    returns: Floats
    """Sum of rewards."""
    scores: Floats
    """Score on unseen samples of the host after its best validated epoch; NaN if truncated."""
    flops: Floats
    """FLOPs spent, as a share of a reference run's."""
    n_epochs: Integers
    host_parameters: Integers
    """Parameters of the initial host."""
    seed_parameters: Integers
    """Parameters of that host's seeds, also of a truncated episode."""
    op_counts: Integers
    """``[E, O]`` how often each op was carried out."""
    n_illegal: Integers
    draw_seeds: Integers
    """The draw seed of each episode; equal seeds pair the results of two controllers."""

    def __repr__(self) -> str:
        mean = "" if len(self.returns) == 1 else "mean "
        return (
            f"EpisodeResults({many(len(self.returns), 'host')}: {mean}return "
            f"{self.returns.mean():.3f}, {mean}score {self.scores.mean():.3f}, {mean}FLOPs "
            f"{share(float(self.flops.mean()))} of a reference run, {self.n_epochs.mean():.1f} "
            f"epochs, {self.seed_parameters.mean():,.0f} grown parameters)"
        )


def steer_hosts(
    growth: GrowthEpisodes,
    controller: Controller,
    *,
    seed: int = 0,
    n_hosts: int | None = None,
    step: Callable[[Integers], StepResult] | None = None,
    on_step: OnStep = ignore_step,
) -> None:
    """Let a controller act until every episode is over; finished hosts wait for the others.

    Args:
        growth: Episodes at their start.
        controller: The controller, which is started here.
        seed: Seeds the controller.
        n_hosts: Number of leading hosts that the controller steers, all by default. The episodes
            of the others must be over.
        step: Steps all hosts, ``growth.step`` by default.
        on_step: Called after each step with the actions and result of all hosts.
    """
    n = growth.n_hosts if n_hosts is None else n_hosts
    step = growth.step if step is None else step
    controller.start(n, seed=seed)
    starts = np.ones(n, np.bool_)
    while not growth.records.is_over.all():
        actions = np.zeros((growth.n_hosts, len(HEAD_NAMES)), np.int64)
        masks = growth.masks() if n == growth.n_hosts else growth.masks().of_hosts(0, n)
        actions[:n] = controller.act(growth.observe()[:n], masks, starts)
        on_step(actions, step(actions))
        starts = np.zeros(n, np.bool_)


def run_episodes(
    envs: GrowthVectorEnv | VectorWrapper,
    controller: Controller,
    *,
    seed: int,
    on_step: OnStep = ignore_step,
) -> EpisodeResults:
    """Run one episode in each environment and return the outcomes.

    Args:
        envs: Environments made with ``autoreset=False``; wrappers around them are ignored.
        controller: The controller, which is started with the same seed.
        seed: Seeds the episodes; with equal seeds all controllers meet the same hosts.
        on_step: Called after each step with the actions and their result.

    Raises:
        UnsupportedEnvironmentError: If the environments are not growth environments, or reset
            automatically.
        ConfigError: If the seed or the controller is invalid.

    Examples:
        >>> envs = esper.make_env("spirals", num_envs=2, autoreset=False)
        >>> waiting = esper.make_controller("no-growth", envs.layout)
        >>> results = esper.run_episodes(envs, waiting, seed=0)
        >>> results.scores.shape
        (2,)
    """
    check("seed", seed, Seed)
    require_controller(controller)
    base = _unwrap(envs)
    base.reset(seed=int(seed))
    n, growth, records = base.num_envs, base.growth, base.growth.records
    returns, scores = np.zeros(n), np.full(n, np.nan)
    op_counts, n_illegal = np.zeros((n, len(Op)), np.int64), np.zeros(n, np.int64)

    def add(actions: Integers, result: StepResult) -> None:
        running = result.was_running
        returns[running] += result.terms.total[running]
        np.add.at(op_counts, (np.flatnonzero(running), result.op_done[running]), 1)
        n_illegal[:] += result.is_illegal
        scores[result.terminated] = result.final_score[result.terminated]
        on_step(actions, result)

    steer_hosts(
        growth,
        controller,
        seed=int(seed),
        step=lambda actions: base.advance(actions)[0],
        on_step=add,
    )
    return EpisodeResults(
        returns=returns,
        scores=scores,
        flops=records.flops_used.copy(),
        n_epochs=records.epoch.copy(),
        host_parameters=records.n_parameters.copy(),
        seed_parameters=records.settled.grown_parameters.sum(1),
        op_counts=op_counts,
        n_illegal=n_illegal,
        draw_seeds=records.draw_seed.copy(),
    )


def _unwrap(envs: object) -> GrowthVectorEnv:
    base = getattr(envs, "unwrapped", envs)
    if not isinstance(base, GrowthVectorEnv):
        raise UnsupportedEnvironmentError(
            f"envs is {type_of(base)}; it must be a GrowthVectorEnv, such as "
            "esper.make_env(task, num_envs=1, autoreset=False)."
        )
    if base.metadata["autoreset_mode"] != AutoresetMode.DISABLED:
        raise UnsupportedEnvironmentError(
            "envs resets automatically; make it with autoreset=False to run one episode each."
        )
    return base
