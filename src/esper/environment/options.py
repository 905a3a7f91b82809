"""Checking and normalizing the arguments of environments."""

from __future__ import annotations

from typing import Annotated, Any, cast

import numpy as np

from esper.config.checks import Bounds, check
from esper.environment.draws import FinalSplit, Purpose
from esper.errors import ConfigError, TaskError, did_you_mean, type_of
from esper.tasks import Task
from esper.tasks.registry import create_task

_Seed = Annotated[int, Bounds(0, 2**62)]


def find_task(task: str | Task, options: dict[str, Any]) -> Task:
    """Return the task, made with the options if it is given by name.

    Raises:
        TaskError: If it is not a task, or its draws do not depend on their seed.
    """
    if isinstance(task, str):
        task, options = create_task(task, options), {}
    if not isinstance(task, Task):
        raise TaskError(f"task is {type_of(task)}; it must be a Task or the name of one.")
    if options:
        raise TaskError(
            f"options {', '.join(options)} only apply to a task given by name; "
            "pass them to make_task instead."
        )
    task.require_variety()
    return task


def require_splits(purpose: str, final_split: str) -> None:
    """Reject unknown purposes and final splits, and the test split outside evaluations."""
    check("purpose", purpose, Purpose)
    check("final_split", final_split, FinalSplit)
    if final_split == "test" and purpose != "evaluation":
        raise ConfigError(
            f"final_split is 'test' and purpose is {purpose!r}; the test split is only for "
            "purpose='evaluation'."
        )


def require_options(options: Any, known: tuple[str, ...]) -> None:
    """Reject unknown reset options."""
    if not isinstance(options, dict):
        kind = type(options).__name__
        raise ConfigError(f"options is a {kind}; it must be a dictionary or None.")
    for name in cast(dict[Any, Any], options):
        if name not in known:
            hint = did_you_mean(name, known)
            allowed = ", ".join(known) or "none"
            raise ConfigError(f"unknown reset option {name!r}; options are {allowed}.{hint}")


def spread_seeds(seed: Any, n_envs: int) -> list[int | None]:
    """Return the seed of each environment: counted up from one seed, or as listed."""
    if seed is None:
        return [None] * n_envs
    if not isinstance(seed, (list, tuple, np.ndarray)):
        return [check("seed", seed, _Seed) + env for env in range(n_envs)]
    given: list[Any] = list(cast(Any, seed))
    if len(given) != n_envs:
        raise ConfigError(
            f"seed lists {len(given)} seeds; expected {n_envs}, one for each environment."
        )
    return [check("seed", value, _Seed | None) for value in given]


_FACTS = ("hosts", "seeds", "episodes", "elapsed", "has_seeds")


def require_same_arguments(arguments: dict[str, Any], state: Any) -> None:
    """Reject the state of an environment that was made with other arguments.

    Raises:
        ConfigError: Naming what differs, or if it is not a state at all.
    """
    try:
        saved = dict(state["facts"]["made_with"])
        _parts = [dict(state["tensors"]), *(state["facts"][name] for name in _FACTS)]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            "this is not the state of a growth environment; load what state_dict() returned."
        ) from error
    for name, value in arguments.items():
        if saved.get(name) != value:
            raise ConfigError(
                f"the state has {name} {saved.get(name)!r}; this environment has {value!r}. "
                "Make both with the same arguments."
            )
