"""Letting a controller steer hosts through one episode each. Shapes: E = environments, O = ops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gymnasium.vector import AutoresetMode, VectorWrapper

from esper.arrays import Floats, Integers
from esper.config.checks import require_int
from esper.environment.vector_env import GrowthVectorEnv
from esper.errors import ConfigError, UnsupportedEnvironmentError
from esper.lifecycle.factored_actions import Op
from esper.lifecycle.stages import Stage
from esper.tamiyo import Controller


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
    """Of the seeds that were committed, also in an episode that was cut short."""
    op_counts: Integers
    """``[E, O]`` how often each op was carried out."""
    n_illegal: Integers
    draw_seeds: Integers
    """What decided each episode: results of two controllers are paired by it."""


def run_episodes(
    envs: GrowthVectorEnv | VectorWrapper, controller: Controller, *, seed: int
) -> EpisodeResults:
    """Steer each environment through one episode; a host that is done waits for the others.

    Args:
        envs: Made with ``autoreset=False``. What wraps them is left out: results are in the
            environments' own units.
        controller: Started anew with the same seed.
        seed: Decides the episodes: the same for two controllers gives them the same hosts.

    Raises:
        UnsupportedEnvironmentError: If these are other environments.
        ConfigError: If the seed or the controller is none.
    """
    require_int("seed", seed, least=0)
    acts = all(callable(getattr(controller, name, None)) for name in ("start", "act"))
    if not acts or isinstance(controller, type):
        raise ConfigError(
            f"controller is {controller!r}; it must have start and act, as make_controller's have."
        )
    return _run(_find_envs(envs), controller, int(seed))


def _find_envs(envs: object) -> GrowthVectorEnv:
    """Return the environments themselves; refuse others."""
    found = getattr(envs, "unwrapped", envs)
    if not isinstance(found, GrowthVectorEnv):
        raise UnsupportedEnvironmentError(
            f"the environments are a {type(found).__name__}; a GrowthVectorEnv is needed, such as "
            "esper.make_env(task, num_envs=1, autoreset=False)."
        )
    if found.metadata["autoreset_mode"] != AutoresetMode.DISABLED:
        raise UnsupportedEnvironmentError(
            "the environments start new episodes by themselves; "
            "make them with autoreset=False to run one episode of each."
        )
    found.task.require_alone("a controller's trial")
    return found


def _run(envs: GrowthVectorEnv, controller: Controller, seed: int) -> EpisodeResults:
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
    is_committed = envs.growth.population.slot_arrays().stage == Stage.FOSSILIZED
    return EpisodeResults(
        returns=returns,
        scores=scores,
        flops=records.paid_flops.copy(),
        n_epochs=records.epoch.copy(),
        host_parameters=records.n_parameters.copy(),
        seed_parameters=np.where(is_committed, records.seed_parameters, 0).sum(1),
        op_counts=op_counts,
        n_illegal=n_illegal,
        draw_seeds=records.draw_seed.copy(),
    )
