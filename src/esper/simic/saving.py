"""What is saved of a model, and how it is restored: the other half of :class:`PPO`."""

# It reads and sets what PPO keeps to itself.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from esper.config.checks import NonNegativeInt, PositiveInt, check
from esper.config.learning import NetworkConfig
from esper.errors import CheckpointError, UnsupportedEnvironmentError
from esper.modes import suitable_threads
from esper.simic.agent import ActionSpec
from esper.simic.policy.factory import POLICIES
from esper.simic.rollout.factory import EnvLike
from esper.simic.rollout.space_json import decode_space, encode_space
from esper.simic.schedules import Schedule
from esper.simic.settings import SCHEDULED, PPOSettings
from esper.simic.tensors import choose_device
from esper.storage.checkpoint_folder import (
    CheckpointFolder,
    Loaded,
    damage_named,
    step_of,
    warn_of_differences,
)

if TYPE_CHECKING:
    from esper.simic.algorithm import PPO

Model = TypeVar("Model", bound="PPO")


def own_parts(model: PPO, loss: Any, optimizer: Any) -> dict[str, str | None]:
    """Return the names of the user's loss and of the class of the optimizer; None for none."""
    loss_name = getattr(loss, "__qualname__", type(loss).__qualname__)
    return {
        "loss": None if loss is None else loss_name,
        "optimizer": None if optimizer is None else type(model.agent.optimizer).__qualname__,
    }


def read_folder(path: str | os.PathLike[str]) -> Loaded:
    """Return what was saved to a folder; :func:`restore` warns of other versions.

    Raises:
        CheckpointError: If there is no such folder, or nothing intact in it.
    """
    if not Path(path).is_dir():
        wrong = f"there is no folder {path}"
        if Path(path).is_file():
            wrong = f"{path} is a file"
        raise CheckpointError(
            f"{wrong}; pass the folder that model.save() or Checkpoint wrote. Files of "
            "Stable-Baselines3 cannot be loaded."
        )
    folder = Path(path).resolve()
    if step_of(folder.name) is not None and not CheckpointFolder(folder).names():
        raise CheckpointError(
            f"{path} is one checkpoint; pass the folder it is in, {folder.parent}."
        )
    return CheckpointFolder(path).latest(resumes=False)


def state_of(model: PPO, *, is_resumable: bool) -> dict[str, Any]:
    """Return a copy of what a model is, and of where its training stands if it is to resume."""
    spec = model.agent.spec
    return {
        "settings": model.settings(),
        "num_timesteps": model.num_timesteps,
        "has_masks": model._has_masks,
        "observation_space": encode_space(model.observation_space),
        "action_space": encode_space(model.action_space),
        "action_spec": {
            "names": list(spec.names),
            "sizes": list(spec.sizes),
            "op_head": spec.op_head,
            "relevance": [list(row) for row in spec.relevance],
            "dims": list(spec.dims),
        },
        "agent": model.agent.state_dict(),
        "rewards": None if model._rewards is None else model._rewards.state_dict(),
        "training": _training_state(model) if is_resumable else None,
    }


def _training_state(model: PPO) -> dict[str, Any]:
    assert model._collector is not None, "checkpoints are saved while learning"
    try:
        envs = model.save_environments()
    except UnsupportedEnvironmentError:
        envs = None
    return {
        "total_timesteps": model.total_timesteps,
        "first_timestep": model._first_timestep,
        "recent": [[float(r), int(n)] for r, n in model._recent],
        "collector": model._collector.state_dict(),
        # Copies, because a state that is saved later must not change until then.
        "environments": copy.deepcopy(envs),
        "callbacks": [[type(c).__name__, copy.deepcopy(c.state_dict())] for c in model._callbacks],
    }


def restore(
    kind: type[Model],
    loaded: Loaded,
    env: EnvLike | None,
    path: Any,
    own: dict[str, Any],
    changed: PPOSettings,
) -> Model:
    """Return a model as it was saved.

    Args:
        kind: :class:`PPO`, or a subclass.
        loaded: What :func:`read_folder` returned.
        env: The environment, if it is not the saved one.
        path: Where it was saved, for messages.
        own: Parts that a file does not hold: ``policy``, ``loss``, ``optimizer``, ``device``.
        changed: Settings of the update to change.
    """
    saved = loaded.state
    settings = cast("dict[str, Any]", saved.get("settings"))
    agent = cast("dict[str, Any]", saved.get("agent"))
    if type(settings) is not dict or type(agent) is not dict:
        raise CheckpointError(f"{path} is the checkpoint of something else than a PPO model.")
    policy, loss, optimizer = own["policy"], own["loss"], own["optimizer"]
    with damage_named(path):
        name = settings["policy"]
        if policy is None and name not in POLICIES:
            raise CheckpointError(
                f"{path} was trained with a network of its own, {name}; pass policy={name}."
            )
        for key, hint in _TYPES.items():
            check(key, settings[key], hint)
        for part in ("loss", "optimizer"):
            if settings[part] is not None and own[part] is None:
                raise CheckpointError(
                    f"{path} was trained with {part}={settings[part]}; pass {part}=."
                )
        # An id with a colon names a module to import, which a file may not decide.
        env_id = settings["env"] if ":" not in (settings["env"] or "") else None
        network = NetworkConfig(**settings["network"])
        spec = ActionSpec(**saved["action_spec"])
        ppo = {
            name: Schedule(**cast(Any, value)) if isinstance(value, dict) else value
            for name, value in settings["ppo"].items()
        }
        model = kind.__new__(kind)
        model.observation_space = decode_space(saved["observation_space"])
        model.action_space = decode_space(saved["action_space"])
        largest = max((t.numel() for t in agent["policy"].values()), default=0)
        for size in (*network.hidden_sizes, network.feature_size, network.lstm_size):
            if policy is None and size > max(largest, _USUAL_SIZE):  # found before it is made
                raise ValueError(f"it has a layer of {size}, but no weight is as large")
    source = env if env is not None else env_id
    model._env, model._environments = source, None
    model._device = choose_device(own["device"])
    model.verbose, model.seed = 0, settings["seed"]
    model.n_envs, model.n_steps = settings["n_envs"], settings["n_steps"]
    members = None
    if source is not None:
        members = model._make_members(source, settings["n_envs"])
    model._setup(policy or name, spec, network, {**ppo, **changed}, loss, optimizer)
    rates = {name: getattr(model.config, name) for name in changed if name in SCHEDULED}
    if members is not None:
        model._attach(members)
    model._add_reward_normalizer(settings["normalize_rewards"])
    with damage_named(path):
        if settings["optimizer"] != model._own_parts["optimizer"]:
            agent["optimizer"] = model.agent.optimizer.state_dict()
        model.agent.load_state_dict(agent)
        model.agent.set_rates(**rates)
        model.num_timesteps = model.total_timesteps = check(
            "num_timesteps", saved["num_timesteps"], NonNegativeInt
        )
        model._has_masks = check("has_masks", saved["has_masks"], bool | None)
        if model._rewards is not None and saved["rewards"] is not None:
            model._rewards.load_state_dict(saved["rewards"])
    with suitable_threads(model.policy):  # as in learn
        warn_of_differences(loaded)
    return model


_TYPES: dict[str, Any] = {
    "env": str | None,
    "n_envs": PositiveInt,
    "n_steps": PositiveInt,
    "seed": int,
    "normalize_rewards": bool,
    "loss": str | None,
    "optimizer": str | None,
}
"""Types of saved settings that no configuration checks."""

_USUAL_SIZE = 4096
"""Width of a layer that is made before it is compared with the saved weights."""


def restore_training(model: PPO, saved: dict[Any, Any], path: Any) -> None:
    """Continue where a checkpoint was saved.

    Raises:
        CheckpointError: If it was trained with another loss or optimizer, or is damaged.
    """
    for part, now in model._own_parts.items():
        then = saved["settings"][part]
        if now != then:
            raise CheckpointError(
                f"{path} was trained with {part}={then}, and {part}={now} was given; pass the "
                "same, or use PPO.load to train on with another."
            )
    training = saved["training"]
    collector, _ = model._require_collector()
    with damage_named(path):
        model.total_timesteps = check(
            "total_timesteps", training["total_timesteps"], NonNegativeInt
        )
        model._first_timestep = check("first_timestep", training["first_timestep"], NonNegativeInt)
        model._recent.extend((float(r), int(n)) for r, n in training["recent"])
        model._saved_callbacks = [[str(name), state] for name, state in training["callbacks"]]
        environments, collected = training["environments"], training["collector"]
    if environments is None:
        model.warn("the checkpoint has no environments; new episodes are started.")
        return
    assert model._environments is not None, "a resumed model has environments"
    model._environments.load_state(environments)
    with damage_named(path):
        collector.load_state_dict(collected)
