"""Reinforcement learning for any environment: factored, masked, recurrent PPO."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from esper.simic import sb3_names

if TYPE_CHECKING:
    from esper.config.learning import NetworkConfig, PPOConfig
    from esper.simic.agent import PPOAgent, TamiyoRolloutBuffer
    from esper.simic.algorithm import PPO
    from esper.simic.callbacks import Callback, Checkpoint, Evaluate, Tracker
    from esper.simic.check import check_env
    from esper.simic.evaluation import Evaluated, evaluate
    from esper.simic.policy import ActionSpec
    from esper.simic.recording import Record
    from esper.simic.schedules import Schedule, cosine, linear

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
    "PPO": "esper.simic.algorithm",
    "ActionSpec": "esper.simic.policy",
    "Callback": "esper.simic.callbacks",
    "Checkpoint": "esper.simic.callbacks",
    "Evaluate": "esper.simic.callbacks",
    "Evaluated": "esper.simic.evaluation",
    "NetworkConfig": "esper.config.learning",
    "PPOAgent": "esper.simic.agent",
    "PPOConfig": "esper.config.learning",
    "Record": "esper.simic.recording",
    "Schedule": "esper.simic.schedules",
    "TamiyoRolloutBuffer": "esper.simic.agent",
    "Tracker": "esper.simic.callbacks",
    "check_env": "esper.simic.check",
    "cosine": "esper.simic.schedules",
    "evaluate": "esper.simic.evaluation",
    "linear": "esper.simic.schedules",
}


if not TYPE_CHECKING:  # for a type checker any name would exist

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used; ``import esper.simic`` stays light."""
        if name in sb3_names.EXPORTS:
            # An AttributeError would lose its message in "from esper.simic import name".
            instead = sb3_names.EXPORTS[name]
            raise ImportError(f"esper.simic has no {name}; use {instead}.", name=name)
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return list(__all__)
