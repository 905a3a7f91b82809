"""What environments are told to do, brought into one form."""

from __future__ import annotations

from typing import Any

from esper.config.environment import RewardConfig
from esper.errors import TaskError
from esper.tasks import Task, make_task


def find_task(task: str | Task, options: dict[str, Any]) -> Task:
    """Return a task, made with the options if it is named."""
    if isinstance(task, str):
        return make_task(task, **options)
    if not isinstance(task, Task):
        raise TaskError(f"task is a {type(task).__name__}; it must be a Task or the name of one.")
    if options:
        raise TaskError(
            f"options {', '.join(options)} are given with a task that is made already; "
            "make it with them."
        )
    return task


def find_rewards(reward: RewardConfig | str) -> RewardConfig:
    """Return settings of the reward, or the usual ones of the form that is named."""
    if isinstance(reward, RewardConfig):
        return reward
    return RewardConfig(reward=reward)  # pyright: ignore[reportArgumentType]
