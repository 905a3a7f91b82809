"""Finding controllers by name, folder or run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from esper.config.catalogue import LEARNED, SHIPPED
from esper.config.growth import GrowthConfig
from esper.environment import GrowthVectorEnv
from esper.errors import CheckpointError, ConfigError, RunError
from esper.growth.block_slot import BlockSlot
from esper.growth.host_slots import slots
from esper.growth.modules import count_parameters
from esper.invocation import settings_of_method, training_command
from esper.lifecycle.stages import Stage
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.storage.controller_folder import locate_controller
from esper.storage.run_folder import RunFolder
from esper.tamiyo import (
    Controller,
    SavedController,
    controller_names,
    load_saved,
    load_shipped,
    make_controller,
)
from esper.tamiyo.controllers.price_schedule import SCHEDULES
from esper.tamiyo.controllers.progressive import progressive
from esper.tamiyo.controllers.saved import require_observations
from esper.tamiyo.policy.observations import ObservationLayout
from esper.training.run import Run
from esper.training.state import require_saved_config

PROGRESSIVE = "progressive"
"""The name of the controller that grows a host to a target size."""

PROGRESSIVE_GROWTH = GrowthConfig(commits_at_once=True, embargo_epochs=1)
"""Growth to a target size: new seeds are part of the model at once."""

AnyController = str | os.PathLike[str] | Run | SavedController | Controller
"""A controller, or anything that names one."""


def find_controller(
    controller: AnyController,
    envs: GrowthVectorEnv,
    *,
    target: Mapping[str, int] | None = None,
    fractions: Sequence[float] | None = None,
) -> Controller:
    """Return a controller for the hosts of an environment.

    Args:
        controller: ``"learned"``, the name of a simple controller, the folder of a saved controller
            or of a run, a run, a saved controller, or a controller.
        envs: The environment whose hosts it will steer.
        target: The size that the progressive controller grows a host to: ``{"depth": 12}`` or
            ``{"parameters": 100_000}``.
        fractions: The fractions of the budget at which it grows.

    Raises:
        ConfigError: If a target or fractions are given with another controller.
        RunError: If no controller or run has this name.
        ControllerError: If the saved controller is damaged or cannot steer these hosts.

    Examples:
        >>> envs = esper.make_env("spirals", num_envs=2, autoreset=False)
        >>> esper.find_controller("heuristic", envs).name
        'heuristic'
    """
    if controller == PROGRESSIVE:
        model, n_epochs = envs.growth.hosts.model(0), envs.task.budget.n_epochs
        return find_progressive(envs.layout, model, n_epochs, target, fractions)
    require_progressive(controller, target=target, fractions=fractions)
    saved = find_saved(controller)
    if saved is not None:
        return saved.make(envs.slot_config)
    if isinstance(controller, (str, os.PathLike)):
        return make_controller(str(controller), envs.layout)
    assert not isinstance(controller, (Run, SavedController)), "these are saved controllers"
    return controller


def find_progressive(
    layout: ObservationLayout,
    model: nn.Module,
    n_epochs: int,
    target: Mapping[str, int] | None,
    fractions: Sequence[float] | None,
) -> Controller:
    """Return the controller that grows a model to a size; ``model`` is a copy of it, with slots."""
    options: dict[str, Any] = {} if fractions is None else {"fractions": fractions}
    return progressive(
        layout, target=target, preview=SizePreview(model), n_epochs=n_epochs, **options
    )


def require_progressive(controller: AnyController, **options: object) -> None:
    """Reject options of the progressive controller that are given with another one.

    Raises:
        ConfigError: With the name of the first such option.
    """
    for name, value in options.items():
        if value is not None and controller != PROGRESSIVE:
            raise ConfigError(f"{name} is {value!r}; it needs controller={PROGRESSIVE!r}.")


class SizePreview:
    """The size of a model as it grows, measured on a copy."""

    def __init__(self, model: nn.Module) -> None:
        """Take a copy of the model, with slots, which will grow."""
        self._model = model

    @property
    def parameters(self) -> int:
        """Parameters of the host with the seeds that were added so far."""
        return count_parameters(self._model)

    def depth(self, slot: str) -> int:
        """Return the residual blocks of a slot."""
        place = slots(self._model)[slot]
        return place.blocks.n_residual if isinstance(place, BlockSlot) else 0

    def price(self, slot: str, blueprint: str) -> int:
        """Return the parameters that a seed would add."""
        return slots(self._model)[slot].count_new(blueprint)

    def add(self, slot: str, blueprint: str) -> None:
        """Add a seed."""
        grown = slots(self._model)
        grown.germinate(slot, blueprint)
        if grown[slot].stage != Stage.FOSSILIZED:
            grown.commit(slot)
        grown.absorb(slot)


def find_saved(controller: AnyController) -> SavedController | None:
    """Return a learned controller, not yet bound to a host; None for other kinds of controllers.

    Raises:
        RunError: If no controller or run has this name.
        ControllerError: If the saved controller is damaged.
    """
    if isinstance(controller, SavedController):
        return controller
    if isinstance(controller, Run):
        return controller_of(controller)
    if not isinstance(controller, (str, os.PathLike)) or controller in controller_names():
        return None
    if controller in (SHIPPED, LEARNED):
        return load_shipped()
    place = locate_controller(controller)
    assert place is not None, "the controllers of Esper are above"
    return controller_of(Run(place)) if isinstance(place, RunFolder) else load_saved(place)


def controller_label(controller: str) -> str:
    """Return a controller as it was named, and which one it is if it is the shipped one.

    Raises:
        ControllerError: If the shipped controller is missing or damaged.
    """
    return load_shipped().label if controller in (SHIPPED, LEARNED) else controller


def controller_of(run: Run) -> SavedController:
    """Return the best controller of a run so far, with its origin.

    Raises:
        RunError: If the run has not been evaluated yet, or records the user's own training.
        CheckpointError: If no checkpoint with a controller is intact.
    """
    run.require_learning()
    loaded = CheckpointFolder(run.folder.checkpoints).latest(resumes=False)
    require_saved_config(run.config, loaded.state)
    best = loaded.state["best_policy"]
    if not best["weights"] and loaded.skipped:
        skipped = ", ".join(path.name for path in loaded.skipped)
        again = f"delete {run.folder.summary_file} and " if run.is_complete else ""
        raise CheckpointError(
            f"the controller of run {run.name!r} is lost: {skipped} cannot be used and "
            f"{loaded.path.name} is from before the first evaluation; restore a copy, or {again}"
            f"train again from there: {run.resume_command}"
        )
    if not best["weights"]:
        raise RunError(
            f"run {run.name!r} has no controller yet; its first evaluation is after round "
            f"{run.config.evaluation.eval_freq}."
        )
    require_observations(best, run.name)
    growth = best["growth"]
    # The units of the policy's values, unless they are discounted.
    scale = dict(best["returns"]) if run.config.ppo.gamma == 1.0 else {}
    return SavedController(
        name=run.name,
        weights=best["weights"],
        policy=run.config.policy,
        blueprints=tuple(best["blueprints"]),
        deterministic=run.config.evaluation.deterministic,
        budget=run.config.budget,
        growth=None if growth is None else GrowthConfig(**growth),
        ablation=run.config.ablation,
        rewards=run.config.rewards.reward,
        origin=_origin(run) | dict(best["task"]) | scale,
        esper=str(loaded.about["made_with"]["esper"]),
    )


def _origin(run: Run) -> dict[str, Any]:
    """Return how a controller was trained, as plain values."""
    config, summary = run.config, run.summary
    origin: dict[str, Any] = {
        "task": config.task,
        "task_options": dict(config.task_options),
        "seed": config.seed,
        "rounds": run.rounds_done,
        "episodes": run.n_episodes,
        "envs": config.envs,
        "n_steps": config.n_steps,
        "command": training_command(config),
        "settings": settings_of_method(config),
    }
    if config.first_policy == "taught":
        origin["lesson_hosts"] = config.lesson_hosts
        origin["lesson_schedules"] = len(SCHEDULES)
    if not run.is_complete:
        origin["unfinished"] = f"{run.rounds_done} of {config.rounds} rounds"
    if len(versions := run.torch_versions) > 1:
        origin["changed"] = f"resumed with PyTorch {versions[-1]} after {versions[0]}"
    if summary is not None:
        origin["comparison"] = list(summary.sentences)
    return origin
