"""Making environments from whatever a user has: an id, an environment, a class, a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import gymnasium
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from esper.config.checks import PositiveInt, check
from esper.config.memory import require_memory
from esper.errors import ConfigError, EsperError, UnsupportedEnvironmentError, did_you_mean, type_of
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.rollout.environments import (
    Env,
    Environments,
    LocalEnvironments,
    VectorEnvironments,
)
from esper.simic.rollout.sb3_envs import Sb3VectorEnv, is_sb3_vec_env

_MIN_ENV_BYTES = 2_000.0
"""Memory of the smallest environment, its spaces and its generator."""

EnvLike = str | Env | VectorEnv[Any, Any, Any] | Callable[[], Env]
"""An id for ``gymnasium.make``, an environment, a vector environment (of Stable-Baselines3, too),
or a class or function."""


def make_members(env: Any, n_envs: int | None) -> list[Env] | VectorEnv[Any, Any, Any]:
    """Return environments of this process, or the vector environment that was given.

    Raises:
        ConfigError: If ``n_envs`` contradicts what was given.
        UnsupportedEnvironmentError: If no environment can be made from it.
    """
    check("n_envs", n_envs, PositiveInt | None)
    if is_sb3_vec_env(env):
        env = Sb3VectorEnv(env)
    if isinstance(env, VectorEnv):
        if n_envs not in (None, env.num_envs):
            raise ConfigError(
                f"n_envs is {n_envs}, but the vector environment has {env.num_envs}; leave n_envs "
                "out."
            )
        return cast("VectorEnv[Any, Any, Any]", env)
    if isinstance(env, gymnasium.Env):
        if n_envs not in (None, 1):
            raise ConfigError(
                f"n_envs is {n_envs}, but env is one environment; pass a function that makes one, "
                f"such as lambda: {type(cast(Env, env).unwrapped).__name__}()."
            )
        return [cast(Env, env)]
    require_memory(_MIN_ENV_BYTES * (n_envs or 1), n_envs=n_envs)
    return [_make(env) for _ in range(n_envs or 1)]


def declared_spec(env: Env | VectorEnv[Any, Any, Any]) -> ActionSpec | None:
    """Return the specification that an environment declares in an attribute ``action_spec``.

    A vector environment declares its own, or that of its first member.
    """
    if isinstance(env, VectorEnv):
        members = getattr(env.unwrapped, "envs", None)
        own = getattr(env.unwrapped, "action_spec", None)
        return declared_spec(members[0]) if own is None and members else own
    has_one = env.has_wrapper_attr("action_spec")
    return env.get_wrapper_attr("action_spec") if has_one else None


def spaces_of(
    members: list[Env] | VectorEnv[Any, Any, Any],
) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Return the observation space and the action space of one of the environments.

    Raises:
        UnsupportedEnvironmentError: If one is missing.
    """
    first: Any = members[0] if isinstance(members, list) else members
    found: list[Any] = []
    for kind in ("observation_space", "action_space"):
        name = kind if isinstance(members, list) else f"single_{kind}"
        space = getattr(first, name, None)
        if not isinstance(space, spaces.Space):
            raise UnsupportedEnvironmentError(
                f"the {name} of {type(first.unwrapped).__name__} is {space!r}; set it to a space "
                "of gymnasium.spaces in the class or in __init__."
            )
        found.append(space)
    return found[0], found[1]


def adapt(
    members: list[Env] | VectorEnv[Any, Any, Any],
    spec: ActionSpec,
    *,
    squash: bool,
    device: torch.device | str,
) -> Environments:
    """Return environments as a collector drives them."""
    if isinstance(members, list):
        return LocalEnvironments(members, spec, squash=squash, device=device)
    return VectorEnvironments(members, spec, squash=squash, device=device)


def _make(env: Any) -> Env:
    """Make one environment from an id, a class or a function."""
    if isinstance(env, str):
        try:
            # The checker costs a third of a CartPole step; `python -m esper.simic.check` has more.
            return gymnasium.make(env, disable_env_checker=True)
        except gymnasium.error.Error as error:
            near = "" if env in gymnasium.registry else did_you_mean(env, gymnasium.registry)
            # Gymnasium has suggestions of its own, without a version.
            reason = str(error).partition(" Did you mean")[0] if near else error
            raise UnsupportedEnvironmentError(
                f"env is {env!r}, which Gymnasium cannot make: {reason}{near}"
            ) from error
    if not callable(env):
        raise UnsupportedEnvironmentError(
            f"env is {type_of(env)}; an id such as 'CartPole-v1', an environment, a class "
            "or function that makes one, or a vector environment is needed."
        )
    try:
        made = env()
    except EsperError:
        raise
    except TypeError as error:
        raise UnsupportedEnvironmentError(
            f"env() failed: {error}. Pass a function without arguments that makes the environment."
        ) from error
    if not isinstance(made, gymnasium.Env):
        raise UnsupportedEnvironmentError(
            f"env() returned {type_of(made)}; a gymnasium.Env is needed."
        )
    return cast(Env, made)
