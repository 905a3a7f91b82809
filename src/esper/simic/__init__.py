"""Reinforcement learning for any environment: factored, masked, recurrent PPO."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from esper.config import sb3_names

if TYPE_CHECKING:
    from esper.config.learning import NetworkConfig, PPOConfig
    from esper.simic.agent import PPOAgent, TamiyoRolloutBuffer
    from esper.simic.algorithm import PPO
    from esper.simic.callbacks import Callback, Checkpoint, Evaluate, Tracker
    from esper.simic.check import check_env
    from esper.simic.evaluation import Evaluated, evaluate
    from esper.simic.policy import ActionSpec
    from esper.simic.schedules import Schedule, cosine, linear
    from esper.training.ppo_recording import Record

__all__ = [
    "PPO",
    "ActionSpec",
    "Callback",
    "Checkpoint",
    "Evaluate",
    "Evaluated",
    "NetworkConfig",
    "PPOAgent",
    "PPOConfig",
    "Record",
    "Schedule",
    "TamiyoRolloutBuffer",
    "Tracker",
    "check_env",
    "cosine",
    "evaluate",
    "linear",
]

_MODULES = {
    "esper.config.learning": ("NetworkConfig", "PPOConfig"),
    "esper.simic.agent": ("PPOAgent", "TamiyoRolloutBuffer"),
    "esper.simic.algorithm": ("PPO",),
    "esper.simic.callbacks": ("Callback", "Checkpoint", "Evaluate", "Tracker"),
    "esper.simic.check": ("check_env",),
    "esper.simic.evaluation": ("Evaluated", "evaluate"),
    "esper.simic.policy": ("ActionSpec",),
    "esper.training.ppo_recording": ("Record",),
    "esper.simic.schedules": ("Schedule", "cosine", "linear"),
}


if not TYPE_CHECKING:  # for a type checker any name would exist

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used; ``import esper.simic`` stays light."""
        if name in sb3_names.EXPORTS:
            # An AttributeError would lose its message in "from esper.simic import name".
            instead = sb3_names.EXPORTS[name]
            raise ImportError(f"esper.simic has no {name}; use {instead}.", name=name)
        for module, names in _MODULES.items():
            if name in names:
                return getattr(importlib.import_module(module), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
