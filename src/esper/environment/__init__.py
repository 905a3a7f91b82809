"""Growth as Gymnasium environments, of one host or of many."""

from typing import Any, overload

from esper.config.growth import RewardConfig
from esper.environment.draws import FinalSplit, Purpose
from esper.environment.env import GrowthEnv
from esper.environment.runner import EpisodeResults, run_episodes
from esper.environment.vector_env import GrowthVectorEnv
from esper.errors import ConfigError
from esper.populations import Form
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
    reward: RewardConfig | str = "dense",
    form: Form = "auto",
    purpose: Purpose = "training",
    final_split: FinalSplit = "validation",
    autoreset: bool | None = None,
    max_episode_steps: int | None = None,
    episode_seconds: float | None = None,
    **task_options: Any,
) -> GrowthEnv | GrowthVectorEnv:
    """Return an environment that grows one host, or a vector environment if given ``num_envs``.

    Args:
        task: A task, or the name of one.
        num_envs: Number of hosts; None for an environment of one host.
        reward: Settings of the reward, or "dense" or "sparse" for the defaults of either form.
        form: How hosts are trained; see :func:`esper.make_population`.
        purpose: "training", "tuning" or "evaluation"; different purposes never share a host.
        final_split: What the final score is measured on, as for :class:`GrowthVectorEnv`.
        autoreset: Whether the step that ends an episode of a vector environment starts a new one;
            by default it does.
        max_episode_steps: Steps after which an episode is truncated.
        episode_seconds: Wall time after which an episode is truncated.
        task_options: Options of the task, if it is given by name.

    Raises:
        ConfigError: If ``autoreset`` is given for one host, which never resets itself.

    Examples:
        >>> envs = esper.make_env("spirals", num_envs=2)
        >>> observations, info = envs.reset(seed=0)
        >>> len(observations)
        2
    """
    if num_envs is None and autoreset is not None:
        raise ConfigError(
            f"autoreset is {autoreset!r}, but an environment of one host never resets itself; give "
            "num_envs, or leave autoreset out."
        )
    options: dict[str, Any] = {
        "reward": reward,
        "form": form,
        "purpose": purpose,
        "final_split": final_split,
        "max_episode_steps": max_episode_steps,
        "episode_seconds": episode_seconds,
        **task_options,
    }
    if num_envs is None:
        return GrowthEnv(task, **options)
    return GrowthVectorEnv(
        task, num_envs, autoreset=True if autoreset is None else autoreset, **options
    )


__all__ = ["EpisodeResults", "GrowthEnv", "GrowthVectorEnv", "make_env", "run_episodes"]
