"""Every name of Stable-Baselines3 is accepted, or answered with what to write instead."""

from __future__ import annotations

import importlib.util
import inspect
from dataclasses import fields
from typing import Any

import pytest

from esper.config import sb3_names
from esper.simic import PPO, Checkpoint, Evaluate, PPOConfig, evaluate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("sb3_contrib") is None,
        reason='sb3-contrib is missing; install it with `pip install -e ".[sb3]"`',
    ),
]


def their_functions() -> dict[str, list[Any]]:
    from sb3_contrib import MaskablePPO, RecurrentPPO
    from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
    from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
    from stable_baselines3 import PPO as THEIRS
    from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    kinds: list[Any] = [THEIRS, MaskablePPO, RecurrentPPO]
    return {
        "PPO": kinds,
        **{name: [getattr(kind, name) for kind in kinds] for name in ("learn", "predict", "save")},
        "load": [kind.load for kind in kinds],
        "evaluate": [evaluate_policy, evaluate_masked],
        "Evaluate": [EvalCallback, MaskableEvalCallback],
        "Checkpoint": [CheckpointCallback],
    }


@pytest.mark.parametrize("name", sorted(sb3_names.ARGUMENTS.keys() - {"NetworkConfig"}))
def test_every_argument_is_known(name: str) -> None:
    ours: Any = {"PPO": PPO, "evaluate": evaluate, "Evaluate": Evaluate, "Checkpoint": Checkpoint}
    accepted = set(inspect.signature(ours.get(name) or getattr(PPO, name)).parameters)
    if name == "PPO":
        accepted |= {field.name for field in fields(PPOConfig)}
    answered = sb3_names.ARGUMENTS[name].keys()
    assert not accepted & answered
    theirs = {arg for one in their_functions()[name] for arg in inspect.signature(one).parameters}
    assert theirs - {"self", "args", "kwargs"} <= accepted | answered


def test_every_public_method_is_known() -> None:
    from stable_baselines3 import PPO as THEIRS

    model = PPO("CartPole-v1")
    assert not sb3_names.ATTRIBUTES.keys() & set(dir(model))
    theirs = {name for name in dir(THEIRS) if not name.startswith("_")} - {"policy_aliases"}
    assert theirs <= {*dir(model), *sb3_names.ATTRIBUTES}
