"""Making a policy from its name, a network or a class, for the spaces of an environment."""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from gymnasium import spaces
from torch import Tensor, nn

from esper.config import sb3_names
from esper.config.learning import NetworkConfig
from esper.errors import ConfigError, did_you_mean, type_of
from esper.simic.policy.action_spec import ActionSpec
from esper.simic.policy.actor_critic import ActorCriticPolicy
from esper.simic.policy.networks import EncoderTowers
from esper.simic.policy.observations import ObservationSpec
from esper.simic.policy.recurrent import RecurrentPolicy

PolicyName = Literal["mlp", "lstm", "cnn", "multi-input"]
POLICIES = ("mlp", "lstm", "cnn", "multi-input")
_UNUSED = {
    "mlp": ("feature_size", "lstm_size"),
    "cnn": ("feature_size", "lstm_size"),
    "multi-input": ("feature_size", "lstm_size"),
    "lstm": ("hidden_sizes", "value_sizes", "activation"),
}
"""Settings of a network that a policy does not have."""


def make_policy(
    policy: Any,
    spec: ActionSpec,
    observation_spec: ObservationSpec,
    observation_space: spaces.Space[Any],
    network: NetworkConfig,
    seed: int,
) -> tuple[str, Any]:
    """Return the name of a policy and the policy.

    Raises:
        ConfigError: If there is no such policy, it does not fit the observations, or a setting of
            the network would be ignored.
    """
    if policy is None:
        single = observation_spec.single
        policy = "multi-input" if single is None else "cnn" if single.kind == "image" else "mlp"
    generator = torch.Generator().manual_seed(seed)
    heads: dict[str, Any] = {"squash": network.squash, "log_std_init": network.log_std_init}
    if isinstance(policy, str) and policy not in POLICIES:
        near = sb3_names.POLICIES.get(policy)
        hint = f" Write {near!r}." if near else did_you_mean(policy, POLICIES)
        raise ConfigError(
            f"policy is {policy!r}; it must be one of {', '.join(POLICIES)}, or a network of your "
            f"own.{hint}"
        )
    _require_used(policy, network)
    if policy == "lstm":
        return policy, RecurrentPolicy(spec, observation_spec, network, generator=generator)
    if isinstance(policy, str):
        single = observation_spec.single
        if policy == "cnn" and (single is None or single.kind != "image"):
            raise ConfigError(
                f"policy is 'cnn', but the observation space is {observation_space}; an image is a "
                "Box with three axes. Use 'mlp' or 'multi-input'."
            )
        towers = EncoderTowers(observation_spec, network)
        return policy, ActorCriticPolicy(
            spec, observation_spec, towers, generator=generator, **heads
        )
    if network.normalize_observations:
        raise ConfigError(
            "normalize_observations is on, but the network is your own; normalise observations in "
            "it, or use gymnasium.wrappers.NormalizeObservation."
        )
    if callable(policy) and not isinstance(policy, nn.Module):
        try:
            policy = policy(observation_space)
        except TypeError as error:
            raise ConfigError(
                f"policy(observation_space) failed: {error}. A class or function that makes a "
                "network takes the observation space; pass an instance otherwise."
            ) from error
    if not isinstance(policy, nn.Module):
        raise ConfigError(
            f"policy is {policy!r}; it must be one of {', '.join(POLICIES)}, an nn.Module, or a "
            "class or function that makes one from the observation space."
        )
    made = ActorCriticPolicy(spec, observation_spec, policy, generator=generator, **heads)
    try:
        with torch.no_grad():
            _require_size(policy, observation_spec.zeros(2), torch.zeros(2, made.state_size))
            made.value(observation_spec.zeros(2), torch.zeros(2, made.state_size))
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"the network {type(policy).__name__} failed on two observations of zeros: {error}. "
            "esper.simic.policy.networks says what a network takes and returns."
        ) from error
    return type(policy).__name__, made


def _require_size(network: nn.Module, observations: Any, state: Tensor) -> None:
    """Reject a network whose features have another size than it declares."""
    result: Any = network(observations, state)[0] if state.shape[1] else network(observations)
    size = cast(Any, network).output_size
    for features in cast("tuple[Any, ...]", result) if isinstance(result, tuple) else (result,):
        shape = tuple(features.shape) if isinstance(features, Tensor) else type_of(features)
        if shape != (2, size):
            raise ConfigError(
                f"forward of {type(network).__name__} returned {shape} for two observations, but "
                f"output_size is {size}; features of shape (2, {size}) are needed."
            )


def _require_used(policy: Any, network: NetworkConfig) -> None:
    """Reject settings that the policy would ignore."""
    own = ("hidden_sizes", "value_sizes", "activation", "feature_size", "lstm_size", "image_size")
    unused = _UNUSED[policy] if isinstance(policy, str) else own
    default = NetworkConfig()
    for name in unused:
        value = getattr(network, name)
        if value != getattr(default, name):
            used = [one for one in own if one not in unused]
            what = f"the policy {policy!r}" if isinstance(policy, str) else "a network of your own"
            advice = f"it has {', '.join(used)}" if used else "set it in the network"
            raise ConfigError(f"{name} is {value!r}, but {what} has no {name}; {advice}.")
