"""The settings of ``PPO``: what they may be, and what contradicts what."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypedDict, cast

from esper.config.learning import NetworkConfig, PPOConfig
from esper.config.sb3_names import reject_unknown
from esper.config.schema import docs_of
from esper.errors import ConfigError
from esper.simic.schedules import Rate, rate_at

SCHEDULED = ("learning_rate", "clip_range", "ent_coef", "clip_range_vf")
_OTHERS = (
    "n_envs",
    "n_steps",
    "seed",
    "network",
    "action_spec",
    "normalize_rewards",
    "verbose",
    "device",
    "loss",
    "optimizer",
)
"""Arguments of ``PPO`` that are not settings of the update."""


class PPOSettings(TypedDict, total=False):
    """The settings of :class:`PPOConfig`; rates may be functions of the share of training left."""

    learning_rate: Rate
    n_epochs: int
    batch_size: int
    n_minibatches: int | None
    sequence_length: int | None
    gamma: float
    gae_lambda: float
    clip_range: Rate
    clip: Literal["per-head", "joint"]
    clip_range_vf: Rate | None
    ent_coef: Rate
    vf_coef: float
    max_grad_norm: float | None
    target_kl: float | None
    normalize_advantage: bool
    normalize_returns: bool


def split_rates(settings: dict[str, Any]) -> tuple[PPOConfig, dict[str, Rate | None]]:
    """Return the settings at the start of training, and the rates that may change."""
    known = [field.name for field in fields(PPOConfig)]
    unknown = [name for name in settings if name not in known]
    for name in unknown:
        if name in NetworkConfig.__dataclass_fields__:
            advice = f"write network=NetworkConfig({name}=...)"
            raise ConfigError(f"PPO has no argument {name!r}; {advice}.")
    for name in SCHEDULED:
        if isinstance(settings.get(name), str):
            raise ConfigError(
                f"{name} is {settings[name]!r}; it must be a number, linear(start, end), "
                "cosine(start, end), or a function of the remaining share of training."
            )
    reject_unknown("PPO", unknown, [*_OTHERS, *known])
    first: dict[str, Any] = {
        name: rate_at(name, cast(Any, value), 1.0)
        if name in SCHEDULED and callable(value)
        else value
        for name, value in settings.items()
    }
    config = PPOConfig(**first)
    return config, {name: settings.get(name, getattr(config, name)) for name in SCHEDULED}


WITH_MEMORY: dict[str, Any] = {"batch_size": 128, "sequence_length": 64}
"""Defaults of policies with memory, where they differ."""

WITH_IMAGES: dict[str, Any] = {"normalize_returns": False}
"""Defaults of the policy for images, where they differ: so it learned more reliably."""


def check_minibatches(
    config: PPOConfig, given: Mapping[str, Any], n_envs: int, n_steps: int, has_memory: bool
) -> str | None:
    """Check given settings of minibatches against the rollout; return what to warn of.

    Raises:
        ConfigError: If they contradict each other, or one would be ignored.
    """
    if given.get("sequence_length") is not None and not has_memory:
        raise ConfigError(
            f"sequence_length is {config.sequence_length}, but the policy has no memory; leave it "
            "out, or use policy='lstm'."
        )
    size, rollout = n_envs * n_steps, f"a rollout has {n_envs * n_steps} steps"
    rollout += f" (n_envs {n_envs}, n_steps {n_steps})"
    if "batch_size" in given and given.get("n_minibatches") is not None:
        config.require_agreement(n_envs, n_steps)
    elif given.get("batch_size", 0) > size:
        return (
            f"batch_size is {config.batch_size}, but {rollout}; each pass is one minibatch of all "
            "of them."
        )
    return None


def describe_settings() -> str:
    """Return each setting of an update with its default, for ``help(PPO)``."""
    config, docs = PPOConfig(), docs_of(PPOConfig)
    lines = [f"{name} ({getattr(config, name)!r}): {text}" for name, text in docs.items()]
    wrapped = [
        textwrap.fill(line, 100, initial_indent=" " * 16, subsequent_indent=" " * 20)
        for line in lines
    ]
    return "\n".join(wrapped).strip()
