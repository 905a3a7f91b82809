"""Growth as Gymnasium environments, of one host or of many."""

from typing import Any, overload

from esper.environment.env import GrowthEnv
from esper.environment.runner import EpisodeResults, run_episodes
from esper.environment.vector_env import GrowthVectorEnv
from esper.errors import ConfigError
from esper.registration import register_environments
from esper.tasks import Task

register_environments()


@overload
def make_env(task: str | Task = "digits", num_envs: None = None, **options: Any) -> GrowthEnv: ...
@overload
def make_env(task: str | Task, num_envs: int, **options: Any) -> GrowthVectorEnv: ...
@overload
def make_env(task: str | Task = "digits", *, num_envs: int, **options: Any) -> GrowthVectorEnv: ...
def make_env(
    task: str | Task = "digits",
    num_envs: int | None = None,
    *,
    autoreset: bool | None = None,
    **options: Any,
) -> GrowthEnv | GrowthVectorEnv:
    """Return an environment that grows one host, or a vector environment if given ``num_envs``.

    Args:
        task: A task, or the name of one.
        num_envs: Number of hosts; None for an environment of one host.
        autoreset: Whether the step that ends an episode of a vector environment starts a new one;
            by default it does.
        options: The other options of :class:`GrowthVectorEnv`, and those of the task.

    Raises:
        ConfigError: If ``autoreset`` is given for one host, which never resets itself.

    Examples:
        >>> envs = esper.make_env("spirals", num_envs=2)
        >>> observations, info = envs.reset(seed=0)
        >>> len(observations)
        2
    """
    if num_envs is not None:
        resets = True if autoreset is None else autoreset
        return GrowthVectorEnv(task, num_envs, autoreset=resets, **options)
    if autoreset is not None:
        raise ConfigError(
            f"autoreset is {autoreset!r}, but an environment of one host never resets itself; give "
            "num_envs, or leave autoreset out."
        )
    return GrowthEnv(task, **options)


__all__ = ["EpisodeResults", "GrowthEnv", "GrowthVectorEnv", "make_env", "run_episodes"]
