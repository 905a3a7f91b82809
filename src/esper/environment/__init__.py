"""Growth as Gymnasium environments, of one host or of many."""

from typing import Any

from esper.environment.env import GrowthEnv
from esper.environment.runner import EpisodeResults, run_episodes
from esper.environment.vector_env import GrowthVectorEnv
from esper.registration import register_environments
from esper.tasks import Task

register_environments()


def make_env(
    task: str | Task = "digits", num_envs: int | None = None, **options: Any
) -> GrowthEnv | GrowthVectorEnv:
    """Return an environment that grows one host, or a vector environment if given ``num_envs``.

    Options are those of :class:`GrowthVectorEnv` and of the task.

    Examples:
        >>> envs = esper.make_env("spirals", num_envs=2)
        >>> observations, info = envs.reset(seed=0)
        >>> len(observations)
        2
    """
    if num_envs is None:
        return GrowthEnv(task, **options)
    return GrowthVectorEnv(task, num_envs, **options)


__all__ = ["EpisodeResults", "GrowthEnv", "GrowthVectorEnv", "make_env", "run_episodes"]
