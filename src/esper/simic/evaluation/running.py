"""Letting a controller steer hosts through one episode each. Shapes: E = environments, O = ops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from esper.errors import UnsupportedEnvironmentError
from esper.lifecycle.factored_actions import Op
from esper.simic.environment import GrowthVectorEnv
from esper.tamiyo import Controller

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeResults:
    """How each environment's episode came out, ``[E]``."""

    returns: Floats
    """Sum of rewards."""
    scores: Floats
    """Score of the committed host on samples nobody saw; NaN for an episode that was cut short."""
    flops: Floats
    """Spent, as a share of a reference run's."""
    n_epochs: Integers
    host_parameters: Integers
    """Of the host as it started."""
    seed_parameters: Integers
    """Of the seeds that were committed."""
    op_counts: Integers
    """``[E, O]`` how often each op was carried out."""
    n_illegal: Integers
    draw_seeds: Integers
    """What decided each episode: results of two controllers are paired by it."""


def run_episodes(envs: GrowthVectorEnv, controller: Controller, *, seed: int) -> EpisodeResults:
    """Steer each environment through one episode; a host that is done waits for the others.

    Args:
        envs: Made with ``autoreset=False``.
        controller: Started anew with the same seed.
        seed: Decides the episodes: the same for two controllers gives them the same hosts.
    """
    if envs.metadata["autoreset_mode"] != AutoresetMode.DISABLED:
        raise UnsupportedEnvironmentError(
            "the environments start new episodes by themselves; "
            "make them with autoreset=False to run one episode of each."
        )
    n = envs.num_envs
    observations, _ = envs.reset(seed=seed)
    controller.start(n, seed=seed)
    starts = np.ones(n, np.bool_)
    returns, scores = np.zeros(n), np.full(n, np.nan)
    op_counts, n_illegal = np.zeros((n, len(Op)), np.int64), np.zeros(n, np.int64)
    records = envs.growth.records
    while not records.is_over.all():
        running = ~records.is_over
        actions = controller.act(observations, envs.masks, starts)
        observations, rewards, _, _, info = envs.step(actions)
        starts = np.zeros(n, np.bool_)
        returns[running] += rewards[running]
        np.add.at(op_counts, (np.flatnonzero(running), info["op"][running]), 1)
        n_illegal += info["illegal_action"]
        if "final_info" in info:
            done = info["_final_info"]
            scores[done] = info["final_info"]["final_score"][done]
    return EpisodeResults(
        returns=returns,
        scores=scores,
        flops=records.paid_flops.copy(),
        n_epochs=records.epoch.copy(),
        host_parameters=records.n_parameters.copy(),
        seed_parameters=records.seed_parameters.sum(1),
        op_counts=op_counts,
        n_illegal=n_illegal,
        draw_seeds=records.draw_seed.copy(),
    )
