"""Where work is computed: in this process, in worker processes, or on a Ray cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass

from esper.config.checks import NonNegativeInt, check
from esper.config.run import RunConfig
from esper.errors import ConfigError
from esper.formatting import many
from esper.tasks import Task
from esper.training.shards import plan_shards
from esper.training.worker_pool import Pool, ProcessPool

MIN_ENV_STEPS = 20_000
"""Fewer environment steps are done before more processes than one would pay."""
WARM_UP = "esper.training.trials"
"""Imports everything that a worker of a run needs."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Work that can be shared out among workers."""

    n_parts: int
    """Parts that can be computed at the same time."""
    parts: str
    """Which parts the work has, in words."""
    advice: str = ""
    """What to do for more of them, in words that follow the largest number of workers."""
    env_steps: int
    """Environment steps of the whole work, about: epochs of hosts."""
    threads: int
    """Threads that PyTorch uses; results depend on them."""
    warm_up: str
    """A module that imports everything that a worker needs."""


def choose_pool(
    work: Workload, *, workers: int | None = None, ray_address: str | None = None
) -> Pool:
    """Return what computes the parts of some work.

    Args:
        work: The work.
        workers: Number of worker processes; 0 for this process alone. By default as many as there
            are cores or parts, if the work is large enough to gain.
        ray_address: Address of a Ray cluster whose workers compute, instead of local processes:
            ``host:port``, ``auto`` for the one that this machine belongs to, ``local`` for a new
            one on this machine.

    Raises:
        ConfigError: If there are more workers than parts.
        WorkerError: If the cluster cannot be used.
    """
    check("workers", workers, NonNegativeInt | None)
    if workers is not None and workers > work.n_parts:
        raise ConfigError(
            f"workers is {workers}, but {work.parts}; use at most "
            f"{many(work.n_parts, 'worker')}{work.advice}."
        )
    if ray_address is not None:
        if workers == 0:
            raise ConfigError(
                "workers is 0 and ray_address is given; a Ray cluster needs at least 1 worker."
            )
        from esper.training.ray_cluster import RayPool

        n_workers = workers or work.n_parts
        return RayPool(ray_address, n_workers, threads=work.threads, warm_up=work.warm_up)
    if workers is None:
        workers = min(count_cores() // work.threads, work.n_parts)
        if workers == 1 or work.env_steps < MIN_ENV_STEPS:
            workers = 0  # nothing would be gained
    if workers == 0:
        return Pool()
    return ProcessPool(workers, threads=work.threads, warm_up=work.warm_up)


def make_pool(
    config: RunConfig, task: Task, *, workers: int | None = None, ray_address: str | None = None
) -> Pool:
    """Return what computes a run's shards and trials; see :func:`choose_pool`."""
    n_shards, shards = _describe_shards(config)
    if config.is_of_task_object:
        if workers or ray_address is not None:
            raise ConfigError(
                f"task {task.name!r} is an object, which workers cannot make; name a function "
                "that makes it, as module:function, or use workers = 0 (--workers 0)."
            )
        workers = 0
    work = Workload(
        n_parts=n_shards,
        parts=f"the run has {shards}",
        advice=", or a new run with a smaller envs_per_shard",
        env_steps=config.rounds * config.envs * config.n_steps,
        threads=config.threads,
        warm_up=WARM_UP,
    )
    return choose_pool(work, workers=workers, ray_address=ray_address)


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


def describe_pool(pool: Pool, config: RunConfig) -> str | None:
    """Return a sentence about the workers of a run; None if it has none."""
    if pool.is_local:
        return None
    _, shards = _describe_shards(config)
    return (
        f"{many(pool.n_workers, 'worker')} for {shards}; results do not depend on the number of "
        "workers"
    )


def _describe_shards(config: RunConfig) -> tuple[int, str]:
    """Return the number of shards, and a phrase with it and their size."""
    n_shards, maximum = len(plan_shards(config)), config.envs_per_shard or config.envs
    return n_shards, f"{many(n_shards, 'shard')} of at most {many(maximum, 'host')}"
