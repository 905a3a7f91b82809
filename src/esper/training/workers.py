"""Where a run computes: in this process, in worker processes, or on a Ray cluster."""

from __future__ import annotations

import os

from esper.config.checks import require_int
from esper.config.run import RunConfig
from esper.errors import ConfigError
from esper.formatting import many
from esper.simic.rollout.jobs import InlinePool, Pool
from esper.tasks import Task
from esper.training.shards import plan_shards

LEAST_ENV_STEPS = 20_000
"""A run of fewer environment steps is done before more processes than one would pay."""
WARM_UP = "esper.training.trials"
"""Imports everything that a worker needs."""


def make_pool(
    config: RunConfig, task: Task, *, workers: int | None = None, ray_address: str | None = None
) -> Pool:
    """Return what computes a run's shards and trials.

    Args:
        config: Settings of the run.
        task: Task of the run.
        workers: Number of worker processes; 0 for this process alone. By default as many as there
            are cores or shards, if the run is large enough to gain.
        ray_address: Address of a Ray cluster whose workers compute, instead of local processes:
            ``host:port``, ``auto`` for the one that this machine belongs to, ``local`` for a new
            one on this machine.

    Raises:
        ConfigError: If there are more workers than shards.
        WorkerError: If the cluster cannot be used.
    """
    n_shards = len(plan_shards(config, task))
    if workers is not None:
        require_int("workers", workers, least=0)
    if workers is not None and workers > n_shards:
        raise ConfigError(
            f"workers is {workers}, but the run has {many(n_shards, 'shard')} of at most "
            f"{config.envs_per_shard or config.envs} hosts; use at most {n_shards} workers, or a "
            "new run with a smaller envs_per_shard."
        )
    if ray_address is not None:
        if workers == 0:
            raise ConfigError(
                "workers is 0 and ray_address is given; a Ray cluster needs at least 1 worker."
            )
        from esper.simic.rollout.ray_cluster import RayPool

        return RayPool(ray_address, workers or n_shards, threads=config.threads, warm_up=WARM_UP)
    if workers is None:
        workers = _gainful_workers(config, n_shards)
    if workers == 0:
        return InlinePool()
    from esper.simic.rollout.processes import ProcessPool

    return ProcessPool(workers, threads=config.threads, warm_up=WARM_UP)


def _gainful_workers(config: RunConfig, n_shards: int) -> int:
    """Return the number of workers that makes a run fastest."""
    env_steps = config.rounds * config.envs * config.n_steps
    n_workers = min(count_cores() // config.threads, n_shards)
    return n_workers if n_workers > 1 and env_steps >= LEAST_ENV_STEPS else 0


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def describe_pool(pool: Pool, config: RunConfig, task: Task) -> str | None:
    """Return a sentence about the workers of a run; None if it has none."""
    if pool.is_local:
        return None
    n_shards = len(plan_shards(config, task))
    most = config.envs_per_shard or config.envs
    return (
        f"{many(pool.n_workers, 'worker')} for {many(n_shards, 'shard')} of up to "
        f"{many(most, 'host')}; results do not depend on the number of workers"
    )
